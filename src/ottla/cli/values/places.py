"""Where a read begins and ends, as people write it: `--from`, `--until`, `--partition`.

Text comes in, a value that says what is meant goes out; what is malformed is a ValueError that says what is accepted.
Pure: it takes the present as an argument and asks no broker.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal, TypeAlias

from ottla.cli.values import times

if TYPE_CHECKING:
    from ottla.fetch.bounds import CommittedBy

_LAST_OFFSET = (1 << 63) - 1
_LAST_PARTITION = (1 << 31) - 1
_RANGE = re.compile(r"\s*([0-9]+)\s*(?:-\s*([0-9]+)\s*)?", re.ASCII)
_WORDS: dict[str, Literal["earliest", "latest"]] = {"earliest": "earliest", "latest": "latest"}
_MANY = 100_000
"""More partitions than that are a slip of the hand, and no cluster has them."""


@dataclass(frozen=True, slots=True)
class LastRecords:
    """So many offsets before the end of each partition."""

    count: int


Fixed: TypeAlias = "Literal['earliest', 'latest'] | int | datetime | CommittedBy"
"""What a reader understands, too."""
Place: TypeAlias = "Fixed | LastRecords"


def parse_place(text: str, *, now: datetime) -> Place:
    """A place in each partition."""
    word = text.strip()
    if word in _WORDS:
        return _WORDS[word]
    if re.fullmatch(r"-?[0-9]+", word, re.ASCII):
        number = int(word)
        if abs(number) > _LAST_OFFSET:
            raise ValueError(f"{text!r} is no offset: the last one is {_LAST_OFFSET}")
        return LastRecords(-number) if word.startswith("-") else number
    if word.startswith("group:"):
        name = word.removeprefix("group:")
        if not name:
            raise ValueError("the name of the group is missing, for example group:billing")
        from ottla.fetch.bounds import CommittedBy

        return CommittedBy(name)
    return _time(text, now)


def _time(text: str, now: datetime) -> datetime:
    try:
        return times.parse_time(text, now=now)
    except ValueError as error:
        raise ValueError(
            f"{text!r} is no place in a topic: earliest, latest, an offset, -N for the last N of each partition,"
            f" group:NAME, or a time ({times.ACCEPTED})"
        ) from error


def parse_partitions(text: str) -> list[int]:
    """`0,3-5` as a list without repeats."""
    found: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last or last > _LAST_PARTITION or last - first > _MANY:
            raise ValueError(f"{text!r} are no partitions: write numbers and ranges, for example 0,3-5")
        found.update(range(first, last + 1))
    return sorted(found)
