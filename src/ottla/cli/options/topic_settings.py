"""Settings of topics on the command line: options in human units, and values shown in them.

`topic_settings_options` gives a click command the options and the argument `changes`, a mapping from Kafka's names to
values; None means to take a setting away. What can be found wrong without a broker is refused here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ottla.cli import Misuse
from ottla.cli.options.general import settings_option
from ottla.cli.values.units import DURATIONS, SIZES, parse_duration, parse_size, show_duration, show_size

if TYPE_CHECKING:
    from ottla.admin import Setting

_Command = TypeVar("_Command", bound=Callable[..., Any])
_NO_LIMIT = -1
_WITHOUT_LIMIT = ("forever", "unlimited", "none", "-1")
_NEVER = (1 << 63) - 1
_POLICIES = ("delete", "compact", "compact,delete", "delete,compact")


def _milliseconds(text: str) -> str:
    if text.strip().lower() in _WITHOUT_LIMIT:
        return str(_NO_LIMIT)
    try:
        return str(round(parse_duration(text) * 1000))
    except ValueError as exc:
        raise ValueError(f"{exc}, or 'forever'") from exc


def _bytes(text: str) -> str:
    if text.strip().lower() in _WITHOUT_LIMIT:
        return str(_NO_LIMIT)
    try:
        return str(parse_size(text))
    except ValueError as exc:
        raise ValueError(f"{exc}, or 'unlimited'") from exc


def _policy(text: str) -> str:
    wanted = text.replace(" ", "").lower()
    if wanted not in _POLICIES:
        raise ValueError(f"{text!r} is no way to clean up; accepted are delete, compact and compact,delete")
    return wanted


# Option, argument, Kafka's name, reader, placeholder, help.
_HUMAN: tuple[tuple[str, str, Callable[[str], str], str, str], ...] = (
    ("--retention", "retention.ms", _milliseconds, "DURATION", f"Delete records that are older; {DURATIONS}."),
    (
        "--retention-size",
        "retention.bytes",
        _bytes,
        "SIZE",
        f"Delete the oldest records of a partition that is larger; {SIZES}.",
    ),
    ("--cleanup", "cleanup.policy", _policy, "POLICY", "delete, compact, or compact,delete."),
    ("--max-message", "max.message.bytes", lambda text: str(parse_size(text)), "SIZE", "Largest batch accepted."),
)


def topic_settings_options(command: _Command) -> _Command:
    """Give a command the options for settings and the argument `changes: dict[str, str | None]`."""

    @functools.wraps(command)
    def changing(*args: Any, settings: dict[str, str], **given: Any) -> Any:
        changes: dict[str, str | None] = dict(settings)
        for option, name, _, _, _ in _HUMAN:
            value = given.pop(_argument(option))
            if value is not None and name in changes:
                raise Misuse(f"{option} and --setting {name}=... are the same setting: give one of them")
            if value is not None:
                changes[name] = value
        return command(*args, changes=changes, **given)

    wrapped: Any = settings_option("Topic setting by Kafka's name. Repeatable.", example="segment.ms=3600000")(changing)
    for option, _, read, placeholder, text in reversed(_HUMAN):
        wrapped = click.option(option, callback=_reading(read), metavar=placeholder, help=text)(wrapped)
    found: _Command = wrapped
    return found


def _argument(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def _reading(read: Callable[[str], str]) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    def parse(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
        try:
            return None if value is None else read(value)
        except ValueError as exc:
            raise click.BadParameter(str(exc), context, parameter) from exc

    return parse


def keeps_less(name: str, before: str | None, after: str | None) -> bool:
    """Whether a change may make the brokers delete records that they would have kept."""
    if name == "cleanup.policy":
        return not {*(after or "").split(",")} <= {*(before or "").split(",")}
    if name not in ("retention.ms", "retention.bytes"):
        return False
    limits = [_limit(value) for value in (before, after)]
    return limits[1] < limits[0]


def _limit(value: str | None) -> float:
    try:
        number = int(value or "")
    except ValueError:  # unknown: what the brokers say may be anything
        return 0.0
    return math.inf if number == _NO_LIMIT else number


def show_value(name: str, value: str | None) -> str:
    """A value as the broker has it, with what it means where that is easier to read."""
    if value is None:
        return "(hidden)"
    meaning = show_meaning(name, value)
    return f"{value} ({meaning})" if meaning else value or "(empty)"


def show_setting(setting: Setting) -> str:
    """The value of a setting."""
    return show_value(setting.name, setting.value)


def show_meaning(name: str, value: str) -> str:
    """A duration or size in human units; empty where the value is neither, or is easy to read as it is."""
    if not name.endswith((".ms", ".bytes")) or not value.lstrip("-").isdigit():
        return ""
    number = int(value)
    if number == _NO_LIMIT and name.startswith("retention."):
        return "no limit"
    if number < 0:
        return ""
    if name.endswith(".bytes"):
        shown = show_size(number)
        return "" if shown == f"{number}B" else shown
    return "no limit" if number == _NEVER else show_duration(number / 1000)
