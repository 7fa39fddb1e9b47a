"""The send queue: every byte leaves once and in order, however little the socket takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.net.deadline import Deadline
from ottla.net.outbox import Outbox
from ottla.net.pending import Pending, Reply
from ottla.net.transport import MOST_BUFFERS


class Nobody:
    def wait_for(self, pending: Pending) -> None:
        raise AssertionError("nobody waits here")


def request(number: int, reply: Reply = Reply.DUE) -> Pending:
    deadline = Deadline.after(60)
    return Pending(Nobody(), api_key=3, version=12, correlation_id=number, deadline=deadline, reply=reply)


def views(*parts: bytes) -> list[memoryview]:
    return [memoryview(part) for part in parts]


@given(st.lists(st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=4), max_size=8), st.data())
def test_every_byte_leaves_once_and_in_order(frames: list[list[bytes]], data: st.DataObject) -> None:
    outbox, taken, out = Outbox(), b"", []
    waiting = list(enumerate(frames))
    while waiting or outbox.unsent_bytes:
        if waiting and (not outbox.unsent_bytes or data.draw(st.booleans())):
            number, parts = waiting.pop(0)
            outbox.add(request(number), views(*parts))
        offered = b"".join(outbox.next())
        count = data.draw(st.integers(0, len(offered)))
        taken += offered[:count]
        out += [pending.correlation_id for pending in outbox.took(count)]
        added = frames[: len(frames) - len(waiting)]
        assert outbox.unsent_bytes == sum(len(part) for parts in added for part in parts) - len(taken)
        assert out == list(range(len(out)))
    assert taken == b"".join(part for parts in frames for part in parts)
    assert len(out) == len(frames)
    assert outbox.next() == []


def test_no_more_buffers_are_offered_than_one_call_takes() -> None:
    outbox = Outbox()
    for number in range(3):
        outbox.add(request(number), views(*[b"x"] * 400))
    assert len(outbox.next()) == MOST_BUFFERS
    assert [pending.correlation_id for pending in outbox.took(MOST_BUFFERS)] == [0]
    assert outbox.unsent_bytes == 1200 - MOST_BUFFERS


def test_buffers_are_offered_as_they_are_not_as_copies() -> None:
    outbox, memory = Outbox(), bytearray(b"before")
    outbox.add(request(0), [memoryview(memory)])
    memory[:] = b"after!"
    assert bytes(outbox.next()[0]) == b"after!"


def test_emptying_it_names_the_requests_that_only_it_knows() -> None:
    outbox = Outbox()
    outbox.add(request(0), views(b"answered"))
    outbox.add(request(1, Reply.NONE), views(b"not answered"))
    assert [pending.correlation_id for pending in outbox.drain()] == [1]
    assert outbox.unsent_bytes == 0
    assert outbox.next() == []


def test_those_without_an_answer_are_listed_while_a_signal_handler_sends() -> None:
    outbox = Outbox()
    for number in range(3):
        outbox.add(request(number, Reply.NONE), views(b"x"))
    listed = []
    for pending in outbox.unanswered():
        outbox.add(request(9, Reply.NONE), views(b"x"))
        listed.append(pending.correlation_id)
    assert listed == [0, 1, 2]
