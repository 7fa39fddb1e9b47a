"""Translating offsets: gaps at the end of the source, batches that the journal does not count yet, lag from both."""

from __future__ import annotations

from dataclasses import replace

from ottla.jobs.mirror_maps import PartitionMap, settle
from ottla.jobs.mirror_status import (
    Lag,
    PartitionStatus,
    ProcessNote,
    estimated_position,
    highest,
    lag_of,
    noted_position,
    total,
)
from ottla.mirror.terms import Mark, Run, Term
from ottla.model import OffsetRange, TopicPartition
from ottla.wire.batch import IS_CONTROL, IS_TRANSACTIONAL, BatchHeader

SOURCE, TARGET = TopicPartition("clicks", 0), TopicPartition("copy", 0)
# Ten records from 100 on, a gap of five, then more; the marker of the takeover is at target offset 0.
TERM = Term(
    index=0,
    producer_id=7,
    epoch=3,
    source_id=None,
    target_id=None,
    start=Mark(0, 100, 1),
    runs=(Run(0, 100, 1, 0), Run(10, 115, 11, 0)),
    mark=Mark(10, 110, 11),
)


def _batch(target: int, number: int, count: int, *, producer_id: int = 7, attributes: int = 0) -> BatchHeader:
    return BatchHeader(target, 49, 0, 2, 0, attributes, count - 1, 0, 0, producer_id, 3, number, count)


def test_offsets_of_gaps_lead_to_the_next_record() -> None:
    known = PartitionMap(SOURCE, TARGET, (replace(TERM, mark=Mark(15, 120, 16)),))
    assert [known.to_target(offset) for offset in (99, 100, 109, 110, 114, 115, 119, 120, 121)] == [
        *(None, 1, 10, 11, 11, 11, 15, 16, None),
    ]
    assert [known.to_source(offset) for offset in (0, 1, 10, 11, 15, 16)] == [None, 100, 109, 115, 119, 120]


def test_markers_at_the_end_of_the_source_count_as_mirrored_once_the_mirror_has_passed_them() -> None:
    terms = (replace(TERM, mark=Mark(15, 120, 16)),)
    assert PartitionMap(SOURCE, TARGET, terms).to_target(122) is None
    passed = PartitionMap(SOURCE, TARGET, terms, reached=122)
    assert [passed.to_target(offset) for offset in (121, 122, 123)] == [16, 16, None]


def test_a_partition_without_records_maps_its_start_to_the_start() -> None:
    empty = PartitionMap(SOURCE, TARGET, (replace(TERM, runs=(), mark=None),), reached=103)
    assert [empty.to_target(offset) for offset in (99, 100, 103, 104)] == [None, 1, 1, None]


def test_batches_behind_the_mark_are_counted_from_their_headers() -> None:
    settled = settle(TERM, [_batch(11, 10, 3), _batch(14, 13, 4)])
    assert settled.mark == Mark(17, 122, 18)
    assert PartitionMap(SOURCE, TARGET, (settled,)).to_target(121) == 17


def test_settling_stops_at_what_it_cannot_prove() -> None:
    marker = _batch(14, -1, 1, attributes=IS_CONTROL | IS_TRANSACTIONAL)
    assert settle(TERM, [_batch(11, 10, 3), marker]).mark == Mark(13, 118, 14)
    assert settle(TERM, [_batch(11, 0, 2, producer_id=99), _batch(13, 10, 3)]).mark == TERM.mark
    assert settle(TERM, [_batch(12, 10, 3)]).mark == TERM.mark, "somewhere else than the runs say"
    assert settle(TERM, []).mark == TERM.mark


def test_lag_is_what_readers_of_the_source_see_and_the_mirror_has_not() -> None:
    log = OffsetRange("clicks", 0, 100, 200)
    assert lag_of(200, log, size_bytes=1000, newest=9.0, mirrored=5.0) == Lag(0, 0, 0.0)
    assert lag_of(150, log, size_bytes=1000, newest=9.0, mirrored=5.5) == Lag(50, 500, 3.5)
    assert lag_of(0, log, size_bytes=None, newest=9.0, mirrored=None) == Lag(100, None, None)
    assert lag_of(150, log, size_bytes=1000, newest=5.0, mirrored=9.0).seconds == 0.0
    assert lag_of(300, log, size_bytes=1000, newest=1, mirrored=1) == Lag(0, 0, 0.0)
    assert (total([None, 3, 4]), total([None]), highest([None, 1.0, 2.5]), highest([])) == (7, None, 2.5, None)


def test_a_running_mirror_is_where_its_log_ends_not_where_its_last_mark_is() -> None:
    assert estimated_position([TERM], None) == 110
    assert estimated_position([TERM], 11) == 110
    assert estimated_position([TERM], 14) == 118
    assert estimated_position([replace(TERM, runs=())], 14) == 110, "runs that are not in the journal yet"


def test_a_note_says_where_the_mirror_is_only_in_its_own_term() -> None:
    status = PartitionStatus(SOURCE, TARGET, 123, term=(7, 3), batches=4, passed_on=3, error="why")
    assert PartitionStatus.from_json(status.to_json()) == status
    assert status.share == 0.75
    assert noted_position([TERM], status) == 123
    assert noted_position([replace(TERM, epoch=4)], status) == 0
    assert noted_position([TERM], None) == 0


def test_a_process_that_is_silent_for_a_minute_is_stale() -> None:
    note = ProcessNote(host="h", pid=1, since=0.0, at=1000.0, state="running", source="a:1")
    assert not note.is_stale(1059.0)
    assert note.is_stale(1061.0)
    assert not replace(note, state="ended").is_stale(9999.0)
