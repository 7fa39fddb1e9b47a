"""The `ottla` command: one module per command group, each loaded only when it is used.

The only room that prints, reads environment variables and turns errors into exit codes: 0 done, 1 failed, 2 used
wrongly.
"""

from __future__ import annotations

import errno
import importlib
import importlib.util
import logging
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

import click

from ottla import __version__
from ottla.text import printable

__all__ = ["cli", "main"]


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a command lives, what the overview says of it, and which extra of the package it needs."""

    module: str
    summary: str
    extra: str = ""
    packages: tuple[str, ...] = ()

    def missing(self) -> bool:
        """Whether the extra is not installed."""
        return any(importlib.util.find_spec(package) is None for package in self.packages)


CLUSTER_PACKAGES = ("filelock", "jgo", "platformdirs", "psutil", "trustme")

# Each module has a click command of the same name as the entry.
COMMANDS = {
    "archive": Entry("ottla.cli.archive", "Topics into Parquet files or a Delta table, exactly once."),
    "cluster": Entry(
        "ottla.cli.cluster",
        "Real Kafka brokers on this machine: start, kill, restart, stop.",
        extra="cluster",
        packages=CLUSTER_PACKAGES,
    ),
    "consume": Entry("ottla.cli.consume", "Records of topics to standard output or a file."),
    "demo": Entry(
        "ottla.cli.demo",
        "A million records over three brokers, one killed on the way, and the proof that none was lost.",
        extra="cluster",
        packages=CLUSTER_PACKAGES,
    ),
    "groups": Entry("ottla.cli.groups", "Consumer groups: list, describe, reset, delete."),
    "lake": Entry("ottla.cli.lake", "Archives: what they have, and whether it is all there."),
    "produce": Entry("ottla.cli.produce", "Lines or JSON from files or standard input to a topic."),
    "query": Entry("ottla.cli.query", "Offsets, counts and contents of topics, without printing records."),
    "replay": Entry("ottla.cli.replay", "An archive back into a topic, exactly once."),
    "rollup": Entry(
        "ottla.cli.rollup",
        "Counts, sums and the like in windows of time, to a topic or to files, by Spark.",
        extra="spark",
        packages=("pyspark",),
    ),
    "spool": Entry("ottla.cli.spool", "What a producer left on disk: list, replay, export."),
    "topics": Entry("ottla.cli.topics", "Topics of a cluster: list, describe, create, alter, delete."),
    "work": Entry("ottla.cli.work", "A function on all records of topics, by any number of nodes that share the work."),
}


_LINE_END = "\n"


class Failure(click.ClickException):
    """An error for people: one text on stderr, no traceback."""

    exit_code = 1

    def show(self, file: Any = None) -> None:
        """Print it the way every error of Ottla looks."""
        click.echo("error: " + printable(self.message, keep="\n"), file=file, err=True)


class Misuse(Failure):
    """A failure that lies in how the command was called."""

    exit_code = 2


class LazyGroup(click.Group):
    """A group that knows its commands by name and summary, and imports a command only to run it or to show its help.

    A command's module says at its top what the options need, and its functions import what they work with: so help,
    and a word that is wrong, cost next to nothing.
    """

    def __init__(self, *args: Any, entries: Mapping[str, Entry], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command's name."""
        return sorted(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command, or say which extra it needs."""
        entry = self.entries.get(cmd_name)
        if entry is None:
            _suggest(ctx.command_path, cmd_name, self.entries)
            return None
        if entry.missing():
            raise Failure(
                f"'{ctx.command_path} {cmd_name}' needs the extra packages: pip install 'ottla[{entry.extra}]'"
            )
        command = getattr(importlib.import_module(entry.module), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The overview, from the summaries alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in sorted(self.entries.items())])


class _Ottla(LazyGroup):
    """The command `ottla` itself."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; Ottla's own errors become a text and an exit code."""
        try:
            return super().invoke(ctx)
        except click.exceptions.Exit:
            raise  # so ends --help, for which nothing more is imported
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(128 + signal.SIGINT)
        except click.Abort as exc:  # Ctrl-C at a question
            if not isinstance(exc.__context__, KeyboardInterrupt):
                raise
            ctx.exit(128 + signal.SIGINT)
        except OSError as exc:
            if exc.errno == errno.EPIPE:
                raise  # whoever read our output has gone: click ends quietly
            raise Failure(str(exc)) from exc
        except Exception as exc:
            from ottla.errors import ConfigError, OttlaError

            if isinstance(exc, OttlaError):
                kind = Misuse if isinstance(exc, ConfigError) else Failure
                raise kind(_worded(exc)) from exc
            raise


def _suggest(path: str, name: str, commands: Collection[str]) -> None:
    """Raises an error that names the command which was probably meant, if there is one."""
    import difflib

    close = difflib.get_close_matches(name, commands, 1)
    if close:
        raise Misuse(f"there is no command {name!r}: did you mean '{path} {close[0]}'?")


@click.group(
    "ottla",
    cls=_Ottla,
    entries=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="ottla")
def cli() -> None:
    """Move Kafka data at wire speed from Python, and prove that none was lost.

    \b
    Examples:
      ottla cluster up --brokers 3 --topic clicks:6   three real brokers on this machine
      ottla topics describe clicks                    leaders, replicas, offsets
      ottla produce clicks access.log                 each line a record
      ottla consume clicks --from -10 --json          the last ten of each partition, and what comes
      ottla cluster down

    Commands that connect take --bootstrap HOST:PORT,... Without it they use OTTLA_BOOTSTRAP, else the local cluster
    that is running, and say so.
    """
    library = logging.getLogger("ottla")
    if not any(isinstance(handler, _Warnings) for handler in library.handlers):
        library.addHandler(_Warnings(logging.WARNING))


class _Warnings(logging.Handler):
    """What the library warns of, on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """One line, in the words of the command line."""
        text = _worded(record.getMessage())
        click.echo(f"{record.levelname.lower()}: {printable(text, keep=_LINE_END)}", err=True)


def _worded(told: object) -> str:
    from ottla.cli.wording import worded  # not above: a package that imports its modules forms a circle with them

    return worded(str(told))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The entry point of the `ottla` script."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _ended)
    cli.main(args=list(arguments) if arguments is not None else None, prog_name="ottla")
    raise AssertionError("click ends the process itself")


def _ended(number: int, frame: FrameType | None) -> NoReturn:
    """Unwind the stack as Ctrl-C does, so that what a command has begun is undone; let nothing interrupt that."""
    for other in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(other, signal.SIG_IGN)
    raise SystemExit(128 + number)
