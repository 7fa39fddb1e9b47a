"""The throttles of a run: rates of brokers, and the replicas they apply to, from the first move to the last.

Comes in: moves that run, and a rate. It changes settings of topics and brokers, and puts them back. Entries of others
stay, and so does a list that is `*`. A broker that is down keeps its rate, which applies to no replica by then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from ottla.admin.all_brokers import await_everywhere
from ottla.admin.movement import THROTTLED, broker_settings, topic_settings
from ottla.admin.settings import build_describe, not_yet
from ottla.admin.throttles import (
    FOLLOWER_RATE,
    LEADER_RATE,
    Throttled,
    alter_broker,
    alter_topics,
    parse_replicas,
    topic_changes,
)
from ottla.errors import DeadlineExceeded, OttlaError
from ottla.net.cluster import Cluster
from ottla.net.deadline import Deadline
from ottla.operations.moves.values import Move

RATES = (LEADER_RATE, FOLLOWER_RATE)
_VISIBLE_SECONDS = 15.0


def throttled_by(moves: Iterable[Move]) -> dict[str, Throttled]:
    """Return what moves throttle, by topic: the old replicas as leaders, the new ones as followers.

    Replicas that are in sync are never throttled by the brokers, so listing all old ones slows no other copy.
    """
    leaders: dict[str, set[tuple[int, int]]] = defaultdict(set)
    followers: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for move in moves:
        if move.added:
            topic, partition = move.partition
            leaders[topic] |= {(partition, broker) for broker in move.before}
            followers[topic] |= {(partition, broker) for broker in move.added}
    return {topic: Throttled(frozenset(leaders[topic]), frozenset(followers[topic])) for topic in leaders}


class Throttles:
    """The throttles that one run sets. `before` has the rates of brokers as an earlier run found them."""

    def __init__(self, cluster: Cluster, before: Mapping[int, Mapping[str, str | None]]) -> None:
        self._cluster = cluster
        self.before = {broker: dict(own) for broker, own in before.items()}
        self._rates: dict[int, int] = {}
        self.left: dict[int, str] = {}
        """Brokers that kept a rate, and why."""
        self._are_ours = False

    def adopt(self, moves: Collection[Move], *, deadline: Deadline) -> None:
        """Treat rates as set by another run of the plan if these moves, which run already, are throttled as it does.

        Its files are elsewhere, and so is what brokers had before. A rate from before the moves is rare: it slows
        nothing; one that stayed for ever would be worse.
        """
        wanted = throttled_by(moves)
        present = topic_settings(self._cluster, list(wanted), only=THROTTLED, deadline=deadline)
        self._are_ours = any(
            own.followers and own.followers <= (parse_replicas(present.get(topic, {}).get(THROTTLED[1])) or frozenset())
            for topic, own in wanted.items()
        )

    def find_rates(self, brokers: Collection[int], *, deadline: Deadline) -> None:
        """Note the rates that brokers have before this run changes them."""
        new = [broker for broker in brokers if broker not in self.before]
        known = self._cluster.metadata(deadline=deadline).brokers
        asked = [known[b] for b in new if b in known]
        # A default of all brokers comes back by itself: given to each of them, it would stay after it is changed.
        found = broker_settings(self._cluster, asked, only=RATES, own_only=True, deadline=deadline)
        for broker, own in found.items():
            self.before[broker] = {name: None if self._are_ours else own.get(name) for name in RATES}

    def set_rate(self, brokers: Collection[int], rate: int, *, deadline: Deadline) -> list[int]:
        """Set both rates of these brokers, where they differ. Returns the brokers that did not take it."""
        failed = []
        for broker in sorted(brokers):
            if self._rates.get(broker) == rate or broker not in self.before:
                continue
            try:
                alter_broker(self._cluster, broker, dict.fromkeys(RATES, str(rate)), deadline=deadline)
                self._rates[broker] = rate
            except (DeadlineExceeded, OttlaError):
                failed.append(broker)  # it went down: the run finds that out by itself
        return failed

    def assume_nothing(self) -> None:
        """Set rates again at the next call: others may have removed them while nothing moved."""
        self._rates.clear()

    def add(self, moves: Collection[Move], *, deadline: Deadline) -> None:
        """Throttle the replicas of these moves, and wait until every broker knows."""
        wanted = throttled_by(moves)
        present = topic_settings(self._cluster, list(wanted), only=THROTTLED, deadline=deadline)
        changes = {
            topic: topic_changes(present.get(topic, {}), add=own, remove=Throttled()) for topic, own in wanted.items()
        }
        changes = {topic: own for topic, own in changes.items() if own}
        if not changes:
            return
        alter_topics(self._cluster, changes, deadline=deadline)
        # A broker that lags behind would send without a limit for a moment; no reason not to begin.
        with suppress(DeadlineExceeded):
            await_everywhere(
                self._cluster,
                lambda version_of: build_describe(version_of, list(changes), only=THROTTLED),
                judge=lambda response: next(
                    filter(None, (not_yet(response, topic, own) for topic, own in changes.items())), None
                ),
                what="waiting for throttled replicas",
                deadline=deadline.sooner(_VISIBLE_SECONDS),
            )

    def remove(self, moves: Collection[Move], *, deadline: Deadline) -> None:
        """Take the replicas of these moves off the lists."""
        wanted = throttled_by(moves)
        present = topic_settings(self._cluster, list(wanted), only=THROTTLED, deadline=deadline)
        changes = {
            topic: topic_changes(present.get(topic, {}), add=Throttled(), remove=own) for topic, own in wanted.items()
        }
        alter_topics(self._cluster, changes, deadline=deadline)

    def restore(self, brokers: Collection[int] | None = None, *, deadline: Deadline) -> None:
        """Give brokers, all of them if none are named, the rates that they had. Those that are down are in `left`."""
        chosen = sorted(self.before if brokers is None else set(brokers) & set(self.before))
        alive = self._cluster.metadata(deadline=deadline).brokers
        for broker in chosen:
            if broker not in alive:
                self.left[broker] = "it is down"
                continue
            try:
                alter_broker(self._cluster, broker, self.before[broker], deadline=deadline)
            except OttlaError as error:
                self.left[broker] = str(error)
                continue
            del self.before[broker]
            self._rates.pop(broker, None)
            self.left.pop(broker, None)
