"""Nodes of a fleet in this process, on real brokers, and topics for them; nothing is left when a test ends."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.engines.fleet.crew import new_fleet, write
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.engines.fleet.fleet import Fleet
from ottla.net import Cluster

from .working import SMALL, NewFleet, NewTopic


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    """Every thread of a fleet has an owner that ended it."""
    yield
    names = ("ottla-fleet", "ottla-read", "read-")
    eventually(
        lambda: not any(thread.name.startswith(names) for thread in threading.enumerate()),
        lambda: f"no thread is left of {threading.enumerate()}",
    )


@pytest.fixture(scope="module")
def client(kafka: LocalCluster) -> Iterator[Cluster]:
    """Connected to the brokers."""
    with Cluster(kafka.bootstrap) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def new_topic(kafka: LocalCluster, client: Cluster) -> NewTopic:
    """Create a topic with this number of records in each partition, whose values are their offsets."""
    numbers = itertools.count()

    def create(records: int = 0, *, partitions: int = 1, **settings: str) -> str:
        name = f"fleet-{uuid.uuid4().hex[:6]}-{next(numbers)}"
        given = {key.replace("_", "."): value for key, value in settings.items()}
        Admin(client).create_topic(name, partitions=partitions, replicas=1, settings=given)
        if records:
            write(kafka.bootstrap, name, records, partitions=partitions)
        return name

    return create


@pytest.fixture
def fleet(kafka: LocalCluster, group: str) -> Iterator[NewFleet]:
    """Makes nodes of one group, in memory unless told otherwise; all are closed when the test ends."""
    with ExitStack() as stack:

        def make(*topics: str, store: str = "memory://", **options: Any) -> Fleet:
            given = {"units": SMALL, "topics": topics} | options
            return stack.enter_context(new_fleet(kafka.bootstrap, group, store, **given))

        yield make
