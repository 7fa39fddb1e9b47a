"""One fetch session with a broker (KIP-227): only changes are sent and answered.

The cursors to fetch come in, a `SessionRequest` goes out. It names all of them, or only those that differ from what the
broker remembers, and what the broker should forget. The response then has only the partitions with something new. Pure.

There may be thousands of cursors and many requests per second, so work for each cursor is done by list comprehensions.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import NamedTuple

from ottla.errors import ErrorCode
from ottla.fetch.cursor import Cursor
from ottla.model import TopicPartition
from ottla.wire.fetch import BY_ID, NO_SESSION, Forgotten

_MIN_CURSORS = 16
"""For fewer, a session is not worth a broker's memory: it keeps 1,000 sessions at most."""
_LATEST_EPOCH = (1 << 31) - 1
_LOST = frozenset(
    {
        ErrorCode.fetch_session_id_not_found,
        ErrorCode.invalid_fetch_session_epoch,
        ErrorCode.fetch_session_topic_id_error,
    }
)


class _Snapshot(NamedTuple):
    """What a request said, with an entry for each cursor."""

    cursors: list[Cursor]
    positions: list[int]
    epochs: list[int]
    leader_epochs: list[int]
    topic_ids: list[uuid.UUID | None]

    @classmethod
    def of(cls, cursors: list[Cursor]) -> _Snapshot:
        """Return the current state of the cursors."""
        return cls(
            cursors,
            [cursor.position for cursor in cursors],
            [cursor.epoch for cursor in cursors],
            [cursor.leader_epoch for cursor in cursors],
            [cursor.topic_id for cursor in cursors],
        )


class SessionRequest(NamedTuple):
    """The session part of a request: its id and epoch, the cursors to name, and what the broker should forget."""

    session: tuple[int, int]
    cursors: Sequence[Cursor]
    forgotten: Sequence[Forgotten] = ()


class Session:
    """The session with one broker. After each `request`, call `answered`, `was_lost` or `reset` before the next."""

    def __init__(self) -> None:
        self._id = 0
        self._epoch = 0
        self._version = 0
        self._requests = 0
        self._is_wanted = False
        """Whether the last request asked for a session, or was within one."""
        self._sent = _Snapshot.of([])
        self._numbers: dict[TopicPartition, int] = {}
        """The index of each partition's cursor in the last request."""
        self._names: dict[uuid.UUID | None, str] = {}
        """Topic names by id."""

    def request(self, cursors: list[Cursor], *, version: int) -> SessionRequest:
        """Return a request for exactly these cursors."""
        self._requests += 1
        if version != self._version:
            self._version = version
            self.reset()
        before, numbers, self._sent = self._sent, self._numbers, _Snapshot.of(cursors)
        if before.cursors != cursors:
            self._numbers = {cursor.tp: number for number, cursor in enumerate(cursors)}
        if before.cursors != cursors or before.topic_ids != self._sent.topic_ids:
            self._names = _names(cursors)
        self._is_wanted = True
        if self._epoch > 0:
            session = (self._id, self._epoch)
            return (
                SessionRequest(session, [], []) if before == self._sent else self._difference(before, numbers, session)
            )
        # A read that takes a single request needs no session. An existing one is to be replaced.
        self._is_wanted = self._id > 0 or (self._requests > 1 and len(cursors) >= _MIN_CURSORS)
        return SessionRequest((self._id, 0) if self._is_wanted else NO_SESSION, cursors)

    def number_of(self, topic: str | uuid.UUID, partition: int) -> int | None:
        """Return the index in the last request of a partition that a broker names by topic name or id.

        None if the request did not ask for it.
        """
        if isinstance(topic, str):
            return self._numbers.get(TopicPartition(topic, partition))
        number = self._numbers.get(TopicPartition(self._names.get(topic, ""), partition))
        return None if number is None or self._sent.topic_ids[number] != topic else number

    def answered(self, session_id: int) -> None:
        """Record the session id of the response, 0 if the broker keeps no session."""
        is_open = session_id > 0 and self._is_wanted
        self._id = session_id if is_open else 0
        self._epoch = self._epoch % _LATEST_EPOCH + 1 if is_open else 0

    def was_lost(self, error_code: int) -> bool:
        """Whether the broker has forgotten the session. Then the next request is a full one.

        False for errors of a full request: they have another cause.
        """
        if error_code not in _LOST or self._epoch == 0:
            return False
        self.reset()
        self._id = 0
        return True

    def reset(self) -> None:
        """Make the next request a full one, because the broker's state is unknown.

        The state on this side may be half done after an interrupt, so it is dropped, too.
        """
        self._epoch = 0
        self._sent = _Snapshot.of([])
        self._numbers, self._names = {}, {}

    def _difference(
        self, before: _Snapshot, numbers: dict[TopicPartition, int], session: tuple[int, int]
    ) -> SessionRequest:
        forgotten = [
            Forgotten(*tp, before.topic_ids[number]) for tp, number in numbers.items() if tp not in self._numbers
        ]
        changed = []
        for cursor, *state in zip(*self._sent, strict=True):
            number = numbers.get(cursor.tp)
            if number is None:
                changed.append(cursor)
                continue
            if state == [column[number] for column in before[1:]]:
                continue
            changed.append(cursor)
            # With topic names instead of ids, the new topic replaces the old one in the session.
            if before.topic_ids[number] != cursor.topic_id and self._version >= BY_ID:
                forgotten.append(Forgotten(*cursor.tp, before.topic_ids[number]))
        return SessionRequest(session, changed, forgotten)


def _names(cursors: list[Cursor]) -> dict[uuid.UUID | None, str]:
    """Return the topic names by id. Compares by identity first: there are few topics, and comparing UUIDs is slow."""
    names: dict[uuid.UUID | None, str] = {}
    last = None
    for cursor in cursors:
        if cursor.topic_id is not last:
            last = cursor.topic_id
            names[last] = cursor.tp.topic
    return names
