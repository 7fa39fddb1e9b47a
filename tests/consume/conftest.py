"""Fixtures shared by the tests of the consumer."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from tests.waiting import eventually

from ottla.cluster import LocalCluster

from .consuming import our_threads
from .ways import SETTINGS


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    """Check that every thread of a consumer was stopped."""
    yield
    eventually(lambda: not our_threads(), f"no thread is left of {our_threads()}")


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One broker with short minimum timeouts."""
    with LocalCluster("groups", brokers=1, dir=tmp_path_factory.mktemp("clusters"), settings=SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def group() -> str:
    """A group name that no other test uses."""
    return f"group-{uuid.uuid4().hex[:8]}"
