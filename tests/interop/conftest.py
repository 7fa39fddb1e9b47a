"""Our client for the shared brokers, and topics that no other test uses."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping

import pytest

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.net.cluster import Cluster

MakeTopic = Callable[..., str]


@pytest.fixture(scope="module")
def cluster(kafka: LocalCluster) -> Iterator[Cluster]:
    """Our client, connected to the brokers of the run."""
    with Cluster(kafka.bootstrap) as client:
        yield client


@pytest.fixture(scope="module")
def new_topic(cluster: Cluster) -> MakeTopic:
    """Return a function that creates a topic with these `settings` and returns its name."""
    admin = Admin(cluster)

    def create(partitions: int = 1, settings: Mapping[str, str] | None = None, replicas: int = 3) -> str:
        name = f"interop-{uuid.uuid4().hex[:8]}"
        admin.create_topic(name, partitions=partitions, replicas=replicas, settings=settings)
        return name

    return create
