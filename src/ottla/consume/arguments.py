"""Checks the arguments that programs pass to a consumer.

Anything comes in. The typed value goes out, or a `ConfigError` or `InputError` that names the accepted values. The
checks run at the call, before anything connects.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from datetime import datetime

from ottla.config import LONGEST, check_group, check_seconds
from ottla.errors import ConfigError, InputError
from ottla.fetch import bounds
from ottla.model import TopicPartition

Topics = str | Iterable[str] | re.Pattern[str]


def check_settings(group: object, start: object, commit_every: object) -> None:
    """Check the settings of a consumer.

    Raises `ConfigError` for an invalid group or `commit_every`, and `InputError` for an invalid start.
    """
    if group is not None:
        check_group("group", group)
    if isinstance(start, datetime):
        bounds.check(start, "start")
    elif start not in ("earliest", "latest", "error"):
        raise InputError(
            f"invalid start {start!r}: use 'earliest', 'latest', 'error' or a datetime with a time zone."
            " It applies to partitions without a committed offset; to start at an offset, use seek()"
        )
    if commit_every is False:
        raise ConfigError("commit_every=False: None leaves commits to the program")
    if commit_every is not None:
        check_seconds("Consumer", "commit_every", commit_every, lowest=0.001)


def check_wait(name: str, seconds: object) -> None:
    """Check a time to wait, in seconds. Raises `InputError` if it is out of range."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds <= LONGEST:
        raise InputError(f"{name} must be seconds from 0 to {LONGEST:,.0f}, got {seconds!r}")


def topic_names(topics: object) -> frozenset[str] | re.Pattern[str]:
    """Return the topic names, or the pattern of names. Raises `InputError` for anything else."""
    if isinstance(topics, re.Pattern):
        if not isinstance(topics.pattern, str):
            raise InputError(f"topics is a pattern of bytes, {topics.pattern!r}: compile it from a str")
        return topics
    names = [topics] if isinstance(topics, str) else list(topics) if isinstance(topics, Iterable) else [None]
    if not all(isinstance(name, str) and name for name in names):
        raise InputError(f"topics is {topics!r}: use a name, a list of names, or re.compile(...)")
    return frozenset(names)


def partition(value: object) -> TopicPartition:
    """Return a topic and a partition number as a `TopicPartition`. Raises `InputError` for anything else."""
    match value:
        case (str(topic), int(number)) if topic and number >= 0 and not isinstance(number, bool):
            return TopicPartition(topic, number)
    raise InputError(f"{value!r} is not a partition: use TopicPartition(topic, number) or a pair (topic, number)")


def partitions(value: object) -> frozenset[TopicPartition]:
    """Return several partitions. Raises `InputError` if one of them is invalid."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InputError(f"{value!r} is not a list of partitions: use a list of pairs (topic, number)")
    return frozenset(map(partition, value))


def column_names(columns: Collection[str]) -> Collection[str]:
    """Accept a single name in place of a list of names."""
    return [columns] if isinstance(columns, str) else columns
