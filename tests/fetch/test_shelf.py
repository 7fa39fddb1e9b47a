"""The shelf: its memory as a state machine, and what is handed out of courses that are paused, closed or moved."""

from __future__ import annotations

import threading
import time

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from ottla.errors import OttlaError
from ottla.fetch.course import Course, Failed, Parcel, Piece
from ottla.fetch.shelf import Shelf
from ottla.model import TopicPartition
from ottla.net.deadline import Deadline

LIMIT = 1000


def new_course(partition: int = 0) -> Course:
    return Course(TopicPartition("t", partition), 0)


def new_piece(course: Course, parcel: Parcel, start: int = 0) -> Piece:
    return Piece(course, (), start, 1000, start + 1, parcel)


def put(shelf: Shelf, course: Course, size: int, start: int = 0) -> Piece:
    """An answer with one piece arrives."""
    reserved = shelf.reserve(size, least=1)
    assert reserved
    parcel = Parcel(size)
    parcel.pieces = 1
    shelf.settle(reserved, parcel)
    piece = new_piece(course, parcel, start)
    shelf.put(piece)
    return piece


def new_shelf() -> Shelf:
    return Shelf(LIMIT, room=lambda: None)


class Memory(RuleBasedStateMachine):
    """Requests, answers, readers, pauses and removals in any order: what is used is what is there."""

    def __init__(self) -> None:
        super().__init__()
        self.rings = 0
        self.shelf = Shelf(LIMIT, room=self.ring)
        self.courses = [new_course(number) for number in range(3)]
        self.on_the_way = 0
        self.excess = 0
        """By how much answers were larger than what was reserved for them: a batch comes whatever its size."""
        self.parcels: list[Parcel] = []
        self.refused = False

    requests = Bundle("requests")
    in_use = Bundle("in_use")

    def ring(self) -> None:
        self.rings += 1
        self.refused = False

    @rule(target=requests, wanted=st.integers(1, 2 * LIMIT), least=st.integers(1, LIMIT))
    def ask(self, wanted: int, least: int) -> int:
        used = self.shelf.used_bytes
        got = self.shelf.reserve(wanted, least=least)
        assert got <= wanted
        if got:
            assert got >= min(wanted, least)
            assert used == 0 or used + got <= LIMIT, "only an empty shelf may be filled beyond its limit"
        else:
            assert used, "an empty shelf always has room"
            self.refused = True
        self.on_the_way += got
        return got

    @rule(reserved=consumes(requests), larger=st.integers(-LIMIT, 50), pieces=st.lists(st.integers(0, 2), max_size=3))
    def answer(self, reserved: int, larger: int, pieces: list[int]) -> None:
        if not reserved:
            return
        parcel = Parcel(max(1, reserved + larger))
        parcel.pieces = len(pieces)
        self.on_the_way -= reserved
        self.shelf.settle(reserved, parcel)
        self.parcels.append(parcel)
        for number in pieces:
            self.shelf.put(new_piece(self.courses[number], parcel))

    @rule(reserved=consumes(requests))
    def lose(self, reserved: int) -> None:
        self.on_the_way -= reserved
        self.shelf.settle(reserved, None)

    @rule(target=in_use)
    def take(self) -> Piece | None:
        item = self.shelf.take()
        assert item is None or (item.course.open and not item.course.paused)
        assert not isinstance(item, Failed)
        return item

    @rule(piece=consumes(in_use))
    def use_up(self, piece: Piece | None) -> None:
        if piece is not None:
            self.shelf.used_up(piece)

    @rule(number=st.integers(0, 2))
    def pause(self, number: int) -> None:
        self.courses[number].paused = not self.courses[number].paused

    @rule(number=st.integers(0, 2))
    def remove(self, number: int) -> None:
        self.shelf.discard([self.courses[number]])
        self.courses[number].open = False
        self.courses[number] = new_course(number)

    @precondition(lambda self: self.refused)
    @rule()
    def clear(self) -> None:
        before = self.shelf.used_bytes
        self.shelf.clear()
        if self.shelf.used_bytes < before:
            assert not self.refused, "whoever was refused hears of the room"

    @invariant()
    def what_is_used_is_there(self) -> None:
        there = sum(parcel.size_bytes for parcel in self.parcels if parcel.pieces > 0)
        assert self.shelf.used_bytes == there + self.on_the_way


