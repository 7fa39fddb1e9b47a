"""Places in a topic on the command line: where `--from`, `--until` and `--to` start, end and move to.

A text becomes a value; a text that is not a place raises ValueError. Pure: it takes the present as an argument and asks
no broker.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Literal, TypeAlias

from ottla.cli.values import times

if TYPE_CHECKING:
    from ottla.fetch.bounds import CommittedBy

_LAST_OFFSET = (1 << 63) - 1
_LAST_PARTITION = (1 << 31) - 1
_RANGE = re.compile(r"\s*([0-9]+)\s*(?:-\s*([0-9]+)\s*)?", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]+", re.ASCII)
_SHIFT = re.compile(r"[+-]?[0-9]+", re.ASCII)
_WORDS: dict[str, Literal["earliest", "latest"]] = {"earliest": "earliest", "latest": "latest"}
_ELSEWHERE = {"beginning": "earliest", "smallest": "earliest", "end": "latest", "largest": "latest"}
"""What other tools call these."""
_LONGEST_TIME = 15
"""Digits of milliseconds until the year 9999."""
_MANY = 100_000
"""More partitions than any cluster has: a typing error."""


@dataclass(frozen=True, slots=True)
class LastRecords:
    """The place `count` offsets before the end of each partition."""

    count: int


@dataclass(frozen=True, slots=True)
class Shift:
    """The place `by` offsets after the present position; before it if negative."""

    by: int


ReaderPlace: TypeAlias = "Literal['earliest', 'latest'] | int | datetime | CommittedBy"
"""A place that the library understands, too."""
Place: TypeAlias = "ReaderPlace | LastRecords | Shift"


class Kind(Enum):
    """The kinds of places, with how they are written."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "an offset"
    LAST = "-N (the last N of each partition)"
    TIME = "a time (2026-01-31T12:00Z, -2h)"
    GROUP = "group:NAME (what it has committed)"
    SHIFT = "shift:+N (or -N)"


def kind_of(place: Place) -> Kind:
    """Return the kind of a place."""
    match place:
        case "earliest":
            return Kind.EARLIEST
        case "latest":
            return Kind.LATEST
        case int():
            return Kind.OFFSET
        case datetime():
            return Kind.TIME
        case LastRecords():
            return Kind.LAST
        case Shift():
            return Kind.SHIFT
    return Kind.GROUP


def describe(kinds: Collection[Kind], *, is_end: bool = False, is_absolute: bool = False) -> str:
    """Return how places of these kinds are written, as part of a sentence.

    `is_end`: of places to end at. `is_absolute`: without times that are relative to now.
    """
    texts = {kind: kind.value for kind in Kind}
    if is_end:
        texts[Kind.LAST] = "-N (N before the end of each partition)"
    if is_absolute:
        texts[Kind.TIME] = "a time (2026-01-31T12:00Z)"
    *others, last = (texts[kind] for kind in Kind if kind in kinds)
    return f"{', '.join(others)} or {last}" if others else last


def parse_place(
    text: str,
    *,
    now: datetime,
    kinds: Collection[Kind] = frozenset(Kind),
    is_end: bool = False,
    is_absolute: bool = False,
) -> Place:
    """Return the place that the text names. Raises ValueError if it is not a place, or not one of these kinds.

    The error lists what `describe` returns for these arguments.
    """
    accepted = describe(kinds, is_end=is_end, is_absolute=is_absolute)
    try:
        place = _parse(text, now)
    except times.NotATime as error:
        if Kind.TIME in kinds and _looks_like_a_time(text.strip()):
            raise ValueError(error.absolute if is_absolute else str(error)) from error
        raise ValueError(f"{text!r} is not a place in a topic: {_meant(text)}use {accepted}") from error
    if kind_of(place) not in kinds:
        raise ValueError(f"{text!r} cannot be used here: use {accepted}")
    return place


def _meant(text: str) -> str:
    """Return what a place of another tool is called here, as a sentence before the list of places."""
    word = text.strip()
    milliseconds = word[2:] if word[:2] in ("s@", "e@") else ""
    is_time = milliseconds.isdecimal() and len(milliseconds) <= _LONGEST_TIME
    here = f"@{int(milliseconds) / 1000:.15g}" if is_time else _ELSEWHERE.get(word)
    return "" if here is None else f"it is {here} here; "


def check_order(start: Place, stop: Place | None) -> None:
    """Raise ValueError if the end obviously lies before the start."""
    match start, stop:
        case int(), int():
            is_before = stop < start
        case datetime(), datetime():
            is_before = stop < start
        case LastRecords(), LastRecords():
            is_before = stop.count > start.count
        case _:
            is_before = stop is not None and start == "latest" and isinstance(stop, LastRecords) and stop.count > 0
    if is_before:
        raise ValueError(f"--until {_shown(stop)} lies before --from {_shown(start)}")


def _shown(place: Place | None) -> str:
    if isinstance(place, LastRecords):
        return f"-{place.count}"
    return place.isoformat(timespec="seconds") if isinstance(place, datetime) else str(place)


def _parse(text: str, now: datetime) -> Place:
    word = text.strip()
    if word in _WORDS:
        return _WORDS[word]
    if _NUMBER.fullmatch(word):
        number = int(word)
        if abs(number) > _LAST_OFFSET:
            raise ValueError(f"{text!r} is not an offset: the largest is {_LAST_OFFSET}")
        return LastRecords(-number) if word.startswith("-") else number
    if word.startswith("group:"):
        name = word.removeprefix("group:")
        if not name:
            raise ValueError("the name of the group is missing, for example group:billing")
        from ottla.fetch.bounds import CommittedBy

        return CommittedBy(name)
    if word.startswith("shift:"):
        if not _SHIFT.fullmatch(distance := word.removeprefix("shift:")):
            raise ValueError(f"{text!r} is not a shift, for example shift:-1000 or shift:+50")
        return Shift(int(distance))
    return times.parse_time(text, now=now)


def _looks_like_a_time(word: str) -> bool:
    return word.startswith("@") or (word[:5].rstrip("-").isdecimal() and "-" in word)


def parse_partitions(text: str) -> list[int]:
    """Return the partitions in `0,3-5`, sorted, each once. Raises ValueError if the text is something else."""
    partitions: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last or last > _LAST_PARTITION or last - first > _MANY:
            raise ValueError(f"{text!r} are not partitions: write numbers and ranges, for example 0,3-5")
        partitions.update(range(first, last + 1))
    return sorted(partitions)
