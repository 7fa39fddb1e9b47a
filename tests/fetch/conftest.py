"""Fixtures of the reader's tests. Every test also checks that no thread is left."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping

import pytest
from tests.brokers import mend

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.fetch import session
from ottla.net import Cluster

from .watching import threads_of_reading

NewTopic = Callable[..., str]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Check that every fetching thread was stopped by its owner."""
    yield
    until = time.monotonic() + 30
    while threads_of_reading() and time.monotonic() < until:
        time.sleep(0.01)
    assert not threads_of_reading()


@pytest.fixture(autouse=True)
def sessions_for_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use fetch sessions even for a few partitions, or hardly any test here would have one."""
    monkeypatch.setattr(session, "_MIN_CURSORS", 2)


@pytest.fixture(scope="module")
def cluster(kafka: LocalCluster) -> Iterator[Cluster]:
    """A client of the shared brokers."""
    with Cluster(kafka.bootstrap) as client:
        yield client


@pytest.fixture(scope="module")
def new_topic(cluster: Cluster) -> NewTopic:
    """Return a function that creates a topic and returns its name."""

    def create(partitions: int = 1, settings: Mapping[str, str] | None = None, replicas: int = 3) -> str:
        name = f"fetch-{uuid.uuid4().hex[:8]}"
        Admin(cluster).create_topic(name, partitions=partitions, replicas=replicas, settings=settings)
        return name

    return create


@pytest.fixture
def broken(kafka: LocalCluster) -> Iterator[LocalCluster]:
    """The shared brokers, for a test that breaks them. They are repaired when it ends."""
    try:
        yield kafka
    finally:
        mend(kafka)
