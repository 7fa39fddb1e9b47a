"""What a program may say to a consumer: checked at the call, with a text that names what is accepted."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from datetime import datetime

from ottla.config import LONGEST, check_name, check_seconds
from ottla.errors import ConfigError, InputError
from ottla.fetch import bounds
from ottla.model import TopicPartition

Topics = str | Iterable[str] | re.Pattern[str]


def check_settings(group: object, start: object, commit_every: object) -> None:
    """Of a consumer."""
    if group is not None and (not isinstance(group, str) or not group):
        raise ConfigError(f"group must be a name, got {group!r}")
    if group is not None:
        check_name("group", group)
    if isinstance(start, datetime):
        bounds.check(start, "start")
    elif start not in ("earliest", "latest", "error"):
        raise InputError(
            f"start is {start!r}; accepted are 'earliest', 'latest', 'error' and a datetime with a time zone:"
            " it is for partitions of which the group has committed nothing; seek goes to an offset"
        )
    if commit_every is not None:
        check_seconds("Consumer", "commit_every", commit_every, lowest=0.001)


def check_wait(name: str, seconds: object) -> None:
    """A time to wait."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds <= LONGEST:
        raise InputError(f"{name} must be seconds from 0 to {LONGEST:,.0f}, got {seconds!r}")


def topic_names(topics: object) -> frozenset[str] | re.Pattern[str]:
    """Names, or a pattern of names."""
    if isinstance(topics, re.Pattern):
        if not isinstance(topics.pattern, str):
            raise InputError(f"topics is a pattern of bytes, {topics.pattern!r}: names are text")
        return topics
    given = [topics] if isinstance(topics, str) else list(topics) if isinstance(topics, Iterable) else [None]
    if not all(isinstance(name, str) and name for name in given):
        raise InputError(f"topics is {topics!r}; accepted are a name, a list of names, and re.compile(...)")
    return frozenset(given)


def partition(given: object) -> TopicPartition:
    """A topic and a number."""
    match given:
        case (str(topic), int(number)) if topic and number >= 0 and not isinstance(number, bool):
            return TopicPartition(topic, number)
    raise InputError(
        f"{given!r} is no partition; accepted are TopicPartition(topic, number) and a pair (topic, number)"
    )


def partitions(given: object) -> frozenset[TopicPartition]:
    """Several of them."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InputError(f"{given!r} are no partitions; accepted is a list of pairs (topic, number)")
    return frozenset(map(partition, given))


def column_names(columns: Collection[str]) -> Collection[str]:
    """One name is a list of one."""
    return [columns] if isinstance(columns, str) else columns
