"""The topics that a producer uses: what is known of their partitions, and the records on their way into batches.

Handovers, metadata and the time come in; rows go into the lanes of their partitions, wait until the partitions of their
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
from ottla.produce.intake import Handover
from ottla.produce.lane import Lane
from ottla.produce.outgoing import Account, Outgoing
from ottla.produce.packing import Late, Packing, RefuseRows, Sealing, Settle, Topic, finish, pack, seal
from ottla.produce.route import Partitions
from ottla.wire.encode import NewBatch

_UNKNOWN_PATIENCE = 5.0
"""Seconds for which a topic may be unknown before its records are refused: a new one takes a while to be known."""


class Refuse(NamedTuple):
    """The rows of a handover that are in no batch get into none."""

    handover: Handover
    error: OttlaError


class Recall(NamedTuple):
    """No broker can be asked how many partitions a topic has: the spool may remember. `recalled` must follow."""

    topic: Topic
    refusal: OttlaError | None = None
    """Why its records are refused unless the spool does."""


class Remember(NamedTuple):
    """How many partitions a topic has, for times when no broker can be asked."""

    topic: str
    partitions: int


class Forget(NamedTuple):
    """A topic is not used any more; `is_unknown` when the cluster says that it does not exist."""

    topic: str
    is_unknown: bool


class Report(NamedTuple):
    """Something happened that others may want to know."""

    event: Event


Effect = Lookup | Settle | Refuse | RefuseRows | Recall | Remember | Forget | Report


class Effects(Protocol):
    """Where effects go, in order."""

    def append(self, effect: Effect, /) -> None:
        """Behind the others."""


Compress = Callable[[Sequence[Sealing]], Iterable[NewBatch]]
"""Compresses batches, in any order, and returns them in theirs."""


def one_by_one(sealing: Sequence[Sealing]) -> Iterable[NewBatch]:
    """In this thread."""
    return [one.compressed() for one in sealing]


class Topics:
    """All topics in use. Its owner is one thread, which carries out the effects after every call."""

    def __init__(self, watch: MetadataRefresh, effects: Effects, *, compress: Compress | None = None) -> None:
        self.watch = watch
        self.effects = effects
        self._compress = compress or one_by_one
        self._sealing: list[Sealing] = []
        self.account = Account()
        self.active: dict[TopicPartition, tuple[Topic, Lane]] = {}
        """Lanes with something to send or to wait for."""
        self.brokers: dict[int, str] = {}
        """Those that metadata has named, and how they are called."""
        self._named: dict[str, Topic] = {}
        self._away: set[int] = set()
        """Brokers that could not be reached."""
        self._hurried: set[str] = set()
        """Topics of which something is to be sent as soon as their partitions are known."""

    def get(self, name: str) -> Topic | None:
        """A topic, if it is in use; any thread may ask."""
        return self._named.get(name)

    def all(self) -> list[Topic]:
        """Every topic in use; any thread may ask."""
        return list(self._named.values())

    def next_look(self) -> float:
        """When `look` has something to do."""
        return self.watch.next_at(self._named)

    @property
    def lanes(self) -> list[tuple[Topic, Lane]]:
        """Those with something to send or to wait for."""
        return list(self.active.values())

    @property
    def are_waiting(self) -> bool:
        """Whether records wait for the partitions of their topic to be known."""
        return any(topic.waiting or topic.late for topic in self._named.values())

    def why_waiting(self) -> OttlaError | None:
        """What the first of the records waits for that are in no batch; None when none does."""
        topic = next((topic for topic in self._named.values() if topic.waiting or topic.late), None)
        if topic is None:
            return None
        if topic.waiting:
            return OttlaError(f"the partitions of topic {topic.name} were never seen: {self.watch.error}")
        return OttlaError(f"{_missing(topic, topic.late[0])}: {self.watch.error or 'it is being looked up'}")

    def leads(self, broker: int) -> bool:
        """Whether the broker leads a partition of a topic in use."""
        return any(broker in topic.leaders.values() for topic in self._named.values())

    # Records come in

    def use(self, topic: Topic, now: float, remembered: Metadata | None = None) -> None:
        """A topic is used for the first time; `remembered` is what is known of it already."""
        self._named[topic.name] = topic
        topic.used_at = now
        if remembered is not None:
            self._meet(remembered)
            self._apply(remembered, topic)
        if topic.partitions is None and self.watch.is_dark(self._named):
            self.effects.append(Recall(topic))

    def handed_over(self, handover: Handover, now: float) -> None:
        """Records to be sent, at least one; their topic is in use."""
        topic = self._named[handover.topic]
        topic.used_at = now
        self.account.held_bytes += handover.held_bytes
        if topic.partitions is None:
            topic.waiting.append(handover)
            self.watch.doubt(topic.name)
        else:
            self._pack(topic, handover, None, since=now, is_final=False)

    def inherit(self, topic: Topic, batch: Outgoing, *, floor: int) -> None:
        """A batch that a program which ended has left: it comes before anything new in its partition."""
        lane = topic.lane(batch.partition)
        lane.floor = floor if not lane.line else lane.floor
        lane.add(batch)
        lane.must_check = True
        self.active[lane.at] = topic, lane

    def hurry(self, now: float) -> None:
        """Everything that waits for company goes now."""
        _make_due((lane for _, lane in self.lanes), now)
        self._hurried |= {topic.name for topic in self._named.values() if topic.waiting or topic.late}

    def seal(self, topic: Topic, lane: Lane) -> None:
        """The open batch of the lane, if there is one, takes its place in the line."""
        if lane.open is not None:
            into = Packing(self.account)
            seal(topic, lane, into)
            self._took(topic, into)
            self.finish_sealing()

    def settle(self, settled: Settle) -> None:
        """The records of a batch have their outcome."""
        self.account.release(settled.batch)
        self.effects.append(settled)

    def _pack(
        self,
        topic: Topic,
        handover: Handover,
        rows: npt.NDArray[np.int64] | None,
        *,
        since: float,
        is_final: bool,
    ) -> None:
        """Unless `is_final`, rows for a partition that is not known wait for a look at the metadata: it may be new."""
        into = Packing(self.account)
        try:
            late = pack(topic, handover, into, rows=rows, refuse=is_final)
        except OttlaError as error:
            self._refuse(handover, error)
            return
        finally:
            self._took(topic, into)
        if len(late) and not is_final:
            topic.late.append(Late(handover, late, since))
            self.watch.doubt(topic.name)
        else:
            self.account.held_bytes -= handover.held_bytes

    def finish_sealing(self) -> None:
        """What has its place in a line is compressed, all at once, and can be sent."""
        sealing, self._sealing = self._sealing, []
        if sealing:
            for one, compressed in zip(sealing, self._compress(sealing), strict=True):
                finish(one, compressed, self.account)

    def _took(self, topic: Topic, into: Packing) -> None:
        self._sealing += into.sealing
        for lane in into.touched:
            self.active[lane.at] = topic, lane
        for settled in into.settled:
            if isinstance(settled, Settle):
                self.settle(settled)
            else:
                self.effects.append(settled)

    def _refuse(self, handover: Handover, error: OttlaError) -> None:
        self.account.held_bytes -= handover.held_bytes
        self.effects.append(Refuse(handover, error))

    def _refuse_waiting(self, topic: Topic, error: OttlaError) -> None:
        while topic.waiting:
            self._refuse(topic.waiting.popleft(), error)
        while topic.late:
            self._refuse(topic.late.popleft().handover, error)

    # Metadata

    def look(self, now: float) -> None:
        """Has metadata asked for when something is in doubt, or old."""
        creating: Collection[str] = ()
        if any(_creates(topic) for topic in self._named.values()):
            # Only for the sake of records: a deleted topic is not created because somebody looks whether it grew.
            creating = [name for name, topic in self._named.items() if _creates(topic) and not topic.is_idle]
        lookup = self.watch.due(now, self._named, refreshed=self._named, creating=creating)
        if lookup is not None:
            self.effects.append(lookup)

    def looked(self, looked: LookupResult, now: float) -> None:
        """What became of a `Lookup`."""
        lookup, metadata, error = looked
        if metadata is None:
            assert error is not None
            self._not_learned(lookup, error, now)
            return
        self.watch.learned(now)
        self._meet(metadata)
        for name, found in metadata.topics.items():
            topic = self._named.get(name)
            if topic is None:  # idle, and forgotten after it was asked for
                self.effects.append(Forget(name, is_unknown=False))
            elif not found.partitions:
                self._unknown(topic, found.error, now)
            else:
                topic.unknown_since = None
                self._apply(metadata, topic)
                self._known(topic, lookup.asked_at, now)
                if any(leader not in self.brokers for leader in topic.leaders.values()):
                    self.watch.look_again([name], now)

    def _not_learned(self, lookup: Lookup, error: OttlaError, now: float) -> None:
        self.watch.failed(lookup, error, now)
        if self.watch.is_dark(self._named):
            for topic in self._named.values():
                if topic.partitions is None:
                    # A wrong password stays wrong: who never got in need not wait for the deadline to hear of it.
                    is_final = isinstance(error, FINAL) and topic.name in lookup.topics
                    self.effects.append(Recall(topic, error if is_final else None))

    def recalled(self, recall: Recall, count: int, now: float) -> None:
        """No broker can be asked, but the topic had so many partitions, 0 if it was never seen. What is routed by that
        stays where it is when brokers are back; from then on metadata decides."""
        topic, refusal = recall
        if topic.partitions is not None:
            return
        if count:
            topic.partitions = Partitions(count)
            self._pack_waiting(topic, now)
        elif refusal is not None:
            self._no_such_topic(topic, refusal)

    def _meet(self, metadata: Metadata) -> None:
        self.brokers |= {broker.id: str(broker) for broker in metadata.brokers.values()}

    def _apply(self, metadata: Metadata, topic: Topic) -> None:
        found = metadata.topics.get(topic.name)
        if found is not None and found.partitions:
            topic.leaders = {p.index: p.leader for p in found.partitions}
            self._weigh(topic)

    def _weigh(self, topic: Topic) -> None:
        """Which partitions can take records without a key."""
        if topic.leaders:
            up = (p for p, leader in topic.leaders.items() if leader >= 0 and leader not in self._away)
            topic.partitions = Partitions(len(topic.leaders), tuple(sorted(up)))

    def _known(self, topic: Topic, asked_at: float, now: float) -> None:
        """The partitions of a topic are what was asked for at `asked_at`: what waited for that goes on."""
        assert topic.partitions is not None
        self.effects.append(Remember(topic.name, topic.partitions.count))
        late, topic.late = topic.late, deque()
        for handover, rows, since in late:
            self._pack(topic, handover, rows, since=since, is_final=since <= asked_at)
        self._pack_waiting(topic, now)

    def _pack_waiting(self, topic: Topic, now: float) -> None:
        while topic.waiting:
            self._pack(topic, topic.waiting.popleft(), None, since=now, is_final=False)
        if topic.name in self._hurried:
            self._hurried.discard(topic.name)
            _make_due(topic.lanes.values(), now)

    def _unknown(self, topic: Topic, code: ErrorCode, now: float) -> None:
        """The cluster does not know the topic: records that were never in a partition are refused after a while."""
        topic.unknown_since = now if topic.unknown_since is None else topic.unknown_since
        error = BrokerError(code, f"topic {topic.name}")
        is_final = not error.retriable or now - topic.unknown_since >= _UNKNOWN_PATIENCE
        if topic.partitions is None and topic.waiting:
            self.watch.error = error
        if is_final and topic.partitions is None:
            topic.unknown_since = None
            self._no_such_topic(topic, error)
        if topic.name in self._named and not topic.is_idle:
            self.watch.look_again([topic.name], now)

    def _no_such_topic(self, topic: Topic, error: OttlaError) -> None:
        self._refuse_waiting(topic, error)
        is_unknown = isinstance(error, BrokerError) and error.code is ErrorCode.unknown_topic_or_partition
        if topic.is_idle:  # else there are batches of a program that ended: it may come back for them
            self.forget(topic, is_unknown=is_unknown)
        elif is_unknown:
            self.effects.append(Forget(topic.name, is_unknown=True))

    def forget(self, topic: Topic, *, is_unknown: bool = False) -> None:
        """The topic is not used any more."""
        del self._named[topic.name]
        self._hurried.discard(topic.name)
        self.effects.append(Forget(topic.name, is_unknown))

    # Brokers

    def broker_changed(self, broker: int, *, is_away: bool) -> None:
        """A broker can be reached, or not. Its partitions may move, and records without a key avoid them."""
        if is_away:
            self._away.add(broker)
        else:
            self._away.discard(broker)
        for topic in self._named.values():
            if broker in topic.leaders.values():
                self._weigh(topic)
                if is_away:
                    self.watch.doubt(topic.name)

    # Ends

    def expire(self, now: float) -> None:
        """Refuses what has waited for its partitions for too long."""
        for topic in self.all():
            limit = topic.settings.delivery_timeout
            while topic.waiting and topic.waiting[0].opened + limit <= now:
                reason = f"the partitions of the topic were not known within {limit:g} s: {self.watch.error}"
                self._refuse_first(topic, reason)
            while topic.late and topic.late[0].handover.opened + limit <= now:
                late = topic.late.popleft()
                reason = f"{_missing(topic, late)}, and that could not be asked within {limit:g} s"
                error = NotDelivered(reason, topic=topic.name, records=len(late.rows), cause=self.watch.error)
                self._refuse(late.handover, error)

    def drop_waiting(self, size_bytes: int) -> None:
        """Drops the oldest that wait for their partitions, until so many bytes are free."""
        for topic in self._named.values():
            while topic.waiting and size_bytes > 0:
                first = topic.waiting[0]
                size_bytes -= first.held_bytes
                reason = f"dropped to make room: the partitions of the topic are not known: {self.watch.error}"
                sizes = first.columns.count, first.held_bytes
                self.effects.append(Report(Dropped(topic.name, -1, *sizes, first.created, first.created, reason)))
                self._refuse_first(topic, reason)

    def fail_waiting(self, error: OttlaError) -> None:
        """Nothing that waits will be delivered."""
        for topic in self._named.values():
            self._refuse_waiting(topic, error)

    def refuse_all(self, reason: str, cause: OttlaError | None) -> None:
        """What is in no batch yet gets into none."""
        for topic in self._named.values():
            for handover in topic.unplaced:
                count = handover.columns.count
                self._refuse(handover, NotDelivered(reason, topic=topic.name, records=count, cause=cause))
            topic.waiting.clear()
            topic.late.clear()

    def _refuse_first(self, topic: Topic, reason: str) -> None:
        handover = topic.waiting.popleft()
        count = handover.columns.count
        self._refuse(handover, NotDelivered(reason, topic=topic.name, records=count, cause=self.watch.error))


def _creates(topic: Topic) -> bool:
    return topic.settings.unknown_topic is OnUnknownTopic.CREATE


def _missing(topic: Topic, late: Late) -> str:
    assert topic.partitions is not None
    assert late.handover.partitions is not None
    wanted, last = int(late.handover.partitions[late.rows[0]]), topic.partitions.count - 1
    return f"topic {topic.name} had no partition {wanted} when it was last seen, but partitions 0 to {last}"


def _make_due(lanes: Iterable[Lane], now: float) -> None:
    for lane in lanes:
        if lane.open is not None:
            lane.open.due = min(lane.open.due, now)
