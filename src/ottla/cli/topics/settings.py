"""Settings of topics: options with units, and values shown with them.

`topic_settings_options` gives a click command the options and the argument `changes`, a mapping from Kafka's names to
values; None removes a setting.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ottla.cli.errors import UsageError
from ottla.cli.options.common import settings_option
from ottla.cli.options.old import old_spelling
from ottla.cli.options.types import parsed
from ottla.cli.values.quantities import parse_duration, parse_size, show_duration, show_size

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
    policy = text.replace(" ", "").lower()
    if policy not in _POLICIES:
        raise ValueError(f"{text!r} is not a cleanup policy: use delete, compact or compact,delete")
    return policy


# Option, Kafka's name, parser, placeholder, help.
_SETTINGS: tuple[tuple[str, str, Callable[[str], str], str, str], ...] = (
    ("--retention", "retention.ms", _milliseconds, "DURATION", "Delete older records; 'forever' for no limit."),
    (
        "--retention-size",
        "retention.bytes",
        _bytes,
        "SIZE",
        "Delete the oldest records of a larger partition; 'unlimited' for no limit.",
    ),
    ("--cleanup", "cleanup.policy", _policy, "POLICY", "delete, compact, or compact,delete."),
    ("--max-message-size", "max.message.bytes", lambda text: str(parse_size(text)), "SIZE", "Largest batch to accept."),
)


def topic_settings_options(command: _Command) -> _Command:
    """Give a command the options for settings and the argument `changes: dict[str, str | None]`."""

    @functools.wraps(command)
    def changing(*args: Any, settings: dict[str, str], **given: Any) -> Any:
        changes: dict[str, str | None] = dict(settings)
        for option, name, _, _, _ in _SETTINGS:
            value = given.pop(_argument(option))
            if value is not None and name in changes:
                raise UsageError(f"{option} and --setting {name}=... are mutually exclusive: they are the same setting")
            if value is not None:
                changes[name] = value
        return command(*args, changes=changes, **given)

    wrapped: Any = settings_option("Topic setting by Kafka's name. Repeatable.", example="segment.ms=3600000")(changing)
    wrapped = old_spelling("--max-message", "--max-message-size")(wrapped)
    for option, _, parse, placeholder, text in reversed(_SETTINGS):
        wrapped = click.option(option, callback=parsed(parse), metavar=placeholder, help=text)(wrapped)
    decorated: _Command = wrapped
    return decorated


def _argument(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def show_value(name: str, value: str | None) -> str:
    """Return a value as the broker has it, and in units where that is easier to read."""
    if value is None:
        return "(hidden)"
    meaning = show_meaning(name, value)
    return f"{value} ({meaning})" if meaning else value or "(empty)"


def show_setting(setting: Setting) -> str:
    """Return the value of a setting."""
    return show_value(setting.name, setting.value)


def show_meaning(name: str, value: str) -> str:
    """Return a duration or size with a unit; empty if the value is neither, or easy to read without."""
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
