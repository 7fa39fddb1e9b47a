"""Topics that no other test uses, and brokers that are whole again after each test."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from tests.brokers import mend

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.net import Cluster

NewTopic = Callable[..., str]


@pytest.fixture(scope="module")
def cluster(kafka: LocalCluster) -> Iterator[Cluster]:
    """Our client, connected to the brokers of the run."""
    with Cluster(kafka.bootstrap) as client:
        yield client


@pytest.fixture(scope="module")
def new_topic(cluster: Cluster) -> NewTopic:
    """Creates a topic and returns its name."""

    def create(partitions: int = 6, replicas: int = 3) -> str:
        name = f"faults-{uuid.uuid4().hex[:8]}"
        Admin(cluster).create_topic(name, partitions=partitions, replicas=replicas)
        return name

    return create


@pytest.fixture
def broken(kafka: LocalCluster) -> Iterator[LocalCluster]:
    """The brokers of the run, for a test that breaks them. They are repaired when it ends."""
    try:
        yield kafka
    finally:
        mend(kafka)
