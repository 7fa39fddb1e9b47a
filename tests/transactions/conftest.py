"""Topics and transactional ids that no other test uses, and producers that are closed at the end of a test."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.errors import OttlaError
from ottla.net import Cluster
from ottla.produce.producer import Producer

from .reading import Log

NewTopic = Callable[..., str]
NewProducer = Callable[..., Producer]


@pytest.fixture(scope="module")
def cluster(kafka: LocalCluster) -> Iterator[Cluster]:
    """Our client, connected to the brokers of the run."""
    with Cluster(kafka.bootstrap) as client:
        yield client


@pytest.fixture(scope="module")
def new_topic(cluster: Cluster) -> NewTopic:
    """Creates a topic and returns its name."""

    def create(partitions: int = 1, **settings: str) -> str:
        name = f"transactions-{uuid.uuid4().hex[:8]}"
        Admin(cluster).create_topic(name, partitions=partitions, replicas=3, settings=settings)
        return name

    return create


@pytest.fixture(scope="module")
def log(kafka: LocalCluster) -> Iterator[Log]:
    """Readers of another client."""
    with Log(kafka.bootstrap) as readers:
        yield readers


@pytest.fixture
def topic(new_topic: NewTopic) -> str:
    """A topic with a single partition."""
    return new_topic()


@pytest.fixture
def tid() -> str:
    """A transactional id."""
    return f"id-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def new_producer(kafka: LocalCluster, tid: str) -> Iterator[NewProducer]:
    """Creates producers with the transactional id of the test."""
    with ExitStack() as stack:

        def create(**options: Any) -> Producer:
            producer = Producer(kafka.bootstrap, **({"transactional_id": tid} | options))
            stack.callback(_close, producer)
            return producer

        yield create


def _close(producer: Producer) -> None:
    try:
        producer.close(10)
    except OttlaError:
        pass  # the test has made its assertions already


@contextmanager
def failing(kind: type[BaseException], match: str | None = None) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """`pytest.raises` around a whole transaction: it may be raised anywhere in the block."""
    with pytest.raises(kind, match=match) as caught:
        yield caught


def fail(error: BaseException) -> None:
    """Raise an error, as a program does in its block."""
    raise error
