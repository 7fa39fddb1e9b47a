"""Shared by the tests of the fake: every test also proves that no handler of the fake failed and no thread stayed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def nothing_is_left_behind(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No error in the fake's own log, and none of its threads alive after the test."""
    yield
    stages = [record for when in ("setup", "call") for record in caplog.get_records(when)]
    failures = [r.getMessage() for r in stages if r.name.startswith("ottla.testing") and r.levelno >= logging.ERROR]
    assert not failures
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("fake-kafka")]
