"""Checks arguments of jobs that programs pass: a wrong type is one clear error of the call, not one from inside of it.

Values of any type come in; what the jobs work with goes out, or `ConfigError`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime

from ottla.errors import ConfigError
from ottla.text import printable


def check_moment(name: str, value: object) -> datetime | None:
    """Return a time, None for none. Raises `ConfigError` unless it is a datetime with a zone."""
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise ConfigError(f"{name} must be a datetime with a time zone, got {_shown(value)}")
    if value.tzinfo is None:
        raise ConfigError(f"{name} {value} has no time zone")
    return value


def check_seconds(name: str, value: object, *, most: float) -> float:
    """Return seconds. Raises `ConfigError` unless they are a number from 0 to `most`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    if not is_number or not 0 <= float(value) <= most:  # type: ignore[arg-type]
        raise ConfigError(f"{name} must be seconds from 0 to {most:,.0f}, got {_shown(value)}")
    return float(value)  # type: ignore[arg-type]


def check_topic_name(name: str, value: object) -> str:
    """Return the name of a topic. Raises `ConfigError` unless it is a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name} must be the name of a topic, got {_shown(value)}")
    return value


def check_topic_names(name: str, value: object) -> list[str]:
    """Return the names of topics, each once. Raises `ConfigError` for anything but one or several."""
    if isinstance(value, str):
        return [check_topic_name(name, value)]
    if isinstance(value, bytes) or not isinstance(value, Iterable):
        raise ConfigError(f"{name} must be the name of a topic, or several, got {_shown(value)}")
    listed = list(dict.fromkeys(check_topic_name(name, topic) for topic in value))
    if not listed:
        raise ConfigError(f"{name} is empty: name a topic")
    return listed


def _shown(value: object) -> str:
    return printable(f"{value!r:.120}")
