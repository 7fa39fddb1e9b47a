"""Compares tiers: for each topic and bucket, whether all of it arrived. Pure: the time comes in.

The counts of tiers, in the order in which records pass them, come in; rows go out, one for each bucket, with a verdict
on each tier: compared with the last tier before it whose count is known. Equal counts with different fingerprints are
never complete: a loss may hide behind a duplicate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from ottla.audit.counts import TierCount
from ottla.errors import InputError
from ottla.tally.values import APPEND_TIME, Slice

DEFAULT_DELAY = 300.0
"""Seconds after the end of a bucket in which a difference may still be lateness."""


def is_silent(last: float, seconds: int, *, now: float, delay: float, stop: float | None) -> bool:
    """Whether a tier that last counted then has nothing to say about buckets that have closed.

    `stop` is where a comparison ends that does not ask for the present. At least five minutes are waited for, so that
    a comparison right after a count, without any delay, is about what was counted.
    """
    closed = now - max(delay, DEFAULT_DELAY) - seconds
    return last < closed and (stop is None or last < stop)


class Verdict(StrEnum):
    """What a comparison says, from best to worst."""

    COMPLETE = "complete"
    LATE = "late"
    UNKNOWN = "unknown"
    ALTERED = "altered"
    DUPLICATED = "duplicated"
    MISSING = "missing"

    @property
    def is_fault(self) -> bool:
        """Whether something is certainly wrong."""
        return self in (Verdict.MISSING, Verdict.DUPLICATED, Verdict.ALTERED)


_SEVERITY = {verdict: severity for severity, verdict in enumerate(Verdict)}


@dataclass(frozen=True, slots=True)
class Judged:
    """One tier of a row."""

    tier: str
    verdict: Verdict
    records: int | None
    """What the tier counted; None if that is not known."""
    bytes: int | None
    fingerprint: str | None
    difference: int = 0
    """Records more (or, negative, fewer) than in the tier it was compared with."""
    detail: str = ""
    against: str = ""
    """The tier it was compared with; empty for the first one."""

    def __str__(self) -> str:
        """The verdict with its number, such as `missing 3`."""
        is_counted = self.verdict in (Verdict.MISSING, Verdict.DUPLICATED)
        return f"{self.verdict} {abs(self.difference):,}" if is_counted else str(self.verdict)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "tier": self.tier,
            "verdict": str(self.verdict),
            "records": self.records,
            "bytes": self.bytes,
            "fingerprint": self.fingerprint,
            "difference": self.difference,
            "against": self.against or None,
            "detail": self.detail or None,
        }


@dataclass(frozen=True, slots=True)
class Row:
    """One bucket of a topic."""

    topic: str
    start: int
    seconds: int
    tiers: tuple[Judged, ...]

    @property
    def worst(self) -> Judged:
        """The worst verdict, and the first tier that has it."""
        return max(self.tiers, key=lambda judged: _SEVERITY[judged.verdict])

    @property
    def verdict(self) -> Verdict:
        """The worst verdict."""
        return self.worst.verdict

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        worst = self.worst
        return {
            "topic": self.topic,
            "start": self.start,
            "seconds": self.seconds,
            "verdict": str(self.verdict),
            "records": abs(worst.difference) if worst.verdict in (Verdict.MISSING, Verdict.DUPLICATED) else None,
            "tier": worst.tier if worst.verdict is not Verdict.COMPLETE else None,
            "detail": worst.detail or None,
            "tiers": [judged.to_json() for judged in self.tiers],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How to judge."""

    now: float
    delay: float = DEFAULT_DELAY
    """A bucket closes this long after its end."""
    by_partition: bool = True
    """Whether records must be in the same partition of each tier, where tiers have equally many."""


def compare_topic(topic: str, tiers: Sequence[TierCount], rules: Rules) -> list[Row]:
    """Judge every bucket that any tier has. Raises `InputError` if tiers have buckets of different length."""
    lengths = {count.bucket_seconds for count in tiers if count.slices}
    if len(lengths) > 1:
        found = ", ".join(f"{count.tier} {count.bucket_seconds:,} s" for count in tiers)
        raise InputError(
            f"topic {topic} was counted in buckets of different length: {found}; compare tiers of one length"
        )
    seconds = lengths.pop() if lengths else 1
    doubtful = {bucket for count in tiers for doubt in count.doubts if (bucket := doubt.single) is not None}
    buckets = sorted({bucket for count in tiers for bucket in count.by_bucket} | doubtful)
    return [Row(topic, bucket, seconds, _judge_bucket(bucket, seconds, tiers, rules)) for bucket in buckets]


