"""Fetches headers of batches for many partitions at once, and remembers what they said.

Comes in: the unread places of all groups, with where their logs begin and end. Goes out: `Times` for as many of them as
the budget allows; the others are tried by the next poll. `headers` decides what to ask and what answers mean.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ottla.admin.all_brokers import Traffic, count
from ottla.errors import NetworkError, OttlaError
from ottla.model import Isolation, TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.deadline import Deadline
from ottla.net.metadata import Broker
from ottla.net.pending import Pending
from ottla.operations.lag import headers
from ottla.operations.lag.headers import Place, Seen, Unread
from ottla.operations.lag.values import Log, Times
from ottla.wire import fetch

_VERSION = 12  # the newest that names topics
BUDGET = 20_000
"""Places to look at in one poll."""
_MOST_BYTES = 64 << 20
"""What one poll may fetch for headers."""
_LEAST_SECONDS = 0.1
_MOST_IN_FLIGHT = 8
"""Requests to a broker at a time: each may bring `headers.REQUEST_BYTES`."""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Remembered:
    """What is known of one log."""

    log: Log
    first: dict[int, tuple[int, Seen]] = field(default_factory=dict)
    """By offset: the end of the log then, and what was seen."""
    newest: tuple[int, Seen] | None = None
    """The end of the log then, and what was seen."""
    step: int = 0
    """The limit that its batches fit in."""


class HeaderReader:
    """Remembers headers from poll to poll. Not thread-safe."""

    def __init__(self, cluster: Cluster, *, isolation: Isolation, budget: int = BUDGET) -> None:
        self._cluster = cluster
        self._isolation = isolation
        self._budget = budget
        self._known: dict[TopicPartition, _Remembered] = {}

    def read(
        self,
        unread: Iterable[Unread],
        logs: Mapping[TopicPartition, Log],
        leaders: Mapping[TopicPartition, Broker],
        *,
        deadline: Deadline,
        traffic: Traffic | None = None,
    ) -> dict[Unread, Times]:
        """Return the times of what groups have not read. An offset below the start of its log means its start."""
        wanted = [place for place in dict.fromkeys(unread) if place[0] in leaders]
        self._keep({tp: logs[tp] for tp, _ in wanted})
        starts = {place: max(place[1], logs[place[0]].start or 0) for place in wanted}
        places = self._missing({(tp, starts[tp, offset]) for tp, offset in wanted}, logs)
        self._look(places[: self._budget], leaders, deadline, traffic)
        first: dict[Unread, Seen] = {}
        for place, offset in starts.items():
            seen = self._known[place[0]].first.get(offset)
            if seen is not None:
                first[place] = seen[1]
        newest = {
            tp: known.newest[1]
            for tp, known in self._known.items()
            if known.newest is not None and known.newest[0] == known.log.end
        }
        return headers.combine(wanted, first, newest)

    def _keep(self, logs: Mapping[TopicPartition, Log]) -> None:
        """Forget logs that nothing is unread in, and those that were replaced."""
        before, self._known = self._known, {}
        for tp, log in logs.items():
            known = before.get(tp)
            if known is None or known.log.topic_id != log.topic_id or (known.log.end or 0) > (log.end or 0):
                known = _Remembered(log)
            known.log = log
            self._known[tp] = known

    def _missing(self, wanted: set[Unread], logs: Mapping[TopicPartition, Log]) -> list[Place]:
        """Return the places to look at: those of groups before the ends of logs, which every poll moves."""
        first, newest = [], []
        offsets: dict[TopicPartition, set[int]] = {}
        for tp, offset in sorted(wanted):
            known, end = self._known[tp], logs[tp].end or 0
            offsets.setdefault(tp, set()).add(offset)
            seen = known.first.get(offset)
            # That nothing is there but markers holds as long as the log does not grow.
            if seen is None or (seen[1].at is None and seen[0] != end):
                first.append(Place(tp, offset, end, step=known.step))
            if known.newest is None or known.newest[0] != end:
                newest.append(Place(tp, end - 1, end, is_newest=True, step=known.step))
        for tp, known in self._known.items():
            known.first = {offset: seen for offset, seen in known.first.items() if offset in offsets.get(tp, ())}
        return [*first, *dict.fromkeys(newest)]

    def _look(
        self,
        places: list[Place],
        leaders: Mapping[TopicPartition, Broker],
        deadline: Deadline,
        traffic: Traffic | None,
    ) -> None:
        unreachable: set[int] = set()
        own = Traffic()
        while places and deadline.remaining() > _LEAST_SECONDS and own.size_bytes < _MOST_BYTES:
            by_broker: dict[Broker, list[Place]] = {}
            for place in places:
                broker = leaders[place.partition]
                if broker.id not in unreachable:
                    by_broker.setdefault(broker, []).append(place)
            places = []
            queues = {broker: headers.batched(listed) for broker, listed in by_broker.items()}
            while any(queues.values()) and own.size_bytes < _MOST_BYTES:
                sent: list[tuple[Broker, list[Place], Pending]] = []
                for broker, queue in queues.items():
                    sent += self._send(broker, queue[:_MOST_IN_FLIGHT], deadline, unreachable)
                    queues[broker] = queue[_MOST_IN_FLIGHT:] if broker.id not in unreachable else []
                for broker, listed, pending in sent:
                    places += self._take(broker, listed, pending, unreachable, own)
        if traffic is not None:
            traffic.requests += own.requests
            traffic.size_bytes += own.size_bytes

    def _send(
        self, broker: Broker, requests: Iterable[list[Place]], deadline: Deadline, unreachable: set[int]
    ) -> list[tuple[Broker, list[Place], Pending]]:
        limit = deadline.sooner(self._cluster.timeouts.request)
        sent = []
        try:
            connection = self._cluster.connection(broker, deadline=deadline)
            version = connection.version(fetch.API_KEY, highest=_VERSION)
            for places in requests:
                asked = [
                    fetch.FetchPartition(*place.partition, place.offset, headers.size_of(place)) for place in places
                ]
                body = fetch.fetch_request(
                    asked,
                    version=version,
                    max_wait_ms=0,
                    min_bytes=0,
                    max_bytes=headers.REQUEST_BYTES,
                    isolation=self._isolation,
                )
                sent.append((broker, places, connection.submit(fetch.API_KEY, version, body, deadline=limit)))
        except OttlaError as exc:
            _log.debug("cannot fetch headers from %s: %s", broker, exc)
            unreachable.add(broker.id)
        return sent

    def _take(
        self,
        broker: Broker,
        places: list[Place],
        pending: Pending,
        unreachable: set[int],
        traffic: Traffic,
    ) -> list[Place]:
        """Remember what an answer says. Returns where to look next."""
        try:
            answer = fetch.fetch_response(pending.result(), version=pending.version)
        except OttlaError as exc:
            _log.debug("cannot fetch headers from %s: %s", broker, exc)
            if isinstance(exc, NetworkError):
                unreachable.add(broker.id)
            return []
        count(traffic, pending)
        by_partition = {place.partition: place for place in places}
        following: list[Place] = []
        for fetched in answer.partitions:
            place = by_partition.get(TopicPartition(str(fetched.topic), fetched.partition))
            if place is None:
                continue
            try:
                found = headers.interpret(place, fetched, committed_only=self._isolation is Isolation.READ_COMMITTED)
            except OttlaError as exc:
                _log.debug("cannot read the headers of %s at offset %s: %s", place.partition, place.offset, exc)
                continue
            if isinstance(found, Place):
                following.append(found)
            elif found is not None:
                self._remember(place, found)
        return following

    def _remember(self, place: Place, seen: Seen) -> None:
        known = self._known[place.partition]
        if seen.size_bytes:
            known.step = headers.step_for(seen.size_bytes)
        if place.is_newest:
            known.newest = (place.end, seen)
        else:
            known.first[place.asked] = (place.end, seen)
