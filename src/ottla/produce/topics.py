"""The topics a producer uses: what is known of their partitions, and the records on their way into batches.

Handovers, metadata and the time come in. Rows go into the lanes of their partitions, wait until the partitions of their
topic are known, or are refused. Effects go out as values. Pure: no thread, socket, disk or clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ottla.errors import BrokerError, ErrorCode, NotDelivered, OttlaError
from ottla.events import Dropped, Event
from ottla.model import TopicPartition
from ottla.net.attempts import FINAL
from ottla.net.discovery import OnUnknownTopic
from ottla.net.metadata import Metadata
from ottla.net.refresh import Lookup, LookupResult, MetadataRefresh
from ottla.produce.delivery import Outcome
from ottla.produce.intake import Handover
from ottla.produce.lane import Lane
from ottla.produce.outgoing import Account, Outgoing
from ottla.produce.packing import Late, Packing, RefuseRows, Sealing, Settle, Topic, finish, pack, seal
from ottla.produce.route import Partitions
from ottla.wire.encode import NewBatch

_UNKNOWN_PATIENCE = 5.0
"""Seconds before the records of an unknown topic are refused: a new topic takes a while to become known."""


class Refuse(NamedTuple):
    """Fail the rows of a handover that are in no batch."""

    handover: Handover
    error: OttlaError


class Recall(NamedTuple):
    """Ask the spool how many partitions a topic has, because no broker can be asked. `recalled` must follow."""

    topic: Topic
    refusal: OttlaError | None = None
    """Why its records are refused if the spool does not know."""


class Remember(NamedTuple):
    """Note how many partitions a topic has, for when no broker can be asked."""

    topic: str
    partitions: int


class Forget(NamedTuple):
    """The topic is no longer used. `is_unknown` if the cluster says that it does not exist."""

    topic: str
    is_unknown: bool


class Report(NamedTuple):
    """An event for the event sinks."""

    event: Event


Effect = Lookup | Settle | Refuse | RefuseRows | Recall | Remember | Forget | Report


class Effects(Protocol):
    """A queue of effects, in order."""

    def append(self, effect: Effect, /) -> None:
        """Append an effect."""


Compress = Callable[[Sequence[Sealing]], Iterable[NewBatch]]
"""Compresses batches in any order and returns them in the order given."""


def compress_serially(sealing: Sequence[Sealing]) -> Iterable[NewBatch]:
    """Compress the batches in this thread, one after the other."""
    return [batch.compressed() for batch in sealing]


class Topics:
    """All topics in use. One thread owns it and carries out the effects after every call."""

    def __init__(self, refresh: MetadataRefresh, effects: Effects, *, compress: Compress | None = None) -> None:
        self.refresh = refresh
        self.effects = effects
        self._compress = compress or compress_serially
        self._sealing: list[Sealing] = []
        self.account = Account()
        self.active: dict[TopicPartition, tuple[Topic, Lane]] = {}
        """Lanes with something to send or to wait for."""
        self.brokers: dict[int, str] = {}
        """The brokers that metadata has named, with their descriptions."""
        self._by_name: dict[str, Topic] = {}
        self._away: set[int] = set()
        """Brokers that could not be reached."""
        self._urgent: set[str] = set()
        """Topics to send to as soon as their partitions are known."""

    def get(self, name: str) -> Topic | None:
        """The topic, or None if it is not in use. Any thread may call it."""
        return self._by_name.get(name)

    def all(self) -> list[Topic]:
        """Every topic in use. Any thread may call it."""
        return list(self._by_name.values())

    def next_lookup(self) -> float:
        """When `request_metadata` next has something to do."""
        return self.refresh.next_at(self._by_name)

    @property
    def lanes(self) -> list[tuple[Topic, Lane]]:
        """The active lanes."""
        return list(self.active.values())

    def sealed_lanes(self) -> list[tuple[Topic, Lane]]:
        """Return the active lanes, with every batch in their queues compressed."""
        self.finish_sealing()
        return self.lanes

    @property
    def has_waiting(self) -> bool:
        """Whether records wait for the partitions of their topic to be known."""
        return any(topic.waiting or topic.late for topic in self._by_name.values())

    def waiting_error(self, name: str | None = None) -> OttlaError | None:
        """What the first record in no batch waits for, of one topic or of all. None if none waits."""
        used = self._by_name.values() if name is None else [self._by_name[name]] if name in self._by_name else []
        topic = next((topic for topic in used if topic.waiting or topic.late), None)
        if topic is None:
            return None
        if topic.waiting:
            return OttlaError(f"the partitions of topic {topic.name} were never seen: {self._lookup_error}")
        return OttlaError(f"{_missing(topic, topic.late[0])}: {self.refresh.error or 'a lookup is under way'}")

    @property
    def _lookup_error(self) -> str:
        """Why the partitions of topics are not known."""
        return "no broker has answered yet" if self.refresh.error is None else str(self.refresh.error)

    def leads(self, broker: int) -> bool:
        """Whether the broker leads a partition of a topic in use."""
        return any(broker in topic.leaders.values() for topic in self._by_name.values())

    # Records come in

    def use(self, topic: Topic, now: float, remembered: Metadata | None = None) -> None:
        """Start using a topic. `remembered` is the metadata that is already known of it."""
        self._by_name[topic.name] = topic
        topic.used_at = now
        if remembered is not None:
            self._note_brokers(remembered)
            self._apply_metadata(remembered, topic)
        if topic.partitions is None and self.refresh.is_dark(self._by_name):
            self.effects.append(Recall(topic))

    def handed_over(self, handover: Handover, now: float) -> None:
        """Take over at least one record, of a topic that is in use."""
        topic = self._by_name[handover.topic]
        topic.used_at = now
        self.account.held_bytes += handover.held_bytes
        if topic.partitions is None:
            topic.waiting.append(handover)
            self.refresh.doubt(topic.name)
        else:
            self._pack(topic, handover, None, since=now, is_final=False)

    def inherit(self, topic: Topic, batch: Outgoing, *, floor: int) -> None:
        """Take over a batch that an earlier process left. It comes before anything new in its partition."""
        lane = topic.lane(batch.partition)
        lane.floor = floor if not lane.queue else lane.floor
        lane.add(batch)
        lane.must_check = True
        self.active[lane.tp] = topic, lane

    def send_now(self, now: float) -> None:
        """Make every open batch due now, without lingering."""
        _make_due((lane for _, lane in self.lanes), now)
        self._urgent |= {topic.name for topic in self._by_name.values() if topic.waiting or topic.late}

    def seal(self, topic: Topic, lane: Lane) -> None:
        """Move the lane's open batch, if there is one, to its queue."""
        if lane.open is not None:
            packing = Packing(self.account)
            seal(topic, lane, packing)
            self._apply_packing(topic, packing)
            self.finish_sealing()

    def settle(self, settled: Settle) -> None:
        """Settle the records of a batch."""
        self.account.release(settled.batch)
        self.effects.append(settled)

    def fail(self, batch: Outgoing, error: OttlaError) -> None:
        """Settle the records of a batch with an error."""
        self.settle(Settle(batch, Outcome(0, -1, -1, error)))

    def _pack(
        self,
        topic: Topic,
        handover: Handover,
        rows: npt.NDArray[np.int64] | None,
        *,
        since: float,
        is_final: bool,
    ) -> None:
        """Pack rows into batches.

        Unless `is_final`, rows for an unknown partition wait for new metadata: it may be new.
        """
        packing = Packing(self.account)
        try:
            late = pack(topic, handover, packing, rows=rows, refuse=is_final)
        except OttlaError as error:
            self._refuse(handover, error)
            return
        finally:
            self._apply_packing(topic, packing)
        if len(late) and not is_final:
            topic.late.append(Late(handover, late, since))
            self.refresh.doubt(topic.name)
        else:
            self.account.held_bytes -= handover.held_bytes

    def finish_sealing(self) -> None:
        """Compress all batches that are in a queue and not compressed yet, so that they can be sent."""
        sealing, self._sealing = self._sealing, []
        if sealing:
            for batch, compressed in zip(sealing, self._compress(sealing), strict=True):
                finish(batch, compressed, self.account)

    def _apply_packing(self, topic: Topic, packing: Packing) -> None:
        """Take over the results of packing: batches to compress, active lanes, outcomes."""
        self._sealing += packing.sealing
        for lane in packing.touched:
            self.active[lane.tp] = topic, lane
        for settled in packing.settled:
            if isinstance(settled, Settle):
                self.settle(settled)
            else:
                self.effects.append(settled)

    def _refuse(self, handover: Handover, error: OttlaError) -> None:
        """Fail the rows of a handover that are in no batch, and give its memory back."""
        self.account.held_bytes -= handover.held_bytes
        self.effects.append(Refuse(handover, error))

    def _refuse_waiting(self, topic: Topic, error: OttlaError) -> None:
        """Fail all records of a topic that wait for its partitions."""
        while topic.waiting:
            self._refuse(topic.waiting.popleft(), error)
        while topic.late:
            self._refuse(topic.late.popleft().handover, error)

    # Metadata

    def request_metadata(self, now: float) -> None:
        """Request metadata if something is in doubt or old."""
        creating: Collection[str] = ()
        if any(_creates(topic) for topic in self._by_name.values()):
            # Only topics with records: a periodic refresh must not recreate a deleted topic.
            creating = [name for name, topic in self._by_name.items() if _creates(topic) and not topic.is_idle]
        lookup = self.refresh.due(now, self._by_name, refreshed=self._by_name, creating=creating)
        if lookup is not None:
            self.effects.append(lookup)

    def metadata_result(self, result: LookupResult, now: float) -> None:
        """Handle the result of a `Lookup`."""
        lookup, metadata, error = result
        if metadata is None:
            assert error is not None
            self._lookup_failed(lookup, error, now)
            return
        self.refresh.learned(now)
        self._note_brokers(metadata)
        for name, metadata_topic in metadata.topics.items():
            topic = self._by_name.get(name)
            if topic is None:  # it was idle and forgotten while the lookup ran
                self.effects.append(Forget(name, is_unknown=False))
            elif not metadata_topic.partitions:
                self._unknown(topic, metadata_topic.error, now)
            else:
                topic.unknown_since = None
                self._apply_metadata(metadata, topic)
                self._partitions_known(topic, lookup.asked_at, now)
                if any(leader not in self.brokers for leader in topic.leaders.values()):
                    self.refresh.look_again([name], now)

    def _lookup_failed(self, lookup: Lookup, error: OttlaError, now: float) -> None:
        """Handle a lookup without an answer. If no broker can be reached, ask the spool."""
        self.refresh.failed(lookup, error, now)
        if self.refresh.is_dark(self._by_name):
            for topic in self._by_name.values():
                if topic.partitions is None:
                    # A wrong password stays wrong: do not let records wait for their deadline.
                    is_final = isinstance(error, FINAL) and topic.name in lookup.topics
                    self.effects.append(Recall(topic, error if is_final else None))

    def recalled(self, recall: Recall, count: int, now: float) -> None:
        """Use the partition count from the spool, 0 if it never saw the topic, while no broker can be asked.

        Records that are routed by it keep their partition when brokers are back; new ones are routed by metadata.
        """
        topic, refusal = recall
        if topic.partitions is not None:
            return
        if count:
            topic.partitions = Partitions(count)
            self._pack_waiting(topic, now)
        elif refusal is not None:
            self._refuse_topic(topic, refusal)

    def _note_brokers(self, metadata: Metadata) -> None:
        """Remember the brokers that metadata names."""
        self.brokers |= {broker.id: str(broker) for broker in metadata.brokers.values()}

    def _apply_metadata(self, metadata: Metadata, topic: Topic) -> None:
        """Update the leaders of a topic, and which partitions are available."""
        metadata_topic = metadata.topics.get(topic.name)
        if metadata_topic is not None and metadata_topic.partitions:
            topic.leaders = {p.index: p.leader for p in metadata_topic.partitions}
            self._update_available(topic)

    def _update_available(self, topic: Topic) -> None:
        """Update which partitions can take records without a key."""
        if topic.leaders:
            up = (p for p, leader in topic.leaders.items() if leader >= 0 and leader not in self._away)
            topic.partitions = Partitions(len(topic.leaders), tuple(sorted(up)))

    def _partitions_known(self, topic: Topic, asked_at: float, now: float) -> None:
        """Pack what waited for the partitions of a topic, which were requested at `asked_at`."""
        assert topic.partitions is not None
        self.effects.append(Remember(topic.name, topic.partitions.count))
        late, topic.late = topic.late, deque()
        for handover, rows, since in late:
            self._pack(topic, handover, rows, since=since, is_final=since <= asked_at)
        self._pack_waiting(topic, now)

    def _pack_waiting(self, topic: Topic, now: float) -> None:
        """Pack what waited for the partitions of the topic."""
        while topic.waiting:
            self._pack(topic, topic.waiting.popleft(), None, since=now, is_final=False)
        if topic.name in self._urgent:
            self._urgent.discard(topic.name)
            _make_due(topic.lanes.values(), now)

    def _unknown(self, topic: Topic, code: ErrorCode, now: float) -> None:
        """Handle a topic that the cluster does not know.

        After a while, records that were never in a partition are refused. Batches in lanes stay: their topic may come
        back.
        """
        topic.unknown_since = now if topic.unknown_since is None else topic.unknown_since
        error = BrokerError(code, f"topic {topic.name}")
        is_final = not error.retriable or now - topic.unknown_since >= _UNKNOWN_PATIENCE
        if topic.partitions is None and topic.waiting:
            self.refresh.error = error
        if is_final and topic.partitions is None:
            topic.unknown_since = None
            self._refuse_topic(topic, error)
        if topic.name in self._by_name and not topic.is_idle:
            self.refresh.look_again([topic.name], now)

    def _refuse_topic(self, topic: Topic, error: OttlaError) -> None:
        """Fail the waiting records of a topic that does not exist or cannot be reached, and forget it if it is idle."""
        self._refuse_waiting(topic, error)
        is_unknown = isinstance(error, BrokerError) and error.code is ErrorCode.unknown_topic_or_partition
        if topic.is_idle:  # else it has inherited batches: the topic may come back for them
            self.forget(topic, is_unknown=is_unknown)
        elif is_unknown:
            self.effects.append(Forget(topic.name, is_unknown=True))

    def forget(self, topic: Topic, *, is_unknown: bool = False) -> None:
        """Stop using the topic."""
        del self._by_name[topic.name]
        self._urgent.discard(topic.name)
        self.effects.append(Forget(topic.name, is_unknown))

    # Brokers

    def broker_changed(self, broker: int, *, is_away: bool) -> None:
        """Record whether a broker can be reached.

        If not, its partitions may move, and records without a key avoid them.
        """
        if is_away:
            self._away.add(broker)
        else:
            self._away.discard(broker)
        for topic in self._by_name.values():
            if broker in topic.leaders.values():
                self._update_available(topic)
                if is_away:
                    self.refresh.doubt(topic.name)

    # Giving up

    def expire(self, now: float) -> None:
        """Refuse records that have waited for their partitions for too long."""
        for topic in self.all():
            limit = topic.settings.delivery_timeout
            while topic.waiting and topic.waiting[0].opened + limit <= now:
                reason = f"the partitions of the topic were not known within {limit:g} s: {self._lookup_error}"
                self._refuse_first(topic, reason)
            while topic.late and topic.late[0].handover.opened + limit <= now:
                late = topic.late.popleft()
                reason = f"{_missing(topic, late)}, and no broker could be asked within {limit:g} s"
                error = NotDelivered(reason, topic=topic.name, records=len(late.rows), cause=self.refresh.error)
                self._refuse(late.handover, error)

    def drop_waiting(self, size_bytes: int) -> None:
        """Drop the oldest records that wait for their partitions, until this many bytes are free."""
        for topic in self._by_name.values():
            while topic.waiting and size_bytes > 0:
                first = topic.waiting[0]
                size_bytes -= first.held_bytes
                reason = f"dropped to make room while the partitions of the topic are unknown: {self._lookup_error}"
                sizes = first.columns.count, first.held_bytes
                self.effects.append(Report(Dropped(topic.name, -1, *sizes, first.created, first.created, reason)))
                self._refuse_first(topic, reason)

    def fail_waiting(self, error: OttlaError) -> None:
        """Fail all records that wait for their partitions."""
        for topic in self._by_name.values():
            self._refuse_waiting(topic, error)

    def refuse_all(self, reason: str, cause: OttlaError | None) -> None:
        """Fail all records that are in no batch yet."""
        for topic in self._by_name.values():
            for handover in topic.unplaced:
                count = handover.columns.count
                self._refuse(handover, NotDelivered(reason, topic=topic.name, records=count, cause=cause))
            topic.waiting.clear()
            topic.late.clear()

    def _refuse_first(self, topic: Topic, reason: str) -> None:
        """Fail the handover that has waited longest."""
        handover = topic.waiting.popleft()
        count = handover.columns.count
        self._refuse(handover, NotDelivered(reason, topic=topic.name, records=count, cause=self.refresh.error))


def _creates(topic: Topic) -> bool:
    """Whether brokers may create the topic."""
    return topic.settings.unknown_topic is OnUnknownTopic.CREATE


def _missing(topic: Topic, late: Late) -> str:
    """Describe the partition that late rows ask for and the topic does not have."""
    assert topic.partitions is not None
    assert late.handover.partitions is not None
    partition, last = int(late.handover.partitions[late.rows[0]]), topic.partitions.count - 1
    return f"topic {topic.name} had no partition {partition} when last looked up, only partitions 0 to {last}"


def _make_due(lanes: Iterable[Lane], now: float) -> None:
    """Make the open batches of these lanes due now."""
    for lane in lanes:
        if lane.open is not None:
            lane.open.due = min(lane.open.due, now)
