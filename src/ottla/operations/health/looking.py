"""Looks at a cluster: asks its brokers for everything that checks judge, and returns a `Snapshot`.

Comes in: a cluster client and a timeout. Every part is asked for on its own: what a user may not see, or what no broker
can tell, is missing from the snapshot and said in `unseen`; a broker that does not answer delays nothing but itself. It
changes nothing, and raises nothing that brokers may cause.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ottla.admin import groups
from ottla.admin.all_brokers import ask_each
from ottla.admin.disks import LogDirs, find_log_dirs
from ottla.admin.groups import ListedGroup
from ottla.admin.lookup import find_ranges, find_soon
from ottla.admin.movement import RATES, THROTTLED, broker_settings, running_reassignments, topic_settings
from ottla.admin.nodes import BrokerVersions, find_versions, registered_brokers
from ottla.admin.quorum import Quorum, find_quorum
from ottla.admin.transactions import find_ongoing
from ottla.errors import BrokerError, ErrorCode, NetworkError, OttlaError, UnsupportedFormat
from ottla.model import TopicPartition
from ottla.net.attempts import headline
from ottla.net.cluster import Cluster
from ottla.net.deadline import Deadline
from ottla.net.metadata import Broker, Metadata
from ottla.net.targets import AnyBroker, Node, Target
from ottla.operations.health.findings import counted, named
from ottla.operations.health.snapshot import PROBE_TOPIC, Growth, Snapshot

_T = TypeVar("_T")
_TOPIC_SETTINGS = ("min.insync.replicas", *THROTTLED, "cleanup.policy", "retention.ms", "retention.bytes")
_ANSWER_SECONDS = 3.0
"""How long a broker may take for the smallest request before it counts as silent."""
_CONTROLLER_SECONDS = 5.0
_MOST_ASKED = 3
"""Brokers that are asked for the quorum, if none of them reaches a controller."""
_AT_ONCE = 32
_HOUR = 3600.0
_REFUSED = frozenset(
    {
        ErrorCode.cluster_authorization_failed,
        ErrorCode.topic_authorization_failed,
        ErrorCode.group_authorization_failed,
    }
)
_log = logging.getLogger(__name__)


def look(cluster: Cluster, *, timeout: float = 20.0) -> Snapshot:
    """Return what can be seen of the cluster within about `timeout` seconds."""
    now = time.time()
    deadline = Deadline.after(timeout)
    try:
        metadata = cluster.metadata(None, deadline=deadline.sooner(timeout / 2))
    except OttlaError as error:
        return Snapshot(now, error=_reason(error))
    return _Look(cluster, metadata, deadline, now).whole()


class _Look:
    """One look: the parts that it asked for, and what it could not see."""

    def __init__(self, cluster: Cluster, metadata: Metadata, deadline: Deadline, now: float) -> None:
        self._cluster = cluster
        self._metadata = metadata
        self._deadline = deadline
        self._now = now
        self._unseen: list[str] = []
        self._silent: dict[int, str] = {}
        self._quorum_error: str | None = None
        self._via: Target = AnyBroker()
        """A broker that answers: another one would take all of the time."""

    def whole(self) -> Snapshot:
        """Ask for all parts, those first that the others depend on."""
        versions = self._versions()
        answering = [broker for number, broker in self._metadata.brokers.items() if number in versions]
        if answering:
            self._via = Node(answering[0].id)
        registered = self._part(
            "the registered brokers", lambda limit: registered_brokers(self._cluster, via=self._via, deadline=limit)
        )
        quorum = self._quorum(answering)
        moves = None
        if self._quorum_error is None:
            moves = self._part(
                "reassignments", lambda limit: running_reassignments(self._cluster, via=self._via, deadline=limit)
            )
        settings = self._settings()
        own = self._part(
            "settings of brokers",
            lambda limit: broker_settings(self._cluster, answering, only=RATES, deadline=limit),
        )
        log_dirs = self._log_dirs(answering)
        transactions = self._part("transactions", lambda limit: find_ongoing(self._cluster, answering, deadline=limit))
        return Snapshot(
            self._now,
            cluster_id=self._metadata.cluster_id,
            brokers=self._metadata.brokers,
            registered=registered,
            silent=self._silent,
            versions=versions,
            topics=self._metadata.topics,
            settings=settings,
            own_settings=own or {},
            quorum=quorum,
            quorum_error=self._quorum_error,
            log_dirs=log_dirs,
            growth=self._growth(log_dirs, settings, {*versions}),
            reassignments=moves,
            transactions=tuple(transactions or ()),
            groups=self._groups(answering),
            unseen=tuple(self._unseen),
        )

    def _versions(self) -> dict[int, BrokerVersions]:
        """Ask each broker on a thread of its own: a connection to a frozen one takes all of its time."""
        brokers = list(self._metadata.brokers.values())
        seconds = min(_ANSWER_SECONDS, self._deadline.remaining() / 3)

        def ask(broker: Broker) -> BrokerVersions | OttlaError:
            try:
                found = find_versions(self._cluster, [broker], deadline=Deadline.after(seconds))
            except OttlaError as error:
                return error
            return found[broker.id]

        with ThreadPoolExecutor(min(_AT_ONCE, len(brokers) or 1), thread_name_prefix="ottla-health") as threads:
            answers = dict(zip((broker.id for broker in brokers), threads.map(ask, brokers), strict=True))
        self._silent = {
            number: answer.reason if isinstance(answer, NetworkError) else headline(answer)
            for number, answer in answers.items()
            if isinstance(answer, OttlaError)
        }
        return {number: answer for number, answer in answers.items() if isinstance(answer, BrokerVersions)}

    def _quorum(self, answering: Sequence[Broker]) -> Quorum | None:
        """A broker that reaches no controller answers nothing, or that it timed out. Then others are asked.

        After a controller has frozen, a broker may wait for it for long, while the others have found the next one.
        """
        targets: list[Target] = [Node(broker.id) for broker in answering[:_MOST_ASKED]]
        for target in targets or [self._via]:
            try:
                found = find_quorum(self._cluster, via=target, deadline=self._share().sooner(_CONTROLLER_SECONDS))
            except UnsupportedFormat:
                return None  # with ZooKeeper there is no quorum
            except OttlaError as error:
                if isinstance(error, BrokerError) and error.code in _REFUSED:
                    self._quorum_error = None
                    self._unseen.append(f"the quorum of controllers: {headline(error)}")
                    return None
                self._quorum_error = self._quorum_error or _reason(error)
            else:
                self._quorum_error, self._via = None, target
                return found
        return None

    def _settings(self) -> Mapping[str, Mapping[str, str]]:
        names = list(self._metadata.topics)
        found = self._part(
            "settings of topics",
            lambda limit: topic_settings(self._cluster, names, only=_TOPIC_SETTINGS, via=self._via, deadline=limit),
        )
        if found is None:
            return {}
        hidden = [name for name in names if name not in found]
        if hidden:  # or a topic that was deleted just now: then the next look says nothing of it
            self._unseen.append(f"settings of {counted(len(hidden), 'topic')} ({named(hidden)}): not told to this user")
        return found

    def _log_dirs(self, answering: Collection[Broker]) -> LogDirs:
        found = self._part("disks", lambda limit: find_log_dirs(self._cluster, answering, deadline=limit)) or LogDirs()
        self._unseen += [f"disks of broker {number}: {reason}" for number, reason in sorted(found.away.items())]
        return found

    def _groups(self, answering: Collection[Broker]) -> tuple[ListedGroup, ...]:
        listed: list[ListedGroup] = []
        answers = self._part(
            "groups", lambda limit: ask_each(self._cluster, answering, groups.build_list, deadline=limit)
        )
        for broker, response in (answers or {}).items():
            try:
                if isinstance(response, NetworkError):
                    raise response
                listed += groups.read_list(response, broker.id)
            except (BrokerError, NetworkError) as error:
                self._unseen.append(f"groups of broker {broker.id}: {headline(error)}")
        return tuple(sorted(listed, key=lambda group: group.name))

    def _growth(
        self, log_dirs: LogDirs, settings: Mapping[str, Mapping[str, str]], answering: Collection[int]
    ) -> dict[TopicPartition, Growth]:
        """Return how partitions grew, from the share of their records that is younger than an hour."""
        sizes: dict[TopicPartition, int] = {}
        for directory in (each for dirs in log_dirs.dirs.values() for each in dirs if each.total_bytes is not None):
            for partition, size in directory.replicas.items():
                sizes[partition] = max(size, sizes.get(partition, 0))
        led = [
            TopicPartition(topic.name, part.index)
            for topic in self._metadata.topics.values()
            if topic.name != PROBE_TOPIC
            for part in topic.partitions
            if part.leader in answering and sizes.get(TopicPartition(topic.name, part.index))
        ]
        if not led or self._deadline.expired():
            return {}
        logs = find_ranges(self._cluster, led, deadline=self._share())
        # A log that begins behind 0 has lost records to retention: it gets as much as it loses.
        whole = [partition for partition, log in logs.items() if log.start == 0 and len(log)]
        before = find_soon(self._cluster, whole, at=int((self._now - _HOUR) * 1000), deadline=self._share())
        growth: dict[TopicPartition, Growth] = {}
        for partition, place in before.items():
            new = logs[partition].stop - place.offset if place.offset >= 0 else 0
            if new > 0:
                rate = sizes[partition] * min(1.0, new / len(logs[partition])) / _HOUR
                growth[partition] = grown(rate, sizes[partition], settings.get(partition.topic, {}))
        return growth

    def _part(self, what: str, ask: Callable[[Deadline], _T]) -> _T | None:
        try:
            return ask(self._share())
        except UnsupportedFormat as error:
            _log.debug("not looked at %s: %s", what, error)  # an older broker does not have it
        except OttlaError as error:
            self._unseen.append(f"{what}: {_reason(error)}")
        return None

    def _share(self) -> Deadline:
        """Return the deadline of one part, which leaves time for the others."""
        return self._deadline.sooner(self._deadline.remaining() / 2)


def grown(rate: float, size_bytes: int, settings: Mapping[str, str]) -> Growth:
    """Return how a partition goes on to grow: until its retention, by time or by size, takes as much away."""
    if "delete" not in settings.get("cleanup.policy", "delete"):
        return Growth(rate)
    limits = [math.inf]
    by_time, by_size = _limit(settings.get("retention.ms")), _limit(settings.get("retention.bytes"))
    if by_time is not None:
        limits.append(rate * by_time / 1000)
    if by_size is not None:
        limits.append(by_size)
    return Growth(rate, max(0.0, min(limits) - size_bytes))


def _limit(text: str | None) -> float | None:
    return float(text) if text is not None and text.isdigit() else None


def _reason(error: OttlaError) -> str:
    """Return an error in one line, with what each address said."""
    first, *rest = str(error).splitlines()
    causes = "; ".join(line.strip() for line in rest if not line.strip().startswith("hint:"))
    return f"{first.rstrip(':')}: {causes}" if causes else first
