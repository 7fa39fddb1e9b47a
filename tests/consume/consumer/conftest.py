"""The fake cluster of these tests, with short timeouts for the consumer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.consume.consuming import filled

from ottla.testing import FakeKafka


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    """`t` has five batches of ten records in one partition, `many` in each of four, `long` forty, `none` none."""
    with FakeKafka(topics={"t": 1, "many": 4, "long": 1, "none": 1}, auto_create=None) as cluster:
        filled(cluster, "t", 1)
        filled(cluster, "long", 1, batches=40)
        filled(cluster, "many", 4)
        yield cluster


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up soon on unknown topics and on partitions that wait for a commit."""
    monkeypatch.setattr("ottla.net.attempts.UNKNOWN_TOPIC_SECONDS", 0.3)
    monkeypatch.setattr("ottla.consume.assignment._REVOKE_SECONDS", 0.5)
