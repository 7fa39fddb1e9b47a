"""Terms: which source offset each record stands for that one holder wrote to a target partition.

A mirror holds a partition for one term, under one producer id and epoch. Within a term the records it writes are
numbered 0, 1, 2, ... (the sequence numbers of its batches). A `Run` says that from some number on, source offsets,
target offsets and numbers all rise together by one; a new run begins where the source has a gap. A term with its runs
is the exact map between the two logs. Pure: `journal.py` stores terms, `takeover.py` draws conclusions from them.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from uuid import UUID

_SEQUENCES = 1 << 31
"""Sequence numbers of batches wrap around; the numbers of a term do not."""


class Run(NamedTuple):
    """Records whose source offset, target offset and number rise together from here on."""

    number: int
    """How many records of the term come before it."""
    source: int
    target: int
    leader_epoch: int
    """The leader epoch of these records at the source, -1 if unknown."""


class Mark(NamedTuple):
    """How far a term is: `number` records are acknowledged. `source` and `target` are the offsets after the last."""

    number: int
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Term:
    """One holder's time with one target partition."""

    index: int
    """Terms of a partition are counted from 0."""
    producer_id: int
    epoch: int
    source_id: UUID | None
    """The id of the source topic: its name may belong to another topic by now."""
    target_id: UUID | None
    start: Mark
    """Where it began: number 0, the first source offset to mirror, and the target offset of the first record."""
    start_epoch: int = -1
    """The leader epoch at the source of the record before the start, -1 if unknown: with it, a source log that was cut
    back is noticed, also by the successor of a term that wrote nothing."""
    previous: tuple[int, int] | None = None
    """The identity of the term before it."""
    previous_count: int = 0
    """How many records that term wrote."""
    chunk: int = 0
    """A term with many runs is stored in several entries, counted from 0."""
    runs: tuple[Run, ...] = ()
    mark: Mark | None = None
    """What is known to be acknowledged. It trails behind, except after an orderly end or a pause."""

    @property
    def identity(self) -> tuple[int, int]:
        """Producer id and epoch, as in the batches of the term."""
        return self.producer_id, self.epoch

    @property
    def reached(self) -> Mark:
        """The last mark, or the start."""
        return self.mark or self.start

    def number_after(self, base_sequence: int, count: int) -> int:
        """Return the number after a batch, from its sequence, which wraps around: the one nearest to the mark.

        It is below the mark only if the log was cut back.
        """
        mark, half = self.reached.number, _SEQUENCES // 2
        return mark + (base_sequence + count - mark + half) % _SEQUENCES - half

    def source_after(self, number: int) -> tuple[int, int]:
        """Return the source offset to continue at after `number` records, and the leader epoch of the last of them.

        Raises `LookupError` if no run covers the record before it: the term is not the one that wrote it.
        """
        if number == self.start.number:
            return self.start.source, self.start_epoch
        index = bisect.bisect_right(self.runs, number - 1, key=lambda run: run.number) - 1
        if index < 0:
            raise LookupError(f"no run of term {self.index} covers record {number - 1}")
        run = self.runs[index]
        return run.source + number - run.number, run.leader_epoch

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `from_json` accepts."""
        return {
            "term": self.index,
            "producer_id": self.producer_id,
            "epoch": self.epoch,
            "source_id": None if self.source_id is None else str(self.source_id),
            "target_id": None if self.target_id is None else str(self.target_id),
            "start": list(self.start),
            "start_epoch": self.start_epoch,
            "previous": None if self.previous is None else list(self.previous),
            "previous_count": self.previous_count,
            "chunk": self.chunk,
            "runs": [list(run) for run in self.runs],
            "mark": None if self.mark is None else list(self.mark),
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Term:
        """Build a term from the result of `to_json`. Raises `KeyError`, `TypeError` or `ValueError` if it is none."""
        return cls(
            index=int(row["term"]),
            producer_id=int(row["producer_id"]),
            epoch=int(row["epoch"]),
            source_id=None if row["source_id"] is None else UUID(row["source_id"]),
            target_id=None if row["target_id"] is None else UUID(row["target_id"]),
            start=Mark(*map(int, row["start"])),
            start_epoch=int(row.get("start_epoch", -1)),  # missing in entries of version 0.1
            previous=None if row["previous"] is None else (int(row["previous"][0]), int(row["previous"][1])),
            previous_count=int(row["previous_count"]),
            chunk=int(row["chunk"]),
            runs=tuple(Run(*map(int, run)) for run in row["runs"]),
            mark=None if row["mark"] is None else Mark(*map(int, row["mark"])),
        )


def in_order(terms: Iterable[Term]) -> list[Term]:
    """Sort terms as they followed each other. Of two with the same index, the higher epoch came later."""
    return sorted(terms, key=lambda term: (term.index, term.epoch))


def joined(chunks: Sequence[Term]) -> Term:
    """Join the entries of a term, in the order of their chunks. Each begins with the last run of the one before."""
    runs = {run.number: run for chunk in chunks for run in chunk.runs}
    return replace(chunks[-1], runs=tuple(runs[number] for number in sorted(runs)))


class Span(NamedTuple):
    """Source offsets `[source, source + count)` that are target offsets `[target, target + count)`."""

    source: int
    target: int
    count: int  # type: ignore[assignment]  # hides tuple.count


class OffsetMap:
    """The exact map between the offsets of a source partition and those of its mirror."""

    def __init__(self, terms: Iterable[Term]) -> None:
        self._spans = sorted(_spans(in_order(terms)), key=lambda span: span.target)
        # If the source log was cut back and mirrored again, the later copy counts: it is the one that still exists.
        self._by_source: list[Span] = []
        for span in self._spans:
            while self._by_source and self._by_source[-1].source >= span.source:
                self._by_source.pop()
            if self._by_source and (last := self._by_source[-1]).source + last.count > span.source:
                self._by_source[-1] = last._replace(count=span.source - last.source)
            self._by_source.append(span)

    @property
    def spans(self) -> Sequence[Span]:
        """All spans, by target offset."""
        return self._spans

    @property
    def source_end(self) -> int:
        """The source offset after the last mirrored record, 0 if there is none."""
        return self._by_source[-1].source + self._by_source[-1].count if self._by_source else 0

    @property
    def target_end(self) -> int:
        """The target offset after the last mirrored record, 0 if there is none."""
        return self._spans[-1].target + self._spans[-1].count if self._spans else 0

    def target_of(self, source: int) -> int | None:
        """Return where a reader of the source at this offset continues in the target: at the same record.

        If that record does not exist (a gap in the source), it is the next one. The end of what is mirrored maps to
        the end. None if the offset is not mirrored yet, or was mirrored before the map begins.
        """
        index = bisect.bisect_right(self._by_source, source, key=lambda span: span.source) - 1
        if index < 0:
            return None
        span = self._by_source[index]
        if source < span.source + span.count:
            return span.target + source - span.source
        if index + 1 < len(self._by_source):
            return self._by_source[index + 1].target
        return span.target + span.count if source == span.source + span.count else None

    def source_of(self, target: int) -> int | None:
        """Return where a reader of the target at this offset continues in the source, as `target_of` does."""
        index = bisect.bisect_right(self._spans, target, key=lambda span: span.target) - 1
        if index < 0:
            return None
        span = self._spans[index]
        if target < span.target + span.count:
            return span.source + target - span.target
        if index + 1 < len(self._spans):
            return self._spans[index + 1].source
        return span.source + span.count  # behind the last record there are only markers


def written_counts(terms: Sequence[Term]) -> dict[tuple[int, int], int]:
    """Return how many records each term is known to have written, by its identity.

    The successor of a term has counted what it wrote; the last one is at its mark. A term in between that no successor
    knows was shut out before it wrote anything.
    """
    counted = {term.previous: term.previous_count for term in terms}
    return {
        term.identity: counted.get(term.identity, term.reached.number if term is terms[-1] else 0) for term in terms
    }


def _spans(terms: Sequence[Term]) -> Iterable[Span]:
    counts = written_counts(terms)
    for term in terms:
        end = counts[term.identity]
        ends = [run.number for run in term.runs[1:]]
        for run, following in zip(term.runs, [*ends, end], strict=False):
            stop = min(end, following)
            if stop > run.number:
                yield Span(run.source, run.target, stop - run.number)
