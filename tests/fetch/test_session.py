"""Fetch sessions: whatever happens, a broker that follows the rules returns exactly what the reader wants."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from random import Random

import pytest

from ottla.errors import ErrorCode
from ottla.fetch.cursor import Cursor
from ottla.fetch.session import Session, SessionRequest
from ottla.model import TopicPartition
from ottla.wire.fetch import NO_SESSION

IDS = {name: uuid.uuid4() for name in "ab"}
CursorState = tuple[int, int, int]


class Broker:
    """A broker by the rules of KIP-227. From version 13 on it knows topics by their ids."""

    def __init__(self, version: int = 13) -> None:
        self.version = version
        self.sessions: dict[int, tuple[int, dict[tuple[object, int], CursorState]]] = {}
        self.number = 0
        self.grants = True

    def ask(self, request: SessionRequest) -> tuple[int, int, dict[tuple[object, int], CursorState]]:
        """Return the error, the id of the session, and what is fetched."""
        (number, epoch), cursors, forgotten = request
        states = states_of(cursors, self.version)
        if epoch <= 0:
            self.sessions.pop(number, None)
            if (number, epoch) == NO_SESSION or not self.grants:
                return 0, 0, states
            self.number += 1
            self.sessions[self.number] = (1, states)
            return 0, self.number, states
        if number not in self.sessions:
            return ErrorCode.fetch_session_id_not_found, 0, {}
        expected, known = self.sessions[number]
        if epoch != expected:
            return ErrorCode.invalid_fetch_session_epoch, 0, {}
        known.update(states)
        for entry in forgotten:
            known.pop((entry.topic_id if self.version >= 13 else entry.topic, entry.partition), None)
        self.sessions[number] = (expected + 1, known)
        return 0, number, known


def cursors_of(count: int) -> list[Cursor]:
    cursors = [Cursor(TopicPartition("ab"[i % 2], i), 0, topic_id=IDS["ab"[i % 2]]) for i in range(count)]
    for cursor in cursors:
        cursor.leader = cursor.leader_epoch = 0
    return cursors


def identity(cursor: Cursor, version: int) -> str | uuid.UUID:
    assert cursor.topic_id is not None
    return cursor.topic_id if version >= 13 else cursor.tp.topic


def states_of(cursors: Iterable[Cursor], version: int) -> dict[tuple[object, int], CursorState]:
    return {
        (identity(cursor, version), cursor.tp.partition): (cursor.position, cursor.epoch, cursor.leader_epoch)
        for cursor in cursors
    }


def test_only_what_changed_is_said() -> None:
    session, broker, cursors = Session(), Broker(), cursors_of(40)
    for _ in range(2):
        request = session.request(list(cursors), version=13)
        assert request.cursors == cursors
        session.answered(broker.ask(request)[1])
    assert session.request(list(cursors), version=13) == SessionRequest((1, 1), [], [])
    session.answered(1)
    cursors[7].position = 5
    request = session.request(cursors[:-1], version=13)
    assert request.cursors == [cursors[7]]
    assert [(entry.topic, entry.partition, entry.topic_id) for entry in request.forgotten] == [("b", 39, IDS["b"])]
    assert session.number_of(IDS["b"], 7) == 7
    assert session.number_of(IDS["a"], 7) is None
    assert session.number_of(uuid.uuid4(), 7) is None
    assert session.number_of(IDS["b"], 39) is None


def test_a_single_request_and_few_partitions_need_no_session() -> None:
    session = Session()
    assert session.request(cursors_of(100), version=13).session == NO_SESSION
    session.answered(0)
    few = Session()
    for _ in range(5):
        assert few.request(cursors_of(1), version=13).session == NO_SESSION
        few.answered(0)


@pytest.mark.parametrize("number", [7, -1])
def test_a_session_that_was_not_asked_for_is_none(number: int) -> None:
    session, cursors = Session(), cursors_of(40)
    assert session.request(cursors, version=13).session == NO_SESSION
    session.answered(number)
    assert session.request(cursors, version=13) == SessionRequest((0, 0), cursors)
    session.answered(-1)
    assert session.request(cursors, version=13) == SessionRequest((0, 0), cursors)


@pytest.mark.parametrize("error", [ErrorCode.fetch_session_id_not_found, ErrorCode.invalid_fetch_session_epoch])
def test_a_broker_that_has_forgotten_gets_everything_again(error: ErrorCode) -> None:
    session, cursors = Session(), cursors_of(40)
    session.request(cursors, version=13)
    session.answered(0)
    session.request(cursors, version=13)
    session.answered(9)
    session.request(cursors, version=13)
    assert session.was_lost(error)
    assert session.request(cursors, version=13) == SessionRequest((0, 0), cursors)
    assert not session.was_lost(error), "a question that tells all cannot be lost"
    assert not session.was_lost(ErrorCode.not_leader_or_follower)


def test_another_version_begins_again() -> None:
    session, cursors = Session(), cursors_of(40)
    for number in (0, 9):
        session.request(cursors, version=13)
        session.answered(number)
    assert session.request(cursors, version=12) == SessionRequest((9, 0), cursors)
    assert session.number_of("a", 0) == 0


@pytest.mark.parametrize("version", [12, 13])
@pytest.mark.parametrize("seed", range(10))
def test_a_broker_asks_for_exactly_what_is_wanted(seed: int, version: int) -> None:
    chance = Random(seed)
    session, broker, cursors = Session(), Broker(version), cursors_of(30)
    sessions = 0
    for _ in range(300):
        for cursor in chance.sample(cursors, chance.randrange(4)):
            change = chance.randrange(5)
            if change == 0:
                cursor.position += chance.randrange(3)
            elif change == 1:
                cursor.epoch = chance.randrange(3)
            elif change == 2:
                cursor.leader_epoch = chance.randrange(3)
            elif change == 3:  # the topic was created again
                cursor.topic_id = uuid.uuid4()
            else:  # it was let go of, and taken again
                again = Cursor(cursor.tp, chance.randrange(3), topic_id=cursor.topic_id)
                cursors[cursors.index(cursor)] = again
        broker.grants = chance.random() > 0.1
        if chance.random() < 0.05:
            broker.sessions.clear()
        ready = [cursor for cursor in cursors if chance.random() > 0.1]
        request = session.request(ready, version=version)
        if chance.random() < 0.05:  # the connection is lost, before the broker hears of it or after
            if chance.random() < 0.5:
                broker.ask(request)
            session.reset()
            continue
        error, number, asked = broker.ask(request)
        if error:
            assert session.was_lost(error)
            continue
        sessions += number > 0
        assert asked == states_of(ready, version)
        for position, cursor in enumerate(ready):
            assert session.number_of(identity(cursor, version), cursor.tp.partition) == position
        session.answered(number)
    assert sessions > 100
