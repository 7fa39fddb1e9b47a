"""Which offsets are lost and where reading continues, as tables; and ranges whose log changes while they are read."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.wire.rows import thorough

from ottla.fetch import losses
from ottla.fetch.cursor import END_OF_LOG, Cursor, Diverged, OutOfRange, Piece, ResponseMemory
from ottla.fetch.log_extent import LogExtent
from ottla.fetch.losses import Loss
from ottla.fetch.options import OnLost
from ottla.wire.fetch import Diverging, Fetched

from .logs import AT, fetched, offsets_in, plain

ERROR, EARLIEST, LATEST = OnLost
LENIENT = (EARLIEST, LATEST)
LOG = LogExtent(1700, 9000)


def offsets_of(loss: Loss | None) -> tuple[int, int, int] | None:
    """Return the loss without its reason."""
    return None if loss is None else loss[:3]


def cursor_at(position: int, start: int = 1600, stop: int = 2000) -> Cursor:
    """Return a cursor at this position."""
    cursor = Cursor(AT, start, stop)
    cursor.move(position)
    return cursor


# Ranges


@pytest.mark.parametrize("on_lost", LENIENT)
@pytest.mark.parametrize(
    ("position", "extent", "expected"),
    [
        (1650, LOG, (1650, 1700, 1700)),
        (1650, LogExtent(5000, 9000), (1650, 2000, 2000)),
        (1650, LogExtent(2000, 9000), (1650, 2000, 2000)),
        (1600, LogExtent(0, 1500), (1600, 2000, 2000)),
        (1650, LogExtent(0, 1649), (1650, 2000, 2000)),
        (1650, LogExtent(0, 1650), None),
        (1650, LogExtent(1650, 1650), None),
    ],
)
def test_a_range_goes_on_with_what_there_is_of_it_and_is_over_where_there_is_nothing(
    on_lost: OnLost, position: int, extent: LogExtent, expected: tuple[int, int, int] | None
) -> None:
    assert offsets_of(losses.outside(cursor_at(position), extent, on_lost)) == expected


@pytest.mark.parametrize("on_lost", LENIENT)
@pytest.mark.parametrize(
    ("extent", "expected"),
    [
        (LogExtent(0, 10), (1650, 2000, 2000)),
        (LogExtent(0, 1800), (1650, 2000, 1650)),
        (LogExtent(1700, 1800), (1650, 2000, 1700)),
        (LogExtent(3000, 4000), (1650, 2000, 2000)),
    ],
)
def test_the_rest_of_a_range_is_lost_with_its_topic_and_goes_on_with_what_the_new_one_has(
    on_lost: OnLost, extent: LogExtent, expected: tuple[int, int, int]
) -> None:
    assert offsets_of(losses.replaced(cursor_at(1650), extent, on_lost, "anew")) == expected


@pytest.mark.parametrize("on_lost", LENIENT)
@pytest.mark.parametrize(("cut", "expected"), [(1620, (1620, 1650, 1620)), (1000, (1600, 1650, 1600))])
def test_a_range_is_read_again_from_where_its_records_changed_and_not_from_before_it(
    on_lost: OnLost, cut: int, expected: tuple[int, int, int]
) -> None:
    assert offsets_of(losses.diverged(cursor_at(1650), cut, on_lost)) == expected


def test_what_did_not_come_is_lost_where_the_log_ends() -> None:
    assert offsets_of(losses.overdue(cursor_at(1650), LogExtent(0, 1650))) == (1650, 2000, 2000)
    assert losses.overdue(cursor_at(1650), LogExtent(0, 1651)) is None, "it is there, and cannot be read yet"


def test_an_error_tells_where_the_log_can_be_read_from() -> None:
    assert offsets_of(losses.outside(cursor_at(1650), LOG, ERROR)) == (1650, 1700, 1700)
    assert offsets_of(losses.outside(cursor_at(1650), LogExtent(0, 1500), ERROR)) == (1500, 1650, 0)
    assert offsets_of(losses.replaced(cursor_at(1650), LogExtent(0, 10), ERROR, "anew")) == (1650, 1651, 0)
    assert offsets_of(losses.diverged(cursor_at(1650), 1000, ERROR)) == (1000, 1650, 1000)


# Following


@pytest.mark.parametrize(("on_lost", "before", "behind"), [(EARLIEST, 1700, 0), (LATEST, 9000, 1500)])
def test_who_follows_a_log_goes_where_the_policy_says(on_lost: OnLost, before: int, behind: int) -> None:
    cursor = cursor_at(1650, stop=END_OF_LOG)
    assert offsets_of(losses.outside(cursor, LOG, on_lost)) == (1650, 1700, before)
    assert offsets_of(losses.outside(cursor, LogExtent(0, 1500), on_lost)) == (1500, 1650, behind)
    assert offsets_of(losses.replaced(cursor, LogExtent(0, 1500), on_lost, "anew")) == (1650, 1651, behind)
    assert offsets_of(losses.diverged(cursor, 1000, on_lost)) == (1000, 1650, 1000)


# Anything


class What(Enum):
    """An event in the life of a log."""

    NOTHING = 0
    GROWS = 1
    EXPIRES = 2
    IS_CUT = 3
    IS_ANOTHER = 4


class Happening(NamedTuple):
    what: What
    amount: int


class Log:
    """A partition on its leader, with the rules by which brokers answer."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.topic = 0
        self.epochs = [(0, first)]
        """Leader epochs with their first offsets."""

    @property
    def extent(self) -> LogExtent:
        return LogExtent(self.first, self.last)

    def apply(self, happening: Happening) -> None:
        what, amount = happening
        if what is What.GROWS:
            self.last += amount
        elif what is What.EXPIRES:
            self.first = min(self.last, self.first + amount)
        elif what is What.IS_CUT:
            self.last = max(self.first, self.last - amount)
            newest = self.epochs[-1][0]
            self.epochs = [*(entry for entry in self.epochs if entry[1] < self.last), (newest + 1, self.last)]
        elif what is What.IS_ANOTHER:
            self.first, self.last, self.topic, self.epochs = 0, amount, self.topic + 1, [(0, 0)]

    def answer(self, position: int, epoch: int) -> Fetched:
        """Return a response with up to five records."""
        known, end = self._end_of(epoch)
        if position >= self.first and epoch >= 0 and (known < epoch or end < position):
            return fetched(diverging=Diverging(known, end))
        if not self.first <= position <= self.last:
            return fetched(error=1)
        return fetched(*(self._record(offset) for offset in range(position, min(position + 5, self.last))))

    def _end_of(self, epoch: int) -> tuple[int, int]:
        """Follow `LeaderEpochFileCache.endOffsetFor` of Kafka."""
        newer = [start for other, start in self.epochs if other > epoch]
        older = [other for other, _ in self.epochs if other <= epoch]
        return (older[-1] if older else epoch), (newer[0] if newer else self.last)

    def _record(self, offset: int) -> bytes:
        data = bytearray(plain(offset))
        epoch = max(number for number, start in self.epochs if start <= offset)
        data[12:16] = epoch.to_bytes(4, "big")
        return bytes(data)


