"""The cursor against tables and a plain model: responses, the end of a range, transactions."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.rows import quick, thorough

from ottla.errors import BrokerError, CorruptBatch, ErrorCode, OttlaError, UnsupportedFormat
from ottla.fetch.cursor import Cursor, Diverged, OutOfRange, Piece, ResponseMemory, fetchable, moved, without_aborted
from ottla.wire.batch import IS_TRANSACTIONAL, Codec
from ottla.wire.fetch import Aborted, Diverging

from .logs import AT, fetched, marker, of_transaction, offsets_in, parse, parted, plain, took


def new(start: int = 0, stop: int = 1000) -> Cursor:
    return Cursor(AT, start, stop)


# What is asked for


def test_of_a_range_hardly_more_is_asked_for_than_there_is_left() -> None:
    assert new(0, 10).fetch_partition(8 << 20).max_bytes < 100_000, (
        "the size of records is unknown and assumed to be small"
    )
    cursor = new(0, 1_000_000)
    answer = fetched(plain(0, 10), plain(10, 10))
    took(cursor, answer)
    assert cursor.fetch_partition(8 << 20).max_bytes == 8 << 20
    cursor = new(0, 1020)
    took(cursor, answer)
    left = 1000 * len(answer.records) / 20
    assert left < cursor.fetch_partition(8 << 20).max_bytes < 1.2 * left + (1 << 16)
    assert cursor.fetch_partition(100).max_bytes == 100


def test_what_has_no_end_is_asked_for_as_much_as_is_allowed() -> None:
    cursor = Cursor(AT, 0)
    assert cursor.fetch_partition(8 << 20).max_bytes == 8 << 20
    took(cursor, fetched(plain(0, 10)))
    assert cursor.fetch_partition(8 << 20).max_bytes == 8 << 20


# What an answer means


def test_an_answer_moves_the_position_behind_its_last_batch() -> None:
    cursor = new()
    piece = took(cursor, fetched(plain(0, 10), plain(10, 5)))
    assert (piece.start, piece.next_offset, cursor.position) == (0, 15, 15)
    assert offsets_in(piece) == list(range(15))
    assert not cursor.is_over


def test_a_partial_batch_at_the_end_is_asked_for_again() -> None:
    cursor = new()
    piece = took(cursor, fetched(plain(0, 10), plain(10, 5)[:-3]))
    assert offsets_in(piece) == list(range(10))
    assert cursor.position == 10


@given(st.integers(0, 40), st.integers(0, 45), st.lists(st.integers(1, 7), min_size=1, max_size=8))
@thorough
def test_a_range_is_read_exactly_wherever_its_batches_end(start: int, length: int, sizes: list[int]) -> None:
    bases = [sum(sizes[:number]) for number in range(len(sizes))]
    batches = [plain(base, size) for base, size in zip(bases, sizes, strict=True)]
    end = sum(sizes)
    stop = min(end, start + length)
    cursor = new(start, stop)
    offsets: list[int] = []
    while not cursor.is_over:
        first = max(number for number, base in enumerate(bases) if base <= cursor.position)
        offsets += offsets_in(took(cursor, fetched(*batches[first : first + 2])))
    assert offsets == list(range(start, stop))


def test_a_hole_that_compaction_left_is_no_error() -> None:
    cursor = new(3, 100)
    piece = took(cursor, fetched(plain(0, deltas=(0, 5), last=9), plain(20, deltas=(), last=9), plain(40, 1)))
    assert offsets_in(piece) == [5, 40]
    assert cursor.position == 41


def test_a_range_that_ends_in_a_hole_ends() -> None:
    cursor = new(0, 15)
    piece = took(cursor, fetched(plain(30, 5)))
    assert offsets_in(piece) == []
    assert cursor.is_over
    assert piece.next_offset >= piece.stop


def test_an_empty_answer_is_nothing_new_and_its_waiting_is_timed_from_the_first_one() -> None:
    cursor = new()
    for now in (5.0, 6.0, 7.0):
        assert cursor.take(fetched(), ResponseMemory(0), now, committed_only=False) is None
    assert cursor.waiting_since == 5.0
    took(cursor, fetched(plain(0)), now=8.0)
    assert cursor.waiting_since == math.inf


def test_time_without_a_request_does_not_count_as_waiting() -> None:
    cursor = new()
    cursor.take(fetched(), ResponseMemory(0), 5.0, committed_only=False)
    cursor.back_off(OttlaError("x"), 6.0, resume_at=6.5)
    cursor.postpone(100.0)
    assert (cursor.waiting_since, cursor.failing_since) == (105.0, 106.0)


def test_errors_of_the_broker_are_reported_with_partition_and_offset() -> None:
    cursor = new(7)
    assert isinstance(cursor.take(fetched(error=1), ResponseMemory(0), 0.0, committed_only=False), OutOfRange)
    error = cursor.take(fetched(error=6), ResponseMemory(0), 0.0, committed_only=False)
    assert isinstance(error, BrokerError)
    assert error.code is ErrorCode.not_leader_or_follower
    assert "t-0 at offset 7" in str(error)


def test_a_log_with_other_records_is_reported() -> None:
    cursor = new(7)
    assert cursor.take(parted(3, 5), ResponseMemory(0), 0.0, committed_only=False) == Diverged(Diverging(3, 5))
    assert cursor.take(fetched(diverging=Diverging(-1, -1)), ResponseMemory(0), 0.0, committed_only=False) is None


def test_the_epoch_of_what_was_read_goes_into_the_next_request() -> None:
    cursor = new()
    data = bytearray(plain(0, 3))
    data[12:16] = (9).to_bytes(4, "big")
    took(cursor, fetched(bytes(data)))
    assert cursor.fetch_partition(100).last_epoch == 9
    cursor.move(50)
    assert cursor.fetch_partition(100).last_epoch == -1
    assert cursor.fetch_partition(100).offset == 50


# Answers that lie


def test_batches_that_all_lie_before_the_position_are_an_error_and_no_endless_loop() -> None:
    cursor = new(50)
    with pytest.raises(CorruptBatch, match=r"batch at offset 10.*offset 50 was requested") as caught:
        took(cursor, fetched(plain(0, 10), plain(10, 10)))
    assert caught.value.base_offset == 10
    assert cursor.position == 50


def test_the_batch_that_holds_the_position_may_begin_before_it() -> None:
    assert offsets_in(took(new(5), fetched(plain(0, 10)))) == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("second", [0, 5, 9])
def test_batches_that_run_backwards_are_never_handed_out(second: int) -> None:
    cursor = new()
    assert offsets_in(took(cursor, fetched(plain(0, 10), plain(second, 10)))) == list(range(10))
    with pytest.raises(CorruptBatch):
        took(cursor, fetched(plain(second, 1), plain(second, 1)))


def test_what_lies_before_a_damaged_header_is_handed_out_first() -> None:
    damaged = bytearray(plain(10, 10))
    damaged[16] = 9  # magic
    cursor = new()
    assert offsets_in(took(cursor, fetched(plain(0, 10), bytes(damaged)))) == list(range(10))
    with pytest.raises(CorruptBatch, match="offset 10"):
        took(cursor, fetched(bytes(damaged)))
    old = bytearray(plain(0, 10))
    old[16] = 1
    with pytest.raises(UnsupportedFormat):
        took(new(), fetched(bytes(old)))


# Moving


def test_moving_voids_what_was_asked_and_not_what_was_fetched() -> None:
    cursor = new()
    took(cursor, fetched(plain(0, 10)))
    asked = cursor.generation
    cursor.is_busy = True
    cursor.move(500)
    assert cursor.generation > asked
    assert not cursor.is_busy
    assert not cursor.is_over
    cursor.move(1000)
    assert cursor.is_over


def test_a_cursor_may_be_asked_for_only_when_all_is_well() -> None:
    cursor = new()
    assert not fetchable([cursor], 0.0), "no leader is known"
    cursor.leader = 1
    assert fetchable([cursor], 0.0)
    for name, value in (("open", False), ("paused", True), ("is_busy", True), ("is_over", True)):
        before = getattr(cursor, name)
        setattr(cursor, name, value)
        assert not fetchable([cursor], 0.0), name
        setattr(cursor, name, before)
    cursor.back_off(OttlaError("x"), 1.0, resume_at=2.0)
    assert not fetchable([cursor], 1.9)
    assert fetchable([cursor], 2.0)


def test_nothing_is_read_of_an_empty_range() -> None:
    assert new(5, 5).is_over
    end = moved(new(5, 5))
    assert (end.next_offset, end.stop, end.memory.pieces) == (5, 5, 1)


# Transactions


class Step(NamedTuple):
    """The next step of a producer: it writes some records, or ends its transaction."""

    producer: int
    records: int
    """0 ends the transaction."""
    commits: bool
    transactional: bool


steps = st.lists(
    st.builds(Step, st.integers(1, 3), st.integers(0, 3), st.booleans(), st.booleans()), min_size=1, max_size=30
)


class Model:
    """The definition of transactions: a record counts if its transaction was committed, or it is in none."""

    def __init__(self, history: list[Step]) -> None:
        self.batches: list[bytes] = []
        self.counting: list[int] = []
        """Offsets of the records that count."""
        self.aborted: list[tuple[Aborted, int]] = []
        """Each aborted transaction, and the offset of its marker."""
        self.end = 0
        self.stable = 0
        pending: dict[int, list[int]] = {}
        for step in history:
            self._do(step, pending)
        first_open = min((offsets[0] for offsets in pending.values()), default=self.end)
        self.stable = first_open
        self.counting = sorted(offset for offset in self.counting if offset < self.stable)

    def _do(self, step: Step, pending: dict[int, list[int]]) -> None:
        producer = step.producer
        if step.records == 0:
            offsets = pending.pop(producer, None)
            if offsets is None:
                return
            if step.commits:
                self.counting += offsets
            else:
                self.aborted.append((Aborted(producer, offsets[0]), self.end))
            self.batches.append(marker(self.end, producer))
            self.end += 1
            return
        offsets = list(range(self.end, self.end + step.records))
        if step.transactional:
            pending.setdefault(producer, []).extend(offsets)
            self.batches.append(of_transaction(self.end, step.records, producer))
        else:
            self.counting += offsets
            self.batches.append(plain(self.end, step.records, producer=(100, 0, 0)))
        self.end += step.records

    def answer(self, position: int, most: int) -> tuple[list[bytes], list[Aborted]]:
        """Return up to `most` batches from the position on and the aborted transactions among them, as brokers do."""
        sent = [data for data in self.batches if parse(data)[0].header.next_offset > position]
        sent = [data for data in sent if parse(data)[0].header.last_offset < self.stable][:most]
        if not sent:
            return [], []
        upper = parse(sent[-1])[0].header.next_offset
        # In no particular order, including those of which only the end lies in the range.
        listed = [
            aborted for aborted, end in reversed(self.aborted) if end >= position and aborted.first_offset < upper
        ]
        return sent, listed


@given(steps, st.integers(0, 60), st.integers(1, 4))
@thorough
def test_exactly_the_committed_records_are_read_from_anywhere(history: list[Step], start: int, most: int) -> None:
    model = Model(history)
    start = min(start, model.stable)
    cursor = new(start, model.stable)
    offsets: list[int] = []
    while not cursor.is_over:
        batches, aborted = model.answer(cursor.position, most)
        offsets += offsets_in(took(cursor, fetched(*batches, aborted=aborted), committed_only=True))
    assert offsets == [offset for offset in model.counting if offset >= start]


@given(steps)
@quick
def test_without_isolation_every_record_is_read(history: list[Step]) -> None:
    model = Model(history)
    if not model.batches:
        return
    piece = took(new(0, model.end), fetched(*model.batches, aborted=[aborted for aborted, _ in model.aborted]))
    headers = [batch.header for data in model.batches for batch in parse(data)]
    assert len(offsets_in(piece)) == sum(header.count for header in headers if not header.is_control)


def test_an_aborted_transaction_ends_with_its_marker() -> None:
    log = [of_transaction(0, 2, 7), marker(2, 7), of_transaction(3, 2, 7), marker(5, 7)]
    batches = [batch for data in log for batch in parse(data)]
    kept = without_aborted(batches, [Aborted(7, 0)])
    assert [batch.header.base_offset for batch in kept] == [2, 3, 5]


def test_records_outside_transactions_count_although_their_producer_aborts() -> None:
    log = [of_transaction(0, 1, 7), plain(1, 1, producer=(7, 0, 0)), marker(2, 7)]
    kept = without_aborted([batch for data in log for batch in parse(data)], [Aborted(7, 0)])
    assert [batch.header.base_offset for batch in kept] == [1, 2]


def test_two_abort_markers_in_a_row_do_no_harm() -> None:
    log = [of_transaction(0, 1, 7), marker(1, 7), marker(2, 7), of_transaction(3, 1, 7), marker(4, 7)]
    kept = without_aborted([batch for data in log for batch in parse(data)], [Aborted(7, 0), Aborted(7, 0)])
    assert 3 in [batch.header.base_offset for batch in kept]


def test_compressed_batches_of_transactions_are_no_different() -> None:
    data = plain(0, 5, flags=IS_TRANSACTIONAL, producer=(7, 0, 0), codec=Codec.ZSTD)
    cursor = new()
    piece = took(cursor, fetched(data, marker(5, 7), aborted=[Aborted(7, 0)]), committed_only=True)
    assert isinstance(piece, Piece)
    assert offsets_in(piece) == []
    assert cursor.position == 6
