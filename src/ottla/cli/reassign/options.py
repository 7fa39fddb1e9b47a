"""Options of commands that move replicas: the rate of the throttle, the file of a plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ottla.cli.options.types import parsed

_Command = TypeVar("_Command", bound=Callable[..., Any])
RATES = "use auto, none, or bytes per second of each broker, such as 50MB/s"


def parse_throttle(text: str) -> int | str:
    """Return bytes per second, `auto` or `none`. Raises ValueError for anything else."""
    from ottla.cli.values.quantities import parse_size

    word = text.strip().lower()
    if word in ("auto", "none"):
        return word
    try:
        rate = parse_size(text.strip().removesuffix("/s"))
    except ValueError as error:
        raise ValueError(f"{text!r} is not a throttle: {RATES}") from error
    if rate < 1:
        raise ValueError(f"{text!r}: at that rate nothing moves; {RATES}")
    return rate


def throttle_option(command: _Command) -> _Command:
    """Give a command `--throttle RATE` and the argument `throttle: int | str`."""
    option = click.option(
        "--throttle",
        default="auto",
        show_default=True,
        metavar="RATE",
        callback=parsed(parse_throttle),
        help="Bytes per second that each broker may send and receive for moves, such as 50MB/s; 'auto' follows how the"
        " cluster takes it; 'none'.",
    )
    return option(command)


plan_argument = click.argument("plan", type=click.Path(dir_okay=False, path_type=Path))
lost_option = click.option(
    "--wait-for-lost",
    "lost_seconds",
    default="5m",
    show_default=True,
    metavar="DURATION",
    callback=parsed(lambda text: _duration(text)),
    help="How long moves wait for a broker that goes down before they are given up.",
)


def _duration(text: str) -> float:
    from ottla.cli.values.quantities import parse_duration

    return parse_duration(text)
