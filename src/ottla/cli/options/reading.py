"""Arguments and options of the commands that read topics: which, from where to where, how to look at transactions.

Each is a decorator for click commands. What is malformed is told with the name of the option and what is accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click

from ottla.cli.values import places
from ottla.cli.values.places import Fixed, LastRecords, Place

_Callback = Callable[[click.Context, click.Parameter, Any], Any]


def parsed(parse: Callable[[str], object]) -> _Callback:
    """A callback that turns the ValueError of `parse` into a message which names the option."""

    def one(text: str, context: click.Context, parameter: click.Parameter) -> object:
        try:
            return parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error), context, parameter) from error

    def callback(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(one(text, context, parameter) for text in value)
        return None if value is None else one(value, context, parameter)

    return callback


def _topic(text: str) -> str:
    from ottla.produce import records as checks

    checks.topic(text)
    return text


def _topics(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(parsed(_topic)(context, parameter, value)))


def _place(text: str) -> Place:
    return places.parse_place(text, now=datetime.now(UTC))


def _until(text: str) -> Fixed:
    place = _place(text)
    if isinstance(place, LastRecords) or place == "earliest":
        raise ValueError(f"{text!r} is nowhere to end: latest, an offset, a time or group:NAME")
    return place


topics_argument = click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", callback=_topics)
from_option = click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    metavar="PLACE",
    callback=parsed(_place),
    help="earliest, latest, an offset, -N (the last N of each partition), a time, group:NAME.",
)
partition_option = click.option(
    "--partition", "partitions", metavar="0,3-5", callback=parsed(places.parse_partitions), help="Only these."
)
isolation_option = click.option(
    "--isolation",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
    help="Whether to leave out records of transactions that are open or were aborted.",
)
max_batch_bytes_option = click.option(
    "--max-batch-bytes",
    type=click.IntRange(1 << 10, (1 << 31) - 1),
    default=128 << 20,
    show_default=True,
    metavar="N",
    help="What one batch may take when it is decompressed; a larger one counts as damaged.",
)


def until_option(help_text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--until PLACE`; the command gets `stop`."""
    return click.option("--until", "stop", metavar="PLACE", callback=parsed(_until), help=help_text)
