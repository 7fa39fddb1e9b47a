"""Fixtures shared by the tests of the consumer."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from tests.waiting import eventually

from ottla.cluster import LocalCluster

from .consuming import our_threads


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    """Check that every thread of a consumer was stopped."""
    yield
    eventually(lambda: not our_threads(), f"no thread is left of {our_threads()}")


@pytest.fixture(scope="session")
def broker(hasty: LocalCluster) -> LocalCluster:
    """One broker with short minimum timeouts."""
    return hasty


@pytest.fixture
def group() -> str:
    """A group name that no other test uses."""
    return f"group-{uuid.uuid4().hex[:8]}"
