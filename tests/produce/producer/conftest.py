"""The fake cluster that a producer of these tests writes to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.testing import FakeKafka


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka(brokers=2, topics={"t": 1, "many": 4}, auto_create=None) as cluster:
        yield cluster
