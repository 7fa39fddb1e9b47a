"""A new topic for each test, puppets, and a broker that tests may kill and that soon forgets producer ids."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.net import Cluster

from .stage import Nursery, Puppet

NewTopic = Callable[..., str]
NewPuppet = Callable[[], Puppet]


def create_topic(bootstrap: str, *, partitions: int = 1, replicas: int = 1) -> str:
    """A topic that no other test uses."""
    name = f"spooling-{uuid.uuid4().hex[:8]}"
    with Cluster(bootstrap) as cluster:
        Admin(cluster).create_topic(name, partitions=partitions, replicas=replicas)
    return name


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """The process that forks puppets."""
    with Nursery(tmp_path_factory.mktemp("nursery")) as nursery:
        yield nursery


@pytest.fixture
def puppet(nursery: Nursery) -> Iterator[NewPuppet]:
    """Starts processes with producers, which end with the test."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(nursery.puppet())


@pytest.fixture(scope="module")
def lonely(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One broker that forgets a producer id after two seconds. Tests kill and restart it."""
    settings = {"producer.id.expiration.ms": "2000", "producer.id.expiration.check.interval.ms": "500"}
    with LocalCluster("lonely", brokers=1, settings=settings, dir=tmp_path_factory.mktemp("lonely")) as cluster:
        yield cluster
