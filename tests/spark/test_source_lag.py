"""Lag in seconds is how long ago the end of the log was where a query is now."""

from __future__ import annotations

import json
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.errors import ConfigError
from ottla.events import BatchDone, Event, LagMeasured
from ottla.spark.lag import EndHistory, LagListener


def test_at_the_end_there_is_no_lag() -> None:
    history = EndHistory()
    assert history.seconds_behind(5, 100.0) == 0.0
    history.add(10, 100.0)
    assert history.seconds_behind(10, 200.0) == 0.0
    assert history.seconds_behind(11, 200.0) == 0.0


def test_between_two_observations_the_log_grew_evenly() -> None:
    history = EndHistory()
    history.add(0, 100.0)
    history.add(100, 110.0)
    history.add(100, 120.0)
    assert history.seconds_behind(0, 120.0) == 20.0
    assert history.seconds_behind(50, 120.0) == 15.0
    assert history.seconds_behind(99, 120.0) == pytest.approx(10.1)


def test_what_is_older_than_the_first_sight_lags_at_least_since_then() -> None:
    history = EndHistory()
    history.add(1000, 100.0)
    assert history.seconds_behind(10, 130.0) == 30.0


def test_a_recreated_topic_is_looked_at_again() -> None:
    history = EndHistory()
    history.add(1000, 100.0)
    history.add(10, 200.0)
    assert history.seconds_behind(10, 210.0) == 0.0
    assert history.seconds_behind(3, 210.0) == 10.0


def progress(batch: int, end: Any, latest: Any, *, rows: int = 10, name: str | None = "archive") -> Any:
    source = SimpleNamespace(
        endOffset=json.dumps(end) if isinstance(end, dict) else end,
        latestOffset=json.dumps(latest) if isinstance(latest, dict) else latest,
    )
    return SimpleNamespace(
        progress=SimpleNamespace(
            id=uuid.UUID(int=1), name=name, batchId=batch, numInputRows=rows, batchDuration=500, sources=[source]
        )
    )


def test_every_batch_is_reported_with_the_lag_of_each_partition() -> None:
    emitted: list[Event] = []
    now = 100.0
    listener = LagListener(emitted.append, clock=lambda: now)
    listener.onQueryProgress(progress(0, {"t": {"0": 10, "1": 5}}, {"t": {"0": 10, "1": 9}}))
    now = 104.0
    listener.onQueryProgress(progress(1, {"t": {"0": 10, "1": 9}}, {"t": {"0": 30, "1": 9}}))
    assert emitted == [
        BatchDone("archive", 0, 10, 0.5, 20.0),
        LagMeasured("archive", "t", 0, 0, 0.0),
        LagMeasured("archive", "t", 1, 4, 0.0),
        BatchDone("archive", 1, 10, 0.5, 20.0),
        LagMeasured("archive", "t", 0, 20, 4.0),
        LagMeasured("archive", "t", 1, 0, 0.0),
    ]


@pytest.mark.parametrize("strange", [None, "", "7", '"x"', "[1]", "{}", '{"a": 1}'])
def test_sources_with_other_offsets_are_left_alone(strange: str | None) -> None:
    emitted: list[Event] = []
    LagListener(emitted.append).onQueryProgress(progress(3, strange, strange, name=None))
    assert emitted == [BatchDone(str(uuid.UUID(int=1)), 3, 10, 0.5, 20.0)]


def test_to_publish_progress_a_group_must_be_named() -> None:
    with pytest.raises(ConfigError, match="needs the option commitGroup"):
        LagListener(print, commit={"kafka.bootstrap.servers": "a:1"})
