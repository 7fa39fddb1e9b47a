"""What the tests of the consumer share."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from tests.waiting import eventually

from .consuming import our_threads


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    """Every thread of a consumer has an owner that ended it."""
    yield
    eventually(lambda: not our_threads(), f"no thread is left of {our_threads()}", seconds=5)


@pytest.fixture
def group() -> str:
    """A group that no other test uses."""
    return f"group-{uuid.uuid4().hex[:8]}"
