"""Where to continue after a takeover: what the end of the target's log and the terms of the journal say together.

The headers of the last batches before our marker and the stored terms come in. Out goes the source offset to continue
at, and what is wrong, if anything: another producer wrote there, the target lost records, or the journal does not know
the last batch. Pure.

Why this is exact. A holder writes a run to the journal, and waits for the acknowledgement, before it sends the first
batch of that run. Its batches are idempotent: the broker appends them in order and each once. A successor first has the
broker append a marker of a higher epoch. After that the broker refuses every batch of the predecessor, so whatever the
predecessor wrote lies before the marker, and the run of its last batch is in the journal. The sequence of that batch
and its run give the source offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple
from uuid import UUID

from ottla.mirror.terms import Term, written_counts
from ottla.wire.batch import BatchHeader


class Fault(Enum):
    """What does not fit together."""

    FOREIGN_WRITER = "another producer has written to the target"
    TARGET_LOST_RECORDS = "the target has lost records that it had acknowledged"
    TARGET_REPLACED = "the target topic was deleted and created again"
    SOURCE_REPLACED = "the source topic was deleted and created again"
    UNPROVEN = "the last records of the target were deleted before they were accounted for"
    JOURNAL_LOST = "the journal does not know the last batch of this link in the target"
    NOT_EMPTY = "the target already has records that this link did not write"


class Finding(NamedTuple):
    """A fault, with what is known about it."""

    fault: Fault
    detail: str


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of the target's log: from where it was read to our marker."""

    headers: Sequence[BatchHeader]
    """The batches before the marker, in order, those of other producers included."""
    log_start: int
    marker: int
    """The offset of our marker."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where to continue."""

    source: int | None
    """The source offset, None for the start that the link is configured with."""
    leader_epoch: int
    """The leader epoch of the record before it at the source, -1 if unknown."""
    previous: Term | None
    """The last term that counts."""
    previous_count: int
    """How many records it wrote."""
    findings: tuple[Finding, ...] = ()
    """What is wrong. The caller's policy decides whether it continues nevertheless."""


def scan_start(terms: Sequence[Term], log_start: int) -> int:
    """Return the target offset from which on the log must be read: behind it everything is accounted for."""
    return max(log_start, max(0, terms[-1].reached.target - 1)) if terms else log_start


def locate(
    terms: Sequence[Term], tail: Tail, *, producer_id: int, source_id: UUID | None, target_id: UUID | None
) -> Position:
    """Return where to continue. `terms` are those of the partition, in order; `tail` begins at `scan_start`."""
    kept = [term for term in terms if _is_same(term.target_id, target_id)]
    findings: list[Finding] = []
    if terms and not kept:
        findings.append(Finding(Fault.TARGET_REPLACED, f"it has another id since term {terms[-1].index}"))
    own_ids = {term.producer_id for term in kept} | {producer_id}
    foreign = [header for header in tail.headers if header.producer_id not in own_ids]
    if not kept:
        if foreign:
            findings.append(Finding(Fault.NOT_EMPTY, _described(foreign)))
        ours = [header for header in tail.headers if _is_data_of(header, own_ids)]
        if ours:
            findings.append(Finding(Fault.JOURNAL_LOST, f"it is at offset {ours[-1].base_offset}"))
        return Position(None, -1, None, 0, tuple(findings))
    if foreign:
        findings.append(Finding(Fault.FOREIGN_WRITER, _described(foreign)))
    last, count, finding = _last_written(kept, tail)
    if finding is not None:
        findings.append(finding)
    source, leader_epoch = last.source_after(count)
    if not _is_same(last.source_id, source_id):
        findings.append(Finding(Fault.SOURCE_REPLACED, f"it has another id since term {last.index}"))
        source, leader_epoch = 0, -1
    return Position(source, leader_epoch, last, count, tuple(findings))


def _last_written(terms: Sequence[Term], tail: Tail) -> tuple[Term, int, Finding | None]:
    """Return the last term that counts, how many records it wrote, and what is wrong, if anything."""
    by_identity = {term.identity: term for term in terms}
    counts = written_counts(terms)
    ours = [header for header in tail.headers if not header.is_control and header.count]
    for header in reversed(ours):
        term = by_identity.get((header.producer_id, header.producer_epoch))
        if term is None:
            if header.producer_id in {known.producer_id for known in terms}:
                detail = f"it is at offset {header.base_offset}, epoch {header.producer_epoch}"
                return terms[-1], terms[-1].reached.number, Finding(Fault.JOURNAL_LOST, detail)
            continue
        number = term.number_after(header.base_sequence, header.count)
        later = terms[terms.index(term) + 1 :]
        if number < counts[term.identity] or any(counts[each.identity] for each in later):
            # More is known to be acknowledged, and the log ends before it.
            return term, number, _lost(terms[-1], tail)
        return term, number, None
    latest = terms[-1]
    reached = latest.reached
    if tail.marker < reached.target or _is_overwritten(latest, tail):
        return *_before(terms, tail.log_start), _lost(latest, tail)
    if tail.log_start > reached.target:
        number = reached.number + tail.marker - reached.target
        detail = f"offsets [{reached.target}, {tail.log_start}) of the target are gone"
        return latest, number, Finding(Fault.UNPROVEN, detail)
    return latest, reached.number, None


def _is_overwritten(term: Term, tail: Tail) -> bool:
    """Whether something else is where the last record before the mark was, or the marker of a term without records.

    Each takeover appends a marker, so a log that was cut back soon ends behind the mark again.
    """
    last = term.reached.target - 1
    there = next((header for header in tail.headers if header.base_offset <= last < header.next_offset), None)
    return there is not None and (there.producer_id, there.producer_epoch) != term.identity


def _lost(term: Term, tail: Tail) -> Finding:
    data = [header.next_offset for header in tail.headers if not header.is_control and header.count]
    end = max(data, default=min(tail.marker, term.reached.target - 1))
    return Finding(
        Fault.TARGET_LOST_RECORDS, f"it had everything before offset {term.reached.target} and now ends at {end}"
    )


def _before(terms: Sequence[Term], end: int) -> tuple[Term, int]:
    """Return the last term that began before this target offset, and how many of its records lie before it."""
    term = next((term for term in reversed(terms) if term.start.target <= end), terms[0])
    run = next((run for run in reversed(term.runs) if run.target <= end), None)
    return term, 0 if run is None else run.number + end - run.target


def _is_data_of(header: BatchHeader, producer_ids: Iterable[int]) -> bool:
    return not header.is_control and header.producer_id in producer_ids


def _is_same(known: UUID | None, current: UUID | None) -> bool:
    return known is None or current is None or known == current


def _described(headers: Sequence[BatchHeader]) -> str:
    producers = sorted({header.producer_id for header in headers})
    named = ", ".join("without id" if producer < 0 else str(producer) for producer in producers[:5])
    records = sum(header.count for header in headers)
    first = headers[0].base_offset
    return f"{records:,} records of producers {named}, the first at offset {first}"
