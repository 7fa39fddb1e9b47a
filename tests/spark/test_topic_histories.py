"""Spark queries on topics that change in every possible way: the rows are what is in the logs."""

from __future__ import annotations

import os
import random
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.topic_histories.following_spark import FollowsByStream, options
from tests.topic_histories.history import change, live
from tests.topic_histories.world import World
from tests.topic_histories.worlds import FakeWorld, RealWorld

from ottla.cluster import LocalCluster
from ottla.testing import FakeKafka

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.broker]
HISTORIES = int(os.environ.get("OTTLA_TOPIC_HISTORIES", "0"))
both = pytest.mark.parametrize("fail_on_data_loss", [False, True])


@both
def test_a_stream_follows_a_real_topic(
    spark: SparkSession, kafka: LocalCluster, tmp_path: Path, fail_on_data_loss: bool
) -> None:
    with closing(RealWorld(kafka.bootstrap)) as world:
        world.create(2)
        live(world, FollowsByStream(world, spark, tmp_path, fail_on_data_loss=fail_on_data_loss), seed=1, changes=6)


@both
@pytest.mark.long
@pytest.mark.parametrize("limit", ["", "7"])
@pytest.mark.parametrize("seed", range(100, 100 + (HISTORIES or 5)))
def test_streams_follow_topics_for_long(
    spark: SparkSession, tmp_path: Path, fail_on_data_loss: bool, limit: str, seed: int
) -> None:
    """Also truncated and compacted topics, in limited batches and all at once."""
    more = {"maxOffsetsPerTrigger": limit} if limit else {}
    with FakeKafka(auto_create=None) as fake:
        world = FakeWorld(fake)
        world.create(2)
        follower = FollowsByStream(world, spark, tmp_path, fail_on_data_loss=fail_on_data_loss, **more)
        live(world, follower, seed=seed, changes=20)


@both
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(100, 100 + (HISTORIES or 5)))]
)
def test_a_dataframe_has_what_is_there_after_every_change(
    spark: SparkSession, fail_on_data_loss: bool, seed: int
) -> None:
    """A new DataFrame always; one that was used before as well, or it raises what is lost."""
    chance = random.Random(seed)
    with FakeKafka(auto_create=None) as fake:
        world = FakeWorld(fake)
        world.create(2)
        frame = _frame(spark, world, fail_on_data_loss)
        for _ in range(6):
            for _ in range(chance.choice((1, 1, 3))):
                change(world, chance)
            expected = sorted(record.value for record in world.present)
            assert _values(_frame(spark, world, fail_on_data_loss)) == expected, world.diary
            try:
                assert _values(frame) == expected, world.diary
            except Exception as error:
                if not fail_on_data_loss or "OffsetsLost" not in str(error):
                    raise
                frame = _frame(spark, world, fail_on_data_loss)


def _frame(spark: SparkSession, world: World, fail_on_data_loss: bool) -> DataFrame:
    return spark.read.format("ottla").options(**options(world, fail_on_data_loss=fail_on_data_loss)).load()


def _values(frame: DataFrame) -> list[bytes]:
    return sorted(bytes(row[0]) for row in frame.select("value").collect())
