"""The fake cluster of these tests, and a reader for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.fetch.logs import fill
from tests.fetch.watching import new_reader

from ottla.fetch.reader import Reader
from ottla.model import TopicPartition
from ottla.testing import FakeKafka


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    """`t` has 100 records in one partition, `many` 500 in each of four, `none` none."""
    with FakeKafka(brokers=2, topics={"t": 1, "many": 4, "none": 1}, auto_create=None) as cluster:
        fill(cluster, 10)
        for number in range(4):
            fill(cluster, 50, at=TopicPartition("many", number))
        yield cluster


@pytest.fixture
def reader(kafka: FakeKafka) -> Iterator[Reader]:
    with new_reader(kafka.bootstrap) as reader:
        yield reader
