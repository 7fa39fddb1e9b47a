"""Archives on Spark, Parquet and Delta, survive SIGKILL of the driver and of Python workers: every record once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.spark.archive_kills import Victim, check, fill, harass

from ottla.cluster import LocalCluster

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]


def test_killed_at_random_moments_both_archives_are_complete(kafka: LocalCluster, tmp_path: Path) -> None:
    topic, total = "spark-archive-kills", 24_000
    fill(kafka.bootstrap, topic, total)
    victim = Victim(kafka.bootstrap, topic, tmp_path)
    harass(victim, 3, random.Random(), total=total)
    assert len(victim.kills) == 3, "it was through before it could be killed"
    check(victim, total=total)
