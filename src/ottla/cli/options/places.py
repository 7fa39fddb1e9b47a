"""`--from`, `--until` and `--to`: where a command starts, ends, or moves a position to. One grammar in all commands."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

import click

from ottla.cli.errors import UsageError
from ottla.cli.options.types import PlaceType
from ottla.cli.values.places import Kind, Place, check_order

_Command = TypeVar("_Command", bound=Callable[..., Any])

STARTS = frozenset(Kind) - {Kind.SHIFT}
ENDS = STARTS - {Kind.EARLIEST}


def from_option(
    text: str = "Where to start",
    *,
    kinds: Collection[Kind] = STARTS,
    default: str = "earliest",
    is_absolute: bool = False,
) -> Callable[[_Command], _Command]:
    """Give a command `--from PLACE` and the argument `start: Place`."""
    place = PlaceType(kinds, is_absolute=is_absolute)
    return click.option(
        "--from", "start", type=place, default=default, show_default=True, help=f"{text}: {place.description}."
    )


def until_option(
    text: str = "Where to end",
    *,
    kinds: Collection[Kind] = ENDS,
    default: str = "latest",
    is_absolute: bool = False,
) -> Callable[[_Command], _Command]:
    """Give a command `--until PLACE` and the argument `stop: Place | None`; `default` is what None means."""
    place = PlaceType(kinds, is_end=True, is_absolute=is_absolute)
    # An absolute place is one of an archive, which has its own end.
    end = "latest" if is_absolute else "latest (where the topics end now)"
    places = place.description.replace("latest", end)
    return click.option("--until", "stop", type=place, help=f"{text}: {places}.  [default: {default}]")


def require_order(start: Place, stop: Place | None) -> None:
    """Raise `UsageError` if `--until` obviously lies before `--from`."""
    try:
        check_order(start, stop)
    except ValueError as error:
        raise UsageError(str(error)) from error


def to_option(text: str, *, kinds: Collection[Kind]) -> Callable[[_Command], _Command]:
    """Give a command `--to PLACE` and the argument `goal: Place | None`."""
    place = PlaceType(kinds)
    return click.option("--to", "goal", type=place, help=f"{text}: {place.description}.")
