"""Shared by the tests of the fake: after every test, no handler has failed and no thread is left."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def nothing_is_left_behind(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Check that the fake logged no error and that none of its threads is alive after the test."""
    yield
    stages = [record for when in ("setup", "call") for record in caplog.get_records(when)]
    failures = [r.getMessage() for r in stages if r.name.startswith("ottla.testing") and r.levelno >= logging.ERROR]
    assert not failures
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("fake-kafka")]
