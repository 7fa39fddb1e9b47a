"""The fetch buffer: its memory as a state machine, and the items of cursors that are paused, closed or moved."""

from __future__ import annotations

import threading
import time

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from ottla.errors import OttlaError
from ottla.fetch.buffer import FetchBuffer
from ottla.fetch.cursor import Cursor, Failed, Piece, ResponseMemory
from ottla.model import TopicPartition
from ottla.net.deadline import Deadline

LIMIT = 1000


def new_cursor(partition: int = 0) -> Cursor:
    return Cursor(TopicPartition("t", partition), 0)


def new_piece(cursor: Cursor, memory: ResponseMemory, start: int = 0) -> Piece:
    return Piece(cursor, (), start, 1000, start + 1, memory)


def put(buffer: FetchBuffer, cursor: Cursor, size: int, start: int = 0) -> Piece:
    """Put a response with one piece."""
    reserved = buffer.reserve(size, least=1)
    assert reserved
    memory = ResponseMemory(size)
    memory.pieces = 1
    buffer.settle(reserved, memory)
    piece = new_piece(cursor, memory, start)
    buffer.put(piece)
    return piece


def new_buffer() -> FetchBuffer:
    return FetchBuffer(LIMIT, room=lambda: None)


class Memory(RuleBasedStateMachine):
    """Requests, responses, readers, pauses and removals in any order: the count of used memory stays right."""

    def __init__(self) -> None:
        super().__init__()
        self.rings = 0
        self.buffer = FetchBuffer(LIMIT, room=self.ring)
        self.cursors = [new_cursor(number) for number in range(3)]
        self.on_the_way = 0
        self.excess = 0
        """How much larger responses were than their reservations: a batch comes whatever its size."""
        self.memories: list[ResponseMemory] = []
        self.refused = False

    requests = Bundle("requests")
    in_use = Bundle("in_use")

    def ring(self) -> None:
        self.rings += 1
        self.refused = False

    @rule(target=requests, size_bytes=st.integers(1, 2 * LIMIT), least=st.integers(1, LIMIT))
    def ask(self, size_bytes: int, least: int) -> int:
        used = self.buffer.used_bytes
        reserved = self.buffer.reserve(size_bytes, least=least)
        assert reserved <= size_bytes
        if reserved:
            assert reserved >= min(size_bytes, least)
            assert used == 0 or used + reserved <= LIMIT, "only an empty buffer may be filled beyond its limit"
        else:
            assert used, "an empty buffer always has room"
            self.refused = True
        self.on_the_way += reserved
        return reserved

    @rule(reserved=consumes(requests), larger=st.integers(-LIMIT, 50), pieces=st.lists(st.integers(0, 2), max_size=3))
    def answer(self, reserved: int, larger: int, pieces: list[int]) -> None:
        if not reserved:
            return
        memory = ResponseMemory(max(1, reserved + larger))
        memory.pieces = len(pieces)
        self.on_the_way -= reserved
        self.buffer.settle(reserved, memory)
        self.memories.append(memory)
        for number in pieces:
            self.buffer.put(new_piece(self.cursors[number], memory))

    @rule(reserved=consumes(requests))
    def lose(self, reserved: int) -> None:
        self.on_the_way -= reserved
        self.buffer.settle(reserved, None)

    @rule(target=in_use)
    def take(self) -> Piece | None:
        item = self.buffer.take()
        assert item is None or (item.cursor.open and not item.cursor.paused)
        assert not isinstance(item, Failed)
        return item

    @rule(piece=consumes(in_use))
    def use_up(self, piece: Piece | None) -> None:
        if piece is not None:
            self.buffer.used_up(piece)

    @rule(number=st.integers(0, 2))
    def pause(self, number: int) -> None:
        self.cursors[number].paused = not self.cursors[number].paused

    @rule(number=st.integers(0, 2))
    def remove(self, number: int) -> None:
        self.buffer.discard([self.cursors[number]])
        self.cursors[number].open = False
        self.cursors[number] = new_cursor(number)

    @precondition(lambda self: self.refused)
    @rule()
    def clear(self) -> None:
        before = self.buffer.used_bytes
        self.buffer.clear()
        if self.buffer.used_bytes < before:
            assert not self.refused, "a loop that was refused is notified of the room"

    @invariant()
    def what_is_used_is_there(self) -> None:
        kept = sum(memory.size_bytes for memory in self.memories if memory.pieces > 0)
        assert self.buffer.used_bytes == kept + self.on_the_way


