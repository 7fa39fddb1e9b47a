"""A query that is killed at random moments leaves every record in the topic exactly once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.spark import sink_kills
from tests.transactions.reading import Log

from ottla.cluster import LocalCluster

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(900)]


def test_three_kills_leave_every_record_exactly_once(kafka: LocalCluster, tmp_path: Path) -> None:
    report = sink_kills.run(kafka.bootstrap, tmp_path, kills=3, chance=random.Random(), tag="suite")
    assert report.good, report
    assert report.kills.total() == 3
    with Log(kafka.bootstrap) as log:  # another client's reader, which nothing blocks
        assert sorted(log.committed("sink-suite-to")) == sorted(
            f"value {number}".encode() for number in range(report.records)
        )
