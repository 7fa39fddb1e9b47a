"""Arguments and options that several commands share, with one meaning and one help text each.

`--bootstrap`, `--from` and `--until`, TLS and SASL, and `--store` have modules of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ottla.cli.completion.values import complete_topic_pairs, complete_topics
from ottla.cli.options.old import old_spelling
from ottla.cli.options.types import Duration, Integer, Size, parsed
from ottla.cli.values import places

_Command = TypeVar("_Command", bound=Callable[..., Any])


def check_topic(text: str) -> str:
    """Return the name. Raises InputError, a ValueError, if no topic can have it."""
    from ottla.produce import records as checks

    checks.topic(text)
    return text


def _topics(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(parsed(check_topic)(context, parameter, value)))


topics_argument = click.argument(
    "topics", nargs=-1, required=True, metavar="TOPIC...", callback=_topics, shell_complete=complete_topics
)
partition_option = click.option(
    "--partition",
    "partitions",
    metavar="0,3-5",
    callback=parsed(places.parse_partitions),
    help="Only these partitions.",
)
isolation_option = click.option(
    "--isolation",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
    help="Whether to skip records of open and aborted transactions.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
follow_option = click.option("--follow", is_flag=True, help="Do not end: continue with new records until Ctrl-C.")
master_option = click.option("--master", metavar="URL", help="Where Spark runs.  [default: local[*]]")


def max_batch_size_option(command: _Command) -> _Command:
    """Give a command `--max-batch-size SIZE` and the argument `max_batch_size: int`."""
    option = click.option(
        "--max-batch-size",
        type=Size(1 << 10, (1 << 31) - 1),
        default="128MiB",
        show_default=True,
        help="Largest batch to accept, after decompression; a larger one counts as corrupt.",
    )
    return option(old_spelling("--max-batch-bytes", "--max-batch-size")(command))


def timeout_option(default: str = "20s", *, note: str = "", minimum: float = 0.1) -> Callable[[_Command], _Command]:
    """Give a command `--timeout DURATION` and the argument `timeout: float`."""
    return click.option(
        "--timeout",
        type=Duration(minimum),
        default=default,
        show_default=True,
        help=f"How long to wait for brokers that do not answer before giving up.{note and ' ' + note}",
    )


def workers_option(name: str, text: str) -> Callable[[_Command], _Command]:
    """Give a command `--workers N` or `--threads N`: how many of something it does at a time."""
    return click.option(name, type=Integer(1, 1024), help=text)


def settings_option(text: str, *, example: str) -> Callable[[_Command], _Command]:
    """Give a command `--setting KEY=VALUE`, repeatable, and the argument `settings: dict[str, str]`."""

    def parse(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
        pairs = [value.partition("=") for value in values]
        for key, separator, _ in pairs:
            if not separator or not key.strip():
                # The text is not shown: the values of some settings are secrets.
                raise click.BadParameter(f"write KEY=VALUE, for example {example}", context, parameter)
        return {key.strip(): content.strip() for key, _, content in pairs}

    return click.option(
        "--setting",
        "settings",
        multiple=True,
        callback=parse,
        metavar="KEY=VALUE",
        shell_complete=complete_topic_pairs,
        help=text,
    )
