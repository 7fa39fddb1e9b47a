"""The real brokers of a run: one cluster for all workers, one hasty broker for all, and one for tests that break some.

In comes the folder of the run; out goes a cluster that ends with the run, also when the run is killed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from ottla.cluster import LocalCluster
from ottla.cluster.process import Life, ProcessId

BREAKING = frozenset(
    {
        "tests/cluster/test_local.py",
        "tests/consume/test_consumer_deaths.py",
        "tests/engines/fleet/nodes/test_fleet_group.py",
        "tests/engines/fleet/test_fleet_fire.py",
        "tests/faults/test_brokers.py",
        "tests/fetch/test_broken_brokers.py",
        "tests/gateway/test_deaths.py",
        "tests/gateway/test_gateway_outage.py",
        "tests/jobs/test_archive_real.py",
        "tests/mirror/test_kills.py",
        "tests/mirror/test_unclean.py",
        "tests/operations/health/test_broken_clusters.py",
        "tests/operations/lag/test_away.py",
        "tests/spooling/test_doubts.py",
        "tests/transactions/test_deaths.py",
    }
)
"""Files with tests that kill, stop or freeze brokers: they run in one worker, on brokers of their own."""
_NAME = "tests"
_DAY = str(24 * 60 * 60 * 1000)
_SETTINGS = {
    # Some tests write records of years ago, which retention takes away half a minute after a broker has started, and
    # every five minutes: here it does not look for a day.
    "log.retention.check.interval.ms": _DAY,
    "log.initial.task.delay.ms": _DAY,
    # A dozen brokers wait for work at a time: each thread of theirs that wakes up to find none is paid by all tests.
    "num.network.threads": "1",
    "num.io.threads": "2",
    "background.threads": "2",
    "replica.fetch.wait.max.ms": "2000",
}
_ONE_REPLICA = {
    **_SETTINGS,
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
"""For brokers that do not die: topics have three replicas where a test asks for them. Each costs as much again."""
_HASTY = {
    # Members of groups may be given up soon.
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": "4000",
    "group.consumer.min.heartbeat.interval.ms": "50",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.assignment.interval.ms": "0",
    # Expired transactions are looked for all the time, not every ten seconds.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    **_SETTINGS,
}


class SharedCluster(LocalCluster):
    """Brokers that tests of other workers use at the same time: no test may take them away."""

    def _refuse(self, *ids: int) -> NoReturn:
        raise AssertionError("other tests use these brokers: name the file in tests.brokers.BREAKING")

    kill = stop = freeze = thaw = restart = add = _refuse


@contextmanager
def shared_brokers(base: Path) -> Iterator[LocalCluster]:
    """The cluster of the run, whose temporary folder is `base`: the first worker that needs it starts it.

    It belongs to the process that started the workers, and goes when that one ends.
    """
    with _shared(base, lambda folder: _cluster(SharedCluster, folder, _ONE_REPLICA)) as cluster:
        yield cluster


@contextmanager
def hasty_broker(base: Path) -> Iterator[LocalCluster]:
    """One broker with short timeouts, which all workers share, too."""
    # In a folder of its own: the commands of a cluster find all others of its folder.
    with _shared(
        base, lambda folder: SharedCluster("hasty", brokers=1, dir=folder / "hasty", settings=_HASTY)
    ) as cluster:
        yield cluster


@contextmanager
def _shared(base: Path, make: Callable[[Path], LocalCluster]) -> Iterator[LocalCluster]:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        with make(base / "clusters") as cluster:
            yield cluster
        return
    shared = make(base.parent / "clusters")
    shared._up(owner=ProcessId.of(os.getppid()))
    yield shared


@contextmanager
def own_brokers(base: Path) -> Iterator[LocalCluster]:
    """A cluster of this worker alone. A test that breaks it mends it."""
    with _cluster(LocalCluster, base / "breaking") as cluster:
        yield cluster


def mend(kafka: LocalCluster) -> list[int]:
    """Frozen brokers go on, dead ones start, and all of them know one another; which were not running."""
    lives = {broker.id: broker.life for broker in kafka.status().brokers}
    frozen = [number for number, life in lives.items() if life is Life.FROZEN]
    dead = [number for number, life in lives.items() if life is Life.DEAD]
    if frozen:
        kafka.thaw(*frozen)
    if dead:
        kafka.restart(*dead)
    return [*frozen, *dead]


def remove_shared(base: Path) -> None:
    """At the end of a run with workers."""
    for folder in (base / "clusters", base / "clusters" / "hasty"):
        for status in LocalCluster.all(folder):
            LocalCluster(status.name, dir=folder).down()


def _cluster(kind: type[LocalCluster], folder: Path, settings: Mapping[str, str] = _SETTINGS) -> LocalCluster:
    return kind(_NAME, brokers=3, secure=True, plaintext=True, dir=folder, settings=settings)
