"""Connects the sender with the spool on disk: which batches are there, under which identity, and which can be removed.

Batches come in before they are sent, when they cannot be sent, and when they are decided. With write-ahead, a batch is
sent only after it is on disk under the identity it is sent with. The parts of a split batch that is on disk are sent
only after all of them have taken its place there. A disk that refuses is retried; meanwhile batches wait in memory. It
sends nothing and decides no outcomes.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Collection, Iterable, Sequence
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
_RETRY_SECONDS = 0.5
"""How long a disk that refused is left alone."""
_WRITE_COUNTS_AGAIN = 10.0
"""Seconds until partition counts that could not be written are tried again."""
_TOPICS = "topics.json"
"""The file with the number of partitions of each topic."""
NO_PRODUCER = -1
"""The producer id of batches that were stored before any broker was reached."""


class Spooling:
    """The spool of one producer, used by the sender's thread."""

    def __init__(self, spool: Spool, store: Store, *, account: Account, events: Events) -> None:
        self.spool = spool
        self.error: SpoolError | None = None
        """Why the disk last refused; None while it works."""
        self._store = store
        self._account = account
        self._events = events
        self._try_again_at = 0.0
        self._unsynced: dict[int, tuple[Outgoing, Lane]] = {}
        self._doubtful: dict[int, tuple[Outgoing, Lane]] = {}
        """Written before an fsync that failed: not on disk until written again, whatever the next fsync returns."""
        self._splits: dict[int, tuple[Outgoing, Sequence[Outgoing], Lane]] = {}
        """Split batches on disk whose parts are not there yet, by ticket id."""
        self._reported: str | None = None
        """The last problem that was reported and still lasts."""
        self.path = store.path
        """Absolute: the program may change its working directory."""
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
    def is_backing_off(self) -> bool:
        """Whether the disk refused a moment ago and is not tried yet."""
        return self.error is not None and time.monotonic() < self._try_again_at

    @property
    def is_full(self) -> bool:
        """Whether it refuses because its limit is reached."""
        return isinstance(self.error, SpoolFull)

    @property
    def topics(self) -> Collection[str]:
        """The topics whose number of partitions is known here. A view: other threads may only look names up in it."""
        return self._partition_counts.keys()

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic had when last looked up, 0 if never.

        So that records can be written to disk while no broker can be asked.
        """
        return self._partition_counts.get(topic, 0)

    def remember(self, topic: str, partitions: int) -> None:
        """Note how many partitions a topic has. The next `settle` writes it down."""
        if self._partition_counts.get(topic) != partitions:
            self._partition_counts[topic] = partitions
            self._write_counts_at = 0.0

    def forget(self, topic: str) -> None:
        """Forget a topic that does not exist."""
        if self._partition_counts.pop(topic, None) is not None:
            self._write_counts_at = 0.0

    def _write_counts(self) -> None:
        """Write the partition counts to `topics.json`, as a whole or not at all. A failure is retried later."""
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
            _log.warning("cannot write %s, will retry: %s", self._topics_file, error.strerror)
            self._write_counts_at = time.monotonic() + _WRITE_COUNTS_AGAIN
        else:
            self._write_counts_at = math.inf

    def inherited(self) -> list[Stored]:
        """What an earlier process left behind, oldest first."""
        return self._store.inherited

    def adopt(self, stored: Stored) -> Outgoing:
        """Make an outgoing batch of an inherited one, which is only on disk."""
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

    def write(self, batch: Outgoing, lane: Lane) -> bool:
        """Write a batch to disk in its current state, unless it is there. Returns whether it is there."""
        if batch.ticket is not None and batch.stored_identity == batch.identity:
            return batch.ticket.id not in self._doubtful or self._rewrite_doubtful()
        # A replacement of another entry goes even into a full spool: it must be sent before the spool can drain.
        if self.is_backing_off and not (self.is_full and (batch.ticket is not None or self._awaits_split(batch))):
            return False
        self.load(batch)
        if self._awaits_split(batch):
            return self._put_parts(batch)
        return self._put(batch, lane)

    def replace_by_parts(self, whole: Outgoing, parts: Sequence[Outgoing], lane: Lane) -> None:
        """Replace a split batch: if it is on disk, its parts take its place there before any of them is sent."""
        if whole.ticket is not None:
            self._splits[whole.ticket.id] = whole, parts, lane
            self.write(parts[0], lane)

    def is_stored_in_whole(self, batch: Outgoing) -> bool:
        """Whether the batch is a part and on disk within the whole: neither it nor its siblings were sent."""
        return batch.ticket is None and self._awaits_split(batch)

    def keeps(self, batch: Outgoing) -> bool:
        """Whether the batch is on disk, durably if `fsync` is set: no death of this process can lose it."""
        if batch.ticket is None:
            return self._awaits_split(batch)
        return batch.ticket.id not in self._unsynced and batch.ticket.id not in self._doubtful

    def _awaits_split(self, batch: Outgoing) -> bool:
        """Whether the batch is a part whose whole is still on disk in its place."""
        ticket = None if batch.parent is None else batch.parent[0].ticket
        return batch.ticket is None and ticket is not None and ticket.id in self._splits

    def may_send(self, batch: Outgoing, lane: Lane) -> bool:
        """Whether a numbered batch may be sent: it is in memory, and on disk if it must be.

        Raises `NotDelivered` if it was only on disk and is damaged there.
        """
        self.load(batch)
        if not self.write_ahead and batch.ticket is None and not self._awaits_split(batch):
            return True
        # The disk must record the identity under which the batch may have been sent.
        return self.write(batch, lane) and (not self.spool.fsync or self.make_durable())

    def make_durable(self) -> bool:
        """Sync everything written so far, if `fsync` is set. Returns False if the disk refuses."""
        if not self._rewrite_doubtful():
            return False
        if not self._unsynced:
            return True
        try:
            self._store.durable()
        except SpoolFailed as error:
            self._handle_refusal(error)
            self._doubtful.update(self._unsynced)
            self._unsynced.clear()
            return False
        self._unsynced.clear()
        return True

    def _rewrite_doubtful(self) -> bool:
        """Write batches again whose fsync failed. Returns False if the disk refuses."""
        for ticket_id, (batch, lane) in list(self._doubtful.items()):
            if batch.decided:
                del self._doubtful[ticket_id]
            elif not self._put(batch, lane):
                return False
        return True

    def unload(self, batch: Outgoing) -> None:
        """Release the records of a batch that is on disk."""
        if batch.ticket is None or batch.ticket.id in self._unsynced or batch.ticket.id in self._doubtful:
            return
        if batch.records is not None and not batch.in_flight:
            batch.records = None
            self._account.release(batch)

    def load(self, batch: Outgoing) -> None:
        """Read the records of a batch back into memory. Raises `NotDelivered` if they are damaged on disk."""
        if batch.records is not None:
            return
        assert batch.ticket is not None
        try:
            stored = self._store.read(batch.ticket)
        except (CorruptBatch, SpoolError) as error:
            raise self._damaged(batch, error) from error
        batch.records = stored.records
        self._account.hold(batch, len(stored.records))

    def done(self, batches: Iterable[Outgoing], *, delivered: bool) -> None:
        """Remove decided batches from the disk."""
        tickets: list[Ticket] = []
        for batch in batches:
            if batch.ticket is None:
                continue
            tickets.append(batch.ticket)
            for pending in (self._unsynced, self._doubtful, self._splits):
                pending.pop(batch.ticket.id, None)
            if delivered and self._events.active and (batch.inherited or not self.write_ahead):
                self._events.emit(DowntimeReplayed(batch.topic, batch.partition, batch.count, batch.size_bytes))
        if tickets:
            self._store.done(tickets)
        if delivered or self.is_full:
            self.error = None  # there may be room again: the next write shows

    def settle(self) -> None:
        """Write down what is done, and what is new about the topics."""
        self._store.settle()
        if time.monotonic() >= self._write_counts_at:
            self._write_counts()

    def close(self) -> None:
        """Release the directory."""
        if self._write_counts_at != math.inf:
            self._write_counts()
        self._store.close()

    def _put(self, batch: Outgoing, lane: Lane) -> bool:
        """Write one batch, in the place of its earlier version if there is one. Returns False if the disk refuses."""
        entry = _entry(batch, lane)
        try:
            ticket = self._store.put(entry)
        except (SpoolFull, SpoolFailed) as error:
            self._handle_refusal(error)
            return False
        is_first = batch.ticket is None
        if batch.ticket is not None:
            self._doubtful.pop(batch.ticket.id, None)
        self._record_ticket(batch, ticket)
        if self.spool.fsync:
            self._unsynced[ticket.id] = (batch, lane)
        if is_first or not self.is_full:  # a replacement is written even into a full spool, so it proves nothing
            self.error = self._reported = None
        if is_first and self._events.active and not self.write_ahead:
            self._events.emit(DowntimeSaved(batch.topic, batch.partition, batch.count, batch.size_bytes))
        return True

    def _put_parts(self, part: Outgoing) -> bool:
        """Replace a split batch on disk by all its parts. Returns False if the disk refuses."""
        assert part.parent is not None
        assert part.parent[0].ticket is not None
        whole, parts, lane = self._splits[part.parent[0].ticket.id]
        assert whole.ticket is not None
        try:
            tickets = self._store.put_parts(whole.ticket, [_entry(part, lane) for part in parts])
        except (SpoolFull, SpoolFailed) as error:
            self._handle_refusal(error)
            return False
        for stored_part, ticket in zip(parts, tickets, strict=True):
            self._record_ticket(stored_part, ticket)
        self.done([whole], delivered=False)
        if not self.is_full:
            self.error = self._reported = None
        return True

    @staticmethod
    def _record_ticket(batch: Outgoing, ticket: Ticket) -> None:
        """Record where the batch is on disk, and under which identity."""
        batch.ticket = ticket
        batch.stored_identity = batch.identity
        batch.deadline = math.inf  # a batch on disk is safe for as long as it takes

    def _handle_refusal(self, error: SpoolFull | SpoolFailed) -> None:
        """Back off, and report the problem if it is new."""
        reason = "full" if isinstance(error, SpoolFull) else str(error)
        if self._reported != reason:
            self._reported = reason
            if isinstance(error, SpoolFull):
                self._events.emit(SpoolFullEvent(str(self.path), error.used_bytes, error.max_bytes, str(error)))
            else:
                self._events.emit(SpoolFailedEvent(str(self.path), str(error)))
        self.error = error
        self._try_again_at = time.monotonic() + _RETRY_SECONDS

    def _damaged(self, batch: Outgoing, error: OttlaError) -> NotDelivered:
        """Report a batch that cannot be read back. Returns its error."""
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
    """The entry to write for the batch in its current state, in the place of its earlier version if there is one."""
    assert batch.header is not None
    assert batch.records is not None
    replaced_id, place = (0, 0) if batch.ticket is None else (batch.ticket.id, batch.ticket.place)
    return Entry(
        batch.topic,
        batch.partition,
        batch.header,
        batch.records,
        lane.floor,
        batch.created,
        supersedes=replaced_id,
        place=place,
    )


def _read_counts(path: Path) -> dict[str, int]:
    """The partition counts of an earlier process; none if the file is missing or damaged, which costs only a lookup."""
    try:
        counts = json.loads(path.read_text())
        return {str(topic): int(count) for topic, count in counts.items() if int(count) > 0}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        _log.warning("%s cannot be read, topics must be looked up again: %s", path, error)
        return {}
