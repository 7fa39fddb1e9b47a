"""What a broker remembers of one reader's fetches (KIP-227), so that only what changes is sent and answered.

Cursors to ask for come in, a `SessionRequest` goes out: of all of them, or of those that differ from what the broker
remembers, and of what it is to forget. Its answer then has only partitions about which there is something to say. Pure.

There may be thousands of cursors, and a question every moment: what is done for each of them is done by lists.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import NamedTuple

from ottla.errors import ErrorCode
from ottla.fetch.cursor import Cursor
from ottla.model import TopicPartition
from ottla.wire.fetch import BY_ID, NO_SESSION, Forgotten

_FEWEST_COURSES = 16
"""For fewer it is not worth the memory of a broker, which has room for a thousand sessions."""
_LATEST_EPOCH = (1 << 31) - 1
_LOST = frozenset(
    {
        ErrorCode.fetch_session_id_not_found,
        ErrorCode.invalid_fetch_session_epoch,
        ErrorCode.fetch_session_topic_id_error,
    }
)


class _Told(NamedTuple):
    """What a broker was told last, an entry for each cursor."""

    cursors: list[Cursor]
    positions: list[int]
    epochs: list[int]
    leader_epochs: list[int]
    topic_ids: list[uuid.UUID | None]

    @classmethod
    def of(cls, cursors: list[Cursor]) -> _Told:
        """What there is to tell of them now."""
        return cls(
            cursors,
            [cursor.position for cursor in cursors],
            [cursor.epoch for cursor in cursors],
            [cursor.leader_epoch for cursor in cursors],
            [cursor.topic_id for cursor in cursors],
        )


class SessionRequest(NamedTuple):
    """A request: what it says anything about, and what is to be forgotten."""

    session: tuple[int, int]
    cursors: Sequence[Cursor]
    forgotten: Sequence[Forgotten] = ()


class Session:
    """With one broker. Each `question` is followed by `answered`, `was_lost` or `reset` before the next one."""

    def __init__(self) -> None:
        self._id = 0
        self._epoch = 0
        self._version = 0
        self._questions = 0
        self._is_wanted = False
        """Whether the last question asked for a session, or was within one."""
        self._told = _Told.of([])
        self._numbers: dict[TopicPartition, int] = {}
        """Which cursor that is of the last question."""
        self._names: dict[uuid.UUID | None, str] = {}
        """Of topics, by their ids."""

    def question(self, cursors: list[Cursor], *, version: int) -> SessionRequest:
        """Asks for all of these, and for nothing else."""
        self._questions += 1
        if version != self._version:
            self._version = version
            self.reset()
        before, numbers, self._told = self._told, self._numbers, _Told.of(cursors)
        if before.cursors != cursors:
            self._numbers = {cursor.tp: number for number, cursor in enumerate(cursors)}
        if before.cursors != cursors or before.topic_ids != self._told.topic_ids:
            self._names = _names(cursors)
        self._is_wanted = True
        if self._epoch > 0:
            session = (self._id, self._epoch)
            return (
                SessionRequest(session, [], []) if before == self._told else self._difference(before, numbers, session)
            )
        # What takes one request needs no memory of it. One that is there is to be replaced.
        self._is_wanted = self._id > 0 or (self._questions > 1 and len(cursors) >= _FEWEST_COURSES)
        return SessionRequest((self._id, 0) if self._is_wanted else NO_SESSION, cursors)

    def number_of(self, topic: str | uuid.UUID, partition: int) -> int | None:
        """Which of the cursors of the last question a broker means by a partition of a topic, which it names or has an
        id of; None if it was not asked for that."""
        if isinstance(topic, str):
            return self._numbers.get(TopicPartition(topic, partition))
        number = self._numbers.get(TopicPartition(self._names.get(topic, ""), partition))
        return None if number is None or self._told.topic_ids[number] != topic else number

    def answered(self, session_id: int) -> None:
        """The broker said which session that was; 0 if it remembers nothing."""
        is_open = session_id > 0 and self._is_wanted
        self._id = session_id if is_open else 0
        self._epoch = self._epoch % _LATEST_EPOCH + 1 if is_open else 0

    def was_lost(self, error_code: int) -> bool:
        """Whether the error says that the broker has forgotten what it was told: then all is told again. An error of a
        question that tells all is another matter."""
        if error_code not in _LOST or self._epoch == 0:
            return False
        self.reset()
        self._id = 0
        return True

    def reset(self) -> None:
        """What the broker remembers is not known any more: it is replaced by all that is wanted. What is known here may
        be half done, after an interrupt."""
        self._epoch = 0
        self._told = _Told.of([])
        self._numbers, self._names = {}, {}

    def _difference(
        self, before: _Told, numbers: dict[TopicPartition, int], session: tuple[int, int]
    ) -> SessionRequest:
        forgotten = [
            Forgotten(*at, before.topic_ids[number]) for at, number in numbers.items() if at not in self._numbers
        ]
        changed = []
        for cursor, *now in zip(*self._told, strict=True):
            number = numbers.get(cursor.tp)
            if number is None:
                changed.append(cursor)
                continue
            if now == [told[number] for told in before[1:]]:
                continue
            changed.append(cursor)
            if before.topic_ids[number] != cursor.topic_id and self._version >= BY_ID:  # by name it is the same one
                forgotten.append(Forgotten(*cursor.tp, before.topic_ids[number]))
        return SessionRequest(session, changed, forgotten)


def _names(cursors: list[Cursor]) -> dict[uuid.UUID | None, str]:
    """Of their topics: few, and to compare ids takes long."""
    names: dict[uuid.UUID | None, str] = {}
    last = None
    for cursor in cursors:
        if cursor.topic_id is not last:
            last = cursor.topic_id
            names[last] = cursor.tp.topic
    return names