def _judge_bucket(bucket: int, seconds: int, tiers: Sequence[TierCount], rules: Rules) -> tuple[Judged, ...]:
    judged: list[Judged] = []
    known: TierCount | None = None
    for count in tiers:
        doubt = count.doubt(bucket)
        if doubt is not None:
            judged.append(Judged(count.tier, Verdict.UNKNOWN, None, None, None, detail=doubt.reason))
            continue
        verdict = _judge(bucket, seconds, known, count, rules)
        if known is None and judged and verdict.verdict is Verdict.COMPLETE:
            verdict = replace(verdict, verdict=Verdict.UNKNOWN, detail="no tier before it is known")
        judged.append(verdict)
        known = count
    return tuple(judged)


def _judge(bucket: int, seconds: int, left: TierCount | None, right: TierCount, rules: Rules) -> Judged:
    mine = right.by_bucket.get(bucket)
    shown = (0, 0, None) if mine is None else (mine.count, mine.bytes, mine.fingerprint)
    is_open = rules.now < bucket + seconds + rules.delay
    if left is None:
        if not is_open and right.horizon < bucket + seconds:
            return Judged(right.tier, Verdict.UNKNOWN, *shown, detail="not counted since")
        return Judged(right.tier, Verdict.COMPLETE, *shown)
    if left.time != right.time and left.by_bucket and right.by_bucket:
        text = "one of the tiers has the times of its brokers: buckets cannot be compared"
        if APPEND_TIME not in (left.time, right.time):
            text = f"{left.tier} was counted by {left.time}, {right.tier} by {right.time}: buckets cannot be compared"
        return Judged(right.tier, Verdict.UNKNOWN, *shown, detail=text, against=left.tier)
    theirs = left.by_bucket.get(bucket)
    difference = shown[0] - (0 if theirs is None else theirs.count)
    verdict, detail = _difference(theirs, mine, difference)
    if verdict is Verdict.COMPLETE and rules.by_partition and 0 < left.partitions == right.partitions:
        verdict, detail = _partitions(bucket, left, right) or (verdict, detail)
    behind = next((count for count in (left, right) if count.horizon < bucket + seconds), None)
    if is_open and verdict is not Verdict.COMPLETE:
        verdict, detail = Verdict.LATE, f"{difference:+,} so far" if difference else "different so far"
    elif not is_open and behind is not None:
        verdict, detail = Verdict.UNKNOWN, f"{behind.tier} was not counted since"
    return Judged(right.tier, verdict, *shown, difference=difference, detail=detail, against=left.tier)


def _difference(left: Slice | None, right: Slice | None, difference: int) -> tuple[Verdict, str]:
    if difference < 0:
        return Verdict.MISSING, ""
    if difference > 0:
        return Verdict.DUPLICATED, ""
    if left is None or right is None:
        return Verdict.COMPLETE, ""
    if left.fingerprint is None or right.fingerprint is None:
        return Verdict.COMPLETE, "by count alone"
    if left.fingerprint != right.fingerprint:
        return Verdict.ALTERED, "the same number of records, but not the same records"
    return Verdict.COMPLETE, ""


def _partitions(bucket: int, left: TierCount, right: TierCount) -> tuple[Verdict, str] | None:
    """Whether records are in other partitions than before."""
    ours, theirs = left.slices.get(bucket, {}), right.slices.get(bucket, {})
    moved = [
        partition for partition in sorted({*ours, *theirs}) if not _is_same(ours.get(partition), theirs.get(partition))
    ]
    if not moved:
        return None
    return Verdict.ALTERED, f"records are in other partitions: {', '.join(map(str, moved[:8]))}"


def _is_same(left: Slice | None, right: Slice | None) -> bool:
    if left is None or right is None:
        return (left or right or _EMPTY).count == 0
    has_sums = left.fingerprint is not None and right.fingerprint is not None
    return left.count == right.count and (not has_sums or left.fingerprint == right.fingerprint)


_EMPTY = Slice(start=0, count=0, bytes=0, fingerprint=None, first=0.0, last=0.0)
