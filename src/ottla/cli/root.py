"""The command `ottla` itself: the table of its commands, and how errors and signals become exit codes."""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any, NoReturn

import click

from ottla import __version__
from ottla.cli.errors import CommandFailed, UsageError, from_click
from ottla.cli.lazy import CLUSTER_PACKAGES, Entry, LazyGroup
from ottla.cli.options.same_cluster import same_cluster
from ottla.cli.output.styles import Style, paint
from ottla.cli.terminal.screen import CLEAR, has_colors, is_drawn_on
from ottla.text import printable
from ottla.wire.kernels.notices import notify_once

COMPLETION_VARIABLE = "_OTTLA_COMPLETE"
"""Set by the script of a shell that completes a command line."""
_INTERRUPTED = 128 + signal.SIGINT
_LINE_END = "\n"

COMMANDS = {
    "archive": Entry("ottla.cli.archive.command", "Archive topics as Parquet files or a Delta table."),
    "audit": Entry("ottla.cli.audit.commands", "Count topics by time, compare tiers, and name records that differ."),
    "capacity": Entry("ottla.cli.capacity.command", "Plan brokers, disks, partitions and cores for a load."),
    "brokers": Entry("ottla.cli.brokers.commands", "List brokers with their replicas and bytes, and drain them."),
    "cluster": Entry(
        "ottla.cli.cluster.commands",
        "Run real Kafka brokers on this machine.",
        extra="cluster",
        packages=CLUSTER_PACKAGES,
    ),
    "completion": Entry("ottla.cli.completion.command", "Print the script that completes command lines in a shell."),
    "consume": Entry("ottla.cli.consume.command", "Print the records of topics, or write them to a file."),
    "demo": Entry(
        "ottla.cli.demo.command",
        "Move a million records while brokers and programs are killed.",
        extra="cluster",
        packages=CLUSTER_PACKAGES,
    ),
    "gateway": Entry(
        "ottla.cli.gateway.commands",
        "Take records over HTTP and hand them to Kafka.",
        extra="gateway",
        packages=("httptools", "prometheus_client", "starlette", "uvicorn", "uvloop"),
    ),
    "groups": Entry("ottla.cli.groups.commands", "List, describe, reset and delete consumer groups."),
    "health": Entry("ottla.cli.health.commands", "Say what is wrong with a cluster, and probe every broker."),
    "lag": Entry("ottla.cli.lag.commands", "Show how far groups are behind, in records and in seconds."),
    "lake": Entry("ottla.cli.lake", "Show, verify and repair archives."),
    "leaders": Entry("ottla.cli.leaders.commands", "Have the preferred replicas lead."),
    "mirror": Entry("ottla.cli.mirror.commands", "Mirror topics to another cluster, exactly once."),
    "perf": Entry("ottla.cli.perf.commands", "Measure rates, processor time and latency."),
    "produce": Entry("ottla.cli.produce.command", "Send lines or JSON from files or stdin to a topic."),
    "profiles": Entry("ottla.cli.profiles.command", "List the clusters that your settings file names."),
    "query": Entry("ottla.cli.query", "Show offsets, counts and statistics of topics."),
    "reassign": Entry("ottla.cli.reassign.commands", "Move replicas between brokers: plan, run, throttle, verify."),
    "replay": Entry("ottla.cli.replay", "Write an archive back into a topic, exactly once."),
    "rollup": Entry(
        "ottla.cli.rollup",
        "Count and sum records in windows of time, with Spark.",
        extra="spark",
        packages=("pyspark",),
    ),
    "spool": Entry("ottla.cli.spool", "List, replay and export what a producer left on disk."),
    "throttles": Entry("ottla.cli.throttles.commands", "Show replication throttles, and clear those left behind."),
    "topics": Entry("ottla.cli.topics.commands", "List, describe, create, alter and delete topics."),
    "work": Entry("ottla.cli.work.commands", "Call a function with all records, on a fleet of nodes."),
}


class _Ottla(LazyGroup):
    """Turns errors into a text and an exit code: 0 success, 1 failure, 2 usage error, 130 after Ctrl-C."""

    def make_context(self, *args: Any, **settings: Any) -> click.Context:
        """Parse the options before the first command."""
        try:
            return super().make_context(*args, **settings)
        except click.exceptions.NoArgsIsHelpError:
            raise  # click shows the help
        except click.UsageError as error:
            raise from_click(error) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except click.exceptions.Exit:
            raise  # how --help ends; nothing more needs to be imported for it
        except click.exceptions.NoArgsIsHelpError:
            raise  # a group without a command: click shows its help
        except click.UsageError as error:
            raise from_click(error) from error
        except CommandFailed as error:
            raise type(error)(same_cluster(error.message)) from error
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(_INTERRUPTED)
        except click.Abort as error:  # Ctrl-C or the end of input at a question
            if not isinstance(error.__context__, KeyboardInterrupt):
                raise
            ctx.exit(_INTERRUPTED)
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader of our output has gone
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more at the end
                ctx.exit(128 + signal.SIGPIPE)
            raise CommandFailed(str(error)) from error
        except Exception as error:
            from ottla.errors import ConfigError, OttlaError

            if isinstance(error, OttlaError):
                kind = UsageError if isinstance(error, ConfigError) else CommandFailed
                raise kind(_reworded(error, ctx.invoked_subcommand)) from error
            raise


@click.group(
    "ottla",
    cls=_Ottla,
    entries=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="ottla")
@click.pass_context
def cli(context: click.Context, /) -> None:
    """Read and write Kafka, move it, and prove that no record was lost.

    \b
    Examples:
      ottla cluster up --brokers 3 --topic clicks:6   three real brokers on this machine
      ottla topics describe clicks                    leaders, replicas, offsets
      ottla produce clicks access.log                 each line is a record
      ottla consume clicks --from -10 --json          the last ten of each partition, then new ones
      ottla cluster down --yes

    Commands that connect take --bootstrap HOST:PORT,... or --profile NAME. The default is OTTLA_BOOTSTRAP, then the
    default profile, then the local cluster that is running.
    """
    if not has_colors():
        context.color = False  # what is printed loses its styles
    notify_once(_say_compiling)
    library = logging.getLogger("ottla")
    if not any(isinstance(handler, _Warnings) for handler in library.handlers):
        library.addHandler(_Warnings(logging.WARNING))


def _say_compiling(purpose: str) -> None:
    clear = CLEAR if is_drawn_on(sys.stderr) else ""  # a live line may be there
    click.echo(f"{clear}compiling kernels for {purpose} on this machine, once: about 4 s", err=True, color=True)


class _Warnings(logging.Handler):
    """Prints warnings of the library to stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the message, with its advice in terms of options."""
        text = _reworded(record.getMessage())
        style = Style.WARNING if record.levelno < logging.ERROR else Style.BAD
        click.echo(f"{paint(record.levelname.lower() + ':', style)} {printable(text, keep=_LINE_END)}", err=True)


def _reworded(message: object, command: str | None = None) -> str:
    from ottla.cli.advice import reword  # imports the library's errors, which --help does not need

    return same_cluster(reword(str(message), command=command))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the `ottla` script."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    if instruction := os.environ.get(COMPLETION_VARIABLE):
        from ottla.cli.completion.shells import answer

        answer(instruction, cli)
    try:
        cli.main(args=list(arguments) if arguments is not None else None, prog_name="ottla")
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None
    raise AssertionError("click ends the process itself")


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """Unwind the stack as Ctrl-C does, so that the command cleans up; ignore further signals meanwhile."""
    for other in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(other, signal.SIG_IGN)
    raise SystemExit(128 + number)