TestMemory = Memory.TestCase
TestMemory.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_items_come_in_the_order_in_which_they_were_put() -> None:
    buffer, cursor = new_buffer(), new_cursor()
    first, second = put(buffer, cursor, 10), put(buffer, cursor, 10, 1)
    failed = Failed(cursor, OttlaError("x"))
    buffer.put(failed)
    assert [buffer.take(), buffer.take(), buffer.take(), buffer.take()] == [first, second, failed, None]


def test_a_paused_cursor_keeps_its_place_and_others_go_on() -> None:
    buffer, one, two = new_buffer(), new_cursor(1), new_cursor(2)
    first, other, second = put(buffer, one, 10), put(buffer, two, 10), put(buffer, one, 10, 1)
    one.paused = True
    assert buffer.take() is other
    assert buffer.take() is None
    one.paused = False
    assert [buffer.take(), buffer.take()] == [first, second]


def test_a_reader_of_paused_cursors_waits_and_does_not_spin() -> None:
    buffer, cursor = new_buffer(), new_cursor()
    put(buffer, cursor, 10)
    cursor.paused = True
    began = time.monotonic()
    assert buffer.take(Deadline.after(0.05)) is None
    assert time.monotonic() - began >= 0.05


def test_pieces_of_closed_cursors_are_dropped_and_their_memory_is_free() -> None:
    buffer, closed = new_buffer(), new_cursor(1)
    put(buffer, closed, 400)
    put(buffer, closed, 400)
    closed.open = False
    assert buffer.take() is None
    assert buffer.used_bytes == 0


def test_discarding_leaves_the_others() -> None:
    buffer, cursor, other = new_buffer(), new_cursor(), new_cursor(1)
    put(buffer, other, 10)
    put(buffer, cursor, 10, 5)
    put(buffer, cursor, 10, 6)
    buffer.discard([cursor])
    assert buffer.used_bytes == 10
    cursor.open = False
    left = buffer.take()
    assert left is not None
    assert left.cursor is other


def test_a_failure_survives_a_pause() -> None:
    buffer, cursor = new_buffer(), new_cursor()
    failed = Failed(cursor, OttlaError("x"))
    buffer.put(failed)
    cursor.paused = True
    buffer.discard([cursor])
    assert buffer.take() is None
    cursor.paused = False
    assert buffer.take() is failed


def test_a_memory_is_free_only_when_all_its_pieces_are() -> None:
    buffer, cursor = new_buffer(), new_cursor()
    memory = ResponseMemory(600)
    memory.pieces = 2
    buffer.settle(buffer.reserve(600, least=1), memory)
    pieces = [new_piece(cursor, memory), new_piece(cursor, memory, 1)]
    for piece in pieces:
        buffer.put(piece)
    assert buffer.take() is pieces[0]
    buffer.used_up(pieces[0])
    assert buffer.used_bytes == 600
    buffer.clear()
    assert buffer.used_bytes == 0


def test_a_batch_larger_than_the_limit_is_still_read() -> None:
    buffer, cursor = new_buffer(), new_cursor()
    reserved = buffer.reserve(LIMIT, least=1)
    memory = ResponseMemory(20 * LIMIT)
    memory.pieces = 1
    buffer.settle(reserved, memory)
    piece = new_piece(cursor, memory)
    buffer.put(piece)
    assert buffer.reserve(10, least=1) == 0
    assert buffer.take() is piece
    buffer.used_up(piece)
    assert buffer.reserve(10, least=1) == 10


def test_a_waiting_reader_is_woken_by_a_piece_and_by_a_ring() -> None:
    buffer, cursor = new_buffer(), new_cursor()
    taken: list[object] = []

    def read() -> None:
        taken.append(buffer.take(Deadline.after(20)))

    for wake in (lambda: buffer.ring(), lambda: put(buffer, cursor, 10)):
        thread = threading.Thread(target=read)
        thread.start()
        wake()
        thread.join(10)
        assert not thread.is_alive()
    assert taken[0] is None
    assert isinstance(taken[1], Piece)
