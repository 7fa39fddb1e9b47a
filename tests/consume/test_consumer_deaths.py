"""A broker is killed under consumers: the coordinator of their groups, which also leads some of their partitions."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.brokers import mend
from tests.faults.breaking import leaders

from ottla.admin import Admin
from ottla.admin.group_admin import GroupAdmin
from ottla.cluster import LocalCluster
from ottla.consume.membership import GroupOptions, Protocol
from ottla.net import Cluster, CoordinatorKind

from .members import all_of, settled
from .workers import Crew

pytestmark = [pytest.mark.broker, pytest.mark.usefixtures("no_thread_is_left")]
PARTITIONS = 6
WAYS = {
    "classic": GroupOptions(protocol=Protocol.CLASSIC, session_timeout=30.0, heartbeat_interval=0.3),
    "modern": GroupOptions(protocol=Protocol.CONSUMER),
}


@pytest.fixture
def broken(kafka: LocalCluster) -> Iterator[LocalCluster]:
    """The brokers of the run, restored when the test ends."""
    try:
        yield kafka
    finally:
        mend(kafka)


def groups_of_one_broker(client: Cluster) -> tuple[int, Iterator[str]]:
    """A broker, and names of groups that it coordinates.

    After the kills of other tests, a broker may coordinate none until the controller moves leaders back, minutes later.
    """
    names = (f"deaths-{uuid.uuid4().hex[:6]}" for _ in itertools.count())
    broker = client.coordinator(next(names), CoordinatorKind.GROUP).id
    return broker, (name for name in names if client.coordinator(name, CoordinatorKind.GROUP).id == broker)


def test_the_death_of_a_coordinator_and_leader_is_survived_without_loss_or_repetition(broken: LocalCluster) -> None:
    topic = f"deaths-{uuid.uuid4().hex[:6]}"
    with Cluster(broken.bootstrap) as client, ExitStack() as stack:
        Admin(client).create_topic(topic, partitions=PARTITIONS, replicas=3)
        victim, names = groups_of_one_broker(client)
        assert victim in leaders(client, topic).values()
        crews = {}
        for way, options in WAYS.items():
            crew = crews[way] = stack.enter_context(Crew(broken.bootstrap, next(names), topic))
            for name in ("a", "b"):
                crew.hire(name, options=options, commit_every=0.1)
        for crew in crews.values():
            settled(crew.workers, all_of(topic, PARTITIONS))
            crew.flows()
        broken.kill(victim)
        for crew in crews.values():
            crew.flows(500)
        broken.restart(victim)
        for crew in crews.values():
            crew.flows()
            crew.stop_source()
        total = sum(crew.sent for crew in crews.values())
        ends = {tp: log.stop for tp, log in Admin(client).log_ranges(all_of(topic, PARTITIONS)).items()}
        assert sum(ends.values()) == total  # each crew has a source, and reads what both sent
        for way, crew in crews.items():
            crew.until(lambda: crew.history.count >= total, f"everything is processed by {way}")  # noqa: B023
            for worker in list(crew.workers):
                crew.dismiss(worker)
            assert crew.history.repeated == [], way
            assert crew.history.trouble == [], way
            committed = GroupAdmin(client).committed(crew.group)
            assert {tp: offset.offset for tp, offset in committed.items()} == ends, way
