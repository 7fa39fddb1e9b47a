"""pytest fixtures: `fake_kafka`, a fake broker for one test, and `kafka_cluster`, three real brokers for a session.

pytest loads this module in every run wherever Ottla is installed, so it imports nothing heavy: each fixture imports
what it needs when a test uses it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ottla.cluster import LocalCluster
    from ottla.testing.fake.kafka import FakeKafka


@pytest.fixture
def fake_kafka() -> Iterator[FakeKafka]:
    """One fake broker that creates topics for any client; connect to `fake_kafka.bootstrap`."""
    from ottla.testing.fake.kafka import FakeKafka
    from ottla.testing.fake.state import AutoCreate

    with FakeKafka(auto_create=AutoCreate(for_all=True)) as kafka:
        yield kafka


@pytest.fixture(scope="session")
def kafka_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three real brokers, shared by the tests of the session; skips the test if Java is missing."""
    try:
        from ottla.cluster import LocalCluster
        from ottla.cluster.java import find_java
    except ImportError as exc:
        pytest.fail(f"kafka_cluster needs extra packages: pip install 'ottla[cluster]' ({exc})", pytrace=False)
    from ottla.errors import LocalClusterError

    try:
        find_java(os.environ)
    except LocalClusterError as exc:
        pytest.skip(str(exc))
    # Its own name and directory: parallel sessions do not collide, and the user's clusters stay untouched.
    directory = tmp_path_factory.mktemp("kafka")
    with LocalCluster(f"pytest-{os.getpid()}", brokers=3, dir=directory) as cluster:
        yield cluster