class Read(NamedTuple):
    offsets: list[int]
    lost: list[Loss]
    is_over: bool


def read(cursor: Cursor, log: Log, happenings: list[Happening], on_lost: OnLost) -> Read:
    """Read as the fetcher does. Before each response the next event happens; the read must end soon after the last."""
    offsets: list[int] = []
    lost: list[Loss] = []
    topic = log.topic
    for happening in [*happenings, *[Happening(What.NOTHING, 0)] * 100]:
        if cursor.is_over:
            break
        log.apply(happening)
        loss: Loss | None = None
        if log.topic != topic:
            topic = log.topic
            loss = losses.replaced(cursor, log.extent, on_lost, "anew")
        else:
            answer = log.answer(cursor.position, cursor.epoch)
            match cursor.take(answer, ResponseMemory(0), 0.0, committed_only=False):
                case Piece() as piece:
                    offsets += offsets_in(piece)
                case OutOfRange():
                    loss = losses.outside(cursor, log.extent, on_lost)
                case Diverged(where):
                    loss = losses.diverged(cursor, where.end_offset, on_lost)
                case _:
                    loss = losses.overdue(cursor, log.extent)
        if loss is not None:
            lost.append(loss)
            cursor.move(loss.resume)
    return Read(offsets, lost, cursor.is_over)


happenings = st.lists(st.builds(Happening, st.sampled_from(What), st.integers(0, 30)), max_size=12)


@given(
    st.integers(0, 50), st.integers(1, 40), st.integers(0, 50), st.integers(0, 50), happenings, st.sampled_from(LENIENT)
)
@example(16, 4, 0, 15, [], EARLIEST)
@example(16, 4, 17, 90, [], LATEST)
@example(16, 4, 0, 18, [], EARLIEST)
@example(10, 10, 0, 40, [Happening(What.NOTHING, 0), Happening(What.IS_CUT, 35), Happening(What.GROWS, 20)], EARLIEST)
@thorough
def test_a_range_ends_and_gives_nothing_outside_of_it_and_tells_all_that_it_does_not_give(
    start: int, length: int, first: int, size: int, happenings: list[Happening], on_lost: OnLost
) -> None:
    stop = start + length
    offsets, lost, is_over = read(Cursor(AT, start, stop), Log(first, first + size), happenings, on_lost)
    assert is_over
    assert all(start <= offset < stop for offset in offsets)
    assert all(start <= loss.start <= loss.stop <= stop for loss in lost)
    assert all(start <= loss.resume <= stop for loss in lost)
    gone = {offset for loss in lost for offset in range(loss.start, loss.stop)}
    assert {*offsets} | gone == {*range(start, stop)}
    again = {offset for offset in offsets if offsets.count(offset) > 1}
    assert again <= gone, "an offset comes twice only if it was told that its record is another one"