TestMemory = Memory.TestCase
TestMemory.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_items_come_in_the_order_in_which_they_were_put() -> None:
    shelf, course = new_shelf(), new_course()
    first, second = put(shelf, course, 10), put(shelf, course, 10, 1)
    failed = Failed(course, OttlaError("x"))
    shelf.put(failed)
    assert [shelf.take(), shelf.take(), shelf.take(), shelf.take()] == [first, second, failed, None]


def test_a_paused_course_keeps_its_place_and_others_go_on() -> None:
    shelf, one, two = new_shelf(), new_course(1), new_course(2)
    first, other, second = put(shelf, one, 10), put(shelf, two, 10), put(shelf, one, 10, 1)
    one.paused = True
    assert shelf.take() is other
    assert shelf.take() is None
    one.paused = False
    assert [shelf.take(), shelf.take()] == [first, second]


def test_a_reader_of_paused_courses_waits_and_does_not_spin() -> None:
    shelf, course = new_shelf(), new_course()
    put(shelf, course, 10)
    course.paused = True
    began = time.monotonic()
    assert shelf.take(Deadline.after(0.05)) is None
    assert time.monotonic() - began >= 0.05


def test_pieces_of_closed_courses_are_dropped_and_their_memory_is_free() -> None:
    shelf, closed = new_shelf(), new_course(1)
    put(shelf, closed, 400)
    put(shelf, closed, 400)
    closed.open = False
    assert shelf.take() is None
    assert shelf.used_bytes == 0


def test_discarding_leaves_the_others() -> None:
    shelf, course, other = new_shelf(), new_course(), new_course(1)
    put(shelf, other, 10)
    put(shelf, course, 10, 5)
    put(shelf, course, 10, 6)
    shelf.discard([course])
    assert shelf.used_bytes == 10
    course.open = False
    left = shelf.take()
    assert left is not None
    assert left.course is other


def test_a_failure_survives_a_pause() -> None:
    shelf, course = new_shelf(), new_course()
    failed = Failed(course, OttlaError("x"))
    shelf.put(failed)
    course.paused = True
    shelf.discard([course])
    assert shelf.take() is None
    course.paused = False
    assert shelf.take() is failed


def test_a_parcel_is_free_only_when_all_its_pieces_are() -> None:
    shelf, course = new_shelf(), new_course()
    parcel = Parcel(600)
    parcel.pieces = 2
    shelf.settle(shelf.reserve(600, least=1), parcel)
    pieces = [new_piece(course, parcel), new_piece(course, parcel, 1)]
    for piece in pieces:
        shelf.put(piece)
    assert shelf.take() is pieces[0]
    shelf.used_up(pieces[0])
    assert shelf.used_bytes == 600
    shelf.clear()
    assert shelf.used_bytes == 0


def test_a_batch_larger_than_the_limit_is_still_read() -> None:
    shelf, course = new_shelf(), new_course()
    reserved = shelf.reserve(LIMIT, least=1)
    parcel = Parcel(20 * LIMIT)
    parcel.pieces = 1
    shelf.settle(reserved, parcel)
    piece = new_piece(course, parcel)
    shelf.put(piece)
    assert shelf.reserve(10, least=1) == 0
    assert shelf.take() is piece
    shelf.used_up(piece)
    assert shelf.reserve(10, least=1) == 10


def test_a_waiting_reader_is_woken_by_a_piece_and_by_a_ring() -> None:
    shelf, course = new_shelf(), new_course()
    found: list[object] = []

    def read() -> None:
        found.append(shelf.take(Deadline.after(20)))

    for wake in (lambda: shelf.ring(), lambda: put(shelf, course, 10)):
        thread = threading.Thread(target=read)
        thread.start()
        wake()
        thread.join(10)
        assert not thread.is_alive()
    assert found[0] is None
    assert isinstance(found[1], Piece)
