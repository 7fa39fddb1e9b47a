"""The mirror as a Spark job, in the session that the tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.interop.clients import confluent_write
from tests.interop.samples import UNUSUAL
from tests.mirror.copies import assert_equal, link_of, new_topic, tp

from ottla.cluster import LocalCluster
from ottla.jobs import mirror

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.broker


def test_tasks_mirror_partitions_and_a_later_run_continues(kafka: LocalCluster, spark: SparkSession) -> None:
    topic = new_topic(kafka.bootstrap, "spark", partitions=2)
    link = link_of(kafka.bootstrap, topic)
    for partition in range(2):
        confluent_write(kafka.bootstrap, tp(topic, partition), "zstd", UNUSUAL[:50])
    report = mirror(link, engine="spark", spark=spark)
    assert report.records == 100
    assert {partition.source.partition for partition in report.partitions} == {0, 1}
    confluent_write(kafka.bootstrap, tp(topic), "zstd", UNUSUAL[50:60])
    assert mirror(link).records == 10
    assert assert_equal(kafka.bootstrap, topic, partitions=2) == 110
