"""Archives and the exactly-once sink survive SIGKILL of the driver and of Python workers: every record once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.spark.archive_kills import Victim, check, fill, harass

from ottla.admin import Admin
from ottla.cluster import LocalCluster

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]


def test_killed_at_random_moments_the_archive_and_the_copy_are_complete(kafka: LocalCluster, tmp_path: Path) -> None:
    topic, copy, total = "spark-archive-kills", "spark-archive-kills-copy", 16_000
    fill(kafka.bootstrap, topic, total)
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic(copy, partitions=2)
    victim = Victim(kafka.bootstrap, topic, tmp_path, copy=copy, formats=("delta",))
    harass(victim, 2, random.Random())  # a worker, then the driver; `make soak` does more, with both formats
    assert victim.kills == ["worker", "driver"], "it was through before it could be killed"
    check(victim, total=total)
