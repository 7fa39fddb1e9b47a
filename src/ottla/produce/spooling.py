"""Between the sender and the spool on disk: which batches are there, under which identity, and what may be forgotten.

Batches come in before they are sent, when they cannot be sent, and when they are decided. With write-ahead, a batch is
sent only when it is on disk under the identity that it is sent with; the parts of a batch that is on disk only when
all of them are there in its place. A disk that refuses is tried again and again; meanwhile batches wait in memory.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from ottla.errors import CorruptBatch, NotDelivered, OttlaError, SpoolError, SpoolFailed, SpoolFull
from ottla.events import DowntimeReplayed, DowntimeSaved, Events, SpoolDamaged
from ottla.events import SpoolFailed as SpoolFailedEvent
from ottla.events import SpoolFull as SpoolFullEvent
from ottla.produce.lane import Lane
from ottla.produce.options import Spool
from ottla.produce.outgoing import Account, Identity, Outgoing
from ottla.produce.spool import Entry, Store, Stored, Ticket

_log = logging.getLogger(__name__)
_TRY_AGAIN = 0.5
_WRITE_COUNTS_AGAIN = 10.0
_TOPICS = "topics.json"
NO_PRODUCER = -1


class Spooling:
    """The spool of one producer; used by the sender's thread."""

    def __init__(self, spool: Spool, store: Store, *, account: Account, events: Events) -> None:
        self.spool = spool
        self.error: SpoolError | None = None
        """Why the disk refused last; None when it works."""
        self._store = store
        self._account = account
        self._events = events
        self._try_again_at = 0.0
        self._undurable: dict[int, tuple[Outgoing, Lane]] = {}
        self._doubtful: dict[int, tuple[Outgoing, Lane]] = {}
        """Put before an fsync that failed: not on disk until they are put again, whatever the next fsync says."""
        self._cut: dict[int, tuple[Outgoing, Sequence[Outgoing], Lane]] = {}
        """Batches on disk whose parts are not there yet, by the id of their ticket."""
        self._told: str | None = None
        """Of what was told last, and is still so."""
        self.path = store.path
        """Absolute: the program may go to another directory."""
        self._topics_file = store.path / _TOPICS
        self._partition_counts = _read_counts(self._topics_file)
        self._write_counts_at = math.inf
        for damage in store.damage:
            events.emit(SpoolDamaged(damage.path, damage.position, damage.size_bytes, str(damage)))

    @property
    def write_ahead(self) -> bool:
        """Whether a batch must be on disk before it is sent."""
        return self.spool.write_ahead

    @property
    def blocked(self) -> bool:
        """Whether the disk refuses at the moment."""
        return self.error is not None and time.monotonic() < self._try_again_at

    @property
    def is_full(self) -> bool:
        """Whether its limit is what makes it refuse."""
        return isinstance(self.error, SpoolFull)

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic had when it was last seen, 0 if it never was: so that records can be kept while
        no broker can be asked."""
        return self._partition_counts.get(topic, 0)

    def remember(self, topic: str, partitions: int) -> None:
        """How many partitions a topic has; written down by the next `settle`."""
        if self._partition_counts.get(topic) != partitions:
            self._partition_counts[topic] = partitions
            self._write_counts_at = 0.0

    def forget(self, topic: str) -> None:
        """There is no such topic."""
        if self._partition_counts.pop(topic, None) is not None:
            self._write_counts_at = 0.0

    def _write_counts(self) -> None:
        draft = self._topics_file.with_suffix(".new")
        try:
            draft.unlink(missing_ok=True)
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
                json.dump(self._partition_counts, file)
                file.flush()
                if self.spool.fsync:
                    os.fsync(file.fileno())
            os.replace(draft, self._topics_file)
        except OSError as error:
            _log.warning("cannot write %s, to be tried again: %s", self._topics_file, error.strerror)
            self._write_counts_at = time.monotonic() + _WRITE_COUNTS_AGAIN
        else:
            self._write_counts_at = math.inf

    def inherited(self) -> list[Stored]:
        """What a program that ended has left behind, oldest first."""
        return self._store.inherited

    def adopt(self, stored: Stored) -> Outgoing:
        """An inherited batch, on disk only."""
        now = time.monotonic()
        batch = Outgoing(stored.topic, stored.partition, opened=now, created=stored.created)
        batch.header = stored.header
        batch.count = stored.header.count
        batch.raw_bytes = stored.header.size_bytes
        batch.inherited = True
        batch.deadline = math.inf
        batch.ticket = stored.ticket
        header = stored.header
        if header.producer_id != NO_PRODUCER:
            batch.identity = Identity(header.producer_id, header.producer_epoch, header.base_sequence)
            batch.stored_identity = batch.identity
        return batch

    def keep(self, batch: Outgoing, lane: Lane) -> bool:
        """Puts a batch on disk as it is now, unless it is there; whether it is."""
        if batch.ticket is not None and batch.stored_identity == batch.identity:
            return batch.ticket.id not in self._doubtful or self._put_doubtful()
        # What stands for another entry goes into a full spool, too, so that it can be sent and the spool emptied.
        if self.blocked and not (self.is_full and (batch.ticket is not None or self._waits_for_its_whole(batch))):
            return False
        self.load(batch)
        if self._waits_for_its_whole(batch):
            return self._put_parts(batch)
        return self._put(batch, lane)

    def cut(self, whole: Outgoing, parts: Sequence[Outgoing], lane: Lane) -> None:
        """A batch goes on as its parts: if it is on disk, they take its place there before any of them is sent."""
        if whole.ticket is not None:
            self._cut[whole.ticket.id] = whole, parts, lane
            self.keep(parts[0], lane)

    def keeps_whole(self, batch: Outgoing) -> bool:
        """Whether the batch is a part, and on disk as a part of the whole: neither it nor its siblings were sent."""
        return batch.ticket is None and self._waits_for_its_whole(batch)

    def _waits_for_its_whole(self, batch: Outgoing) -> bool:
        ticket = None if batch.parent is None else batch.parent[0].ticket
        return batch.ticket is None and ticket is not None and ticket.id in self._cut

    def may_send(self, batch: Outgoing, lane: Lane) -> bool:
        """Whether a batch that is numbered may be sent: it is in memory, and on disk if it must be.

        Raises NotDelivered when it was on disk only and is damaged there.
        """
        self.load(batch)
        if not self.write_ahead and batch.ticket is None and not self._waits_for_its_whole(batch):
            return True
        # What is on disk must say under which identity it may have been sent.
        return self.keep(batch, lane) and (not self.spool.fsync or self.make_durable())

    def make_durable(self) -> bool:
        """Everything kept so far is safe from a loss of power, if that was asked for; False when the disk refuses."""
        if not self._put_doubtful():
            return False
        if not self._undurable:
            return True
        try:
            self._store.durable()
        except SpoolFailed as error:
            self._refused(error)
            self._doubtful.update(self._undurable)
            self._undurable.clear()
            return False
        self._undurable.clear()
        return True

    def _put_doubtful(self) -> bool:
        for ticket_id, (batch, lane) in list(self._doubtful.items()):
            if batch.decided:
                del self._doubtful[ticket_id]
            elif not self._put(batch, lane):
                return False
        return True

    def unload(self, batch: Outgoing) -> None:
        """Forgets the records of a batch that is on disk."""
        if batch.ticket is None or batch.ticket.id in self._undurable or batch.ticket.id in self._doubtful:
            return
        if batch.records is not None and not batch.in_flight:
            batch.records = None
            self._account.release(batch)

    def load(self, batch: Outgoing) -> None:
        """Brings the records of a batch back into memory; raises NotDelivered when they are damaged on disk."""
        if batch.records is not None:
            return
        assert batch.ticket is not None
        try:
            read = self._store.read(batch.ticket)
        except (CorruptBatch, SpoolError) as error:
            raise self._damaged(batch, error) from error
        batch.records = read.records
        self._account.hold(batch, len(read.records))

    def done(self, batches: Iterable[Outgoing], *, delivered: bool) -> None:
        """These are decided: what is on disk of them may go."""
        tickets: list[Ticket] = []
        for batch in batches:
            if batch.ticket is None:
                continue
            tickets.append(batch.ticket)
            for waiting in (self._undurable, self._doubtful, self._cut):
                waiting.pop(batch.ticket.id, None)
            if delivered and self._events.active and (batch.inherited or not self.write_ahead):
                self._events.emit(DowntimeReplayed(batch.topic, batch.partition, batch.count, batch.size_bytes))
        if tickets:
            self._store.done(tickets)
        if delivered or self.is_full:
            self.error = None  # there is room again, or nothing waits for it: the next one shows

    def settle(self) -> None:
        """Writes down what is done, and what is new about the topics."""
        self._store.settle()
        if time.monotonic() >= self._write_counts_at:
            self._write_counts()

    def close(self) -> None:
        """Gives the directory back."""
        if self._write_counts_at != math.inf:
            self._write_counts()
        self._store.close()

    def _put(self, batch: Outgoing, lane: Lane) -> bool:
        entry = _entry(batch, lane)
        try:
            ticket = self._store.put(entry)
        except (SpoolFull, SpoolFailed) as error:
            self._refused(error)
            return False
        first = batch.ticket is None
        if batch.ticket is not None:
            self._doubtful.pop(batch.ticket.id, None)
        self._is_kept(batch, ticket)
        if self.spool.fsync:
            self._undurable[ticket.id] = (batch, lane)
        if first or not self.is_full:  # what replaces an entry goes into a full spool, too
            self.error = self._told = None
        if first and self._events.active and not self.write_ahead:
            self._events.emit(DowntimeSaved(batch.topic, batch.partition, batch.count, batch.size_bytes))
        return True

    def _put_parts(self, part: Outgoing) -> bool:
        assert part.parent is not None
        assert part.parent[0].ticket is not None
        whole, parts, lane = self._cut[part.parent[0].ticket.id]
        assert whole.ticket is not None
        try:
            tickets = self._store.put_parts(whole.ticket, [_entry(part, lane) for part in parts])
        except (SpoolFull, SpoolFailed) as error:
            self._refused(error)
            return False
        for each, ticket in zip(parts, tickets, strict=True):
            self._is_kept(each, ticket)
        self.done([whole], delivered=False)
        if not self.is_full:
            self.error = self._told = None
        return True

    @staticmethod
    def _is_kept(batch: Outgoing, ticket: Ticket) -> None:
        batch.ticket = ticket
        batch.stored_identity = batch.identity
        batch.deadline = math.inf  # it is safe here for as long as it takes

    def _refused(self, error: SpoolFull | SpoolFailed) -> None:
        what = "full" if isinstance(error, SpoolFull) else str(error)
        if self._told != what:
            self._told = what
            if isinstance(error, SpoolFull):
                self._events.emit(SpoolFullEvent(str(self.path), error.used_bytes, error.max_bytes, str(error)))
            else:
                self._events.emit(SpoolFailedEvent(str(self.path), str(error)))
        self.error = error
        self._try_again_at = time.monotonic() + _TRY_AGAIN

    def _damaged(self, batch: Outgoing, error: OttlaError) -> NotDelivered:
        self._events.emit(SpoolDamaged(str(self.path), 0, batch.size_bytes, str(error)))
        return NotDelivered(
            f"its copy in the spool {self.path} cannot be read: {error}",
            topic=batch.topic,
            partition=batch.partition,
            records=batch.count,
            maybe_written=batch.attempts > 0 or batch.inherited,
            cause=error,
        )


def _entry(batch: Outgoing, lane: Lane) -> Entry:
    """What is written for a batch as it is now: in the place of its earlier version, if there is one."""
    assert batch.header is not None
    assert batch.records is not None
    old, place = (0, 0) if batch.ticket is None else (batch.ticket.id, batch.ticket.place)
    return Entry(
        batch.topic,
        batch.partition,
        batch.header,
        batch.records,
        lane.floor,
        batch.created,
        supersedes=old,
        place=place,
    )


def _read_counts(path: Path) -> dict[str, int]:
    try:
        found = json.loads(path.read_text())
        return {str(topic): int(count) for topic, count in found.items() if int(count) > 0}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        _log.warning("%s is of no use, topics must be looked up again: %s", path, error)
        return {}
