"""One DataFrame used repeatedly while its topics change: every use gives the result of Spark's own connector.

A machine, not cases: a table of uses, and a history of uses and changes that both connectors go through in one
session, one DataFrame each. Spark keeps what a source planned for all uses of a DataFrame, so each use is a chance for
an earlier one to show.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.reading import cut_off, new_topic, read, write

from ottla.admin import Admin
from ottla.cluster import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.broker

FORMATS = ("kafka", "ottla")
Use = Callable[["DataFrame", Path], Any]
_numbers = itertools.count()


def _rows(frame: DataFrame) -> list[Any]:
    return sorted(map(tuple, frame.select("topic", "partition", "offset", "value").collect()))


def _viewed(frame: DataFrame, query: str) -> Any:
    name = f"reused{next(_numbers)}"
    frame.createOrReplaceTempView(name)
    rows = frame.sparkSession.sql(query.format(name)).collect()
    frame.sparkSession.catalog.dropTempView(name)
    return sorted(map(tuple, rows))


def _written(frame: DataFrame, folder: Path) -> int:
    path = str(folder / f"written{next(_numbers)}")
    frame.select("offset").write.parquet(path)
    return frame.sparkSession.read.parquet(path).count()


def _cached(frame: DataFrame, folder: Path) -> Any:
    """Cached data does not change, even for DataFrames made from it; afterwards the cache is dropped."""
    frame.persist()
    rows = (frame.count(), frame.where("offset >= 5").count(), frame.count())
    frame.unpersist(blocking=True)
    return (*rows, frame.count())


def _joined(frame: DataFrame, other: DataFrame) -> int:
    return frame.alias("a").join(other.alias("b"), ["topic", "partition", "offset"]).count()


USES: dict[str, Use] = {
    "count": lambda frame, _: frame.count(),
    "whole": lambda frame, _: _rows(frame),
    "offsets": lambda frame, _: _rows(frame.where("offset >= 7")),
    "a partition": lambda frame, _: _rows(frame.where("partition = 0 and offset < 9")),
    "no such topic": lambda frame, _: frame.where("topic = 'another'").count(),
    "times": lambda frame, _: frame.where("timestamp > now() + interval 1 day").count(),
    "union": lambda frame, _: frame.where("partition = 0").union(frame).count(),
    "union of filters": lambda frame, _: _rows(frame.where("offset < 3").union(frame.where("offset >= 3"))),
    "self-join": lambda frame, _: _joined(frame, frame),
    "join with a part": lambda frame, _: _joined(frame.where("offset >= 4"), frame.where("offset < 8")),
    "groups": lambda frame, _: sorted(map(tuple, frame.groupBy("partition").count().collect())),
    "sorted": lambda frame, _: [
        row[0] for row in frame.orderBy("topic", "partition", "offset").select("value").collect()
    ],
    "subquery": lambda frame, _: _viewed(frame, "SELECT value FROM {0} WHERE offset = (SELECT max(offset) FROM {0})"),
    "view": lambda frame, _: _viewed(frame, "SELECT partition, count(*) FROM {0} WHERE offset > 2 GROUP BY 1"),
    "write": _written,
    "cache": _cached,
    "iterator": lambda frame, _: sum(1 for _ in frame.select("offset").toLocalIterator()),
    "shuffled": lambda frame, _: _rows(frame.repartition(3)),
}
HISTORY = (
    *("count", "offsets", "count", "no such topic", "+records", "whole", "union", "+records", "self-join", "view"),
    *("cache", "+partition", "+records", "write", "iterator", "count"),
)
"""Uses right after a change, and after a use that skips something."""


class Played:
    """Two topics and a DataFrame of each format that reads both."""

    def __init__(self, spark: SparkSession, kafka: LocalCluster, folder: Path, **options: str) -> None:
        self._bootstrap = kafka.bootstrap
        self._folder = folder
        self._partitions = [2, 1]
        self._topics = [new_topic(kafka.bootstrap, count) for count in self._partitions]
        self._written = itertools.count()
        self.add()
        base = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": ",".join(self._topics), **options}
        self._frames = {form: spark.read.format(form).options(**base).load() for form in FORMATS}

    def add(self) -> None:
        for topic, count in zip(self._topics, self._partitions, strict=True):
            for partition in range(count):
                first = next(self._written) * 10
                write(self._bootstrap, topic, range(first, first + 10), partition)

    def grow(self) -> None:
        self._partitions[0] += 1
        with Admin(self._bootstrap) as admin:
            admin.add_partitions(self._topics[0], self._partitions[0])

    def go(self, history: Iterator[str]) -> None:
        seen: list[str] = []
        for step in history:
            seen.append(step)
            if step == "+records":
                self.add()
            elif step == "+partition":
                self.grow()
            else:
                theirs, ours = (USES[step](self._frames[form], self._folder) for form in FORMATS)
                assert ours == theirs, f"after {', '.join(seen)}"


def test_every_use_of_a_frame_has_the_answer_of_the_connector(
    spark: SparkSession, kafka: LocalCluster, tmp_path: Path
) -> None:
    Played(spark, kafka, tmp_path).go(iter(HISTORY))


@pytest.mark.long
@pytest.mark.parametrize("pushdown", ["false", "true"])
@pytest.mark.parametrize("seed", range(3))
def test_also_in_any_order(spark: SparkSession, kafka: LocalCluster, tmp_path: Path, pushdown: str, seed: int) -> None:
    """Also with the setting that lets Spark push filters into Python sources."""
    chance = random.Random(seed)
    steps = (chance.choice([*USES, *["+records"] * 6, "+partition"]) for _ in range(60))
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, pushdown)
    try:
        Played(spark, kafka, tmp_path).go(steps)
    finally:
        spark.conf.unset(setting)


# Where the result differs on purpose


def test_an_rdd_is_the_same_each_time_it_is_computed(spark: SparkSession, kafka: LocalCluster) -> None:
    """It has the records of the first use: an RDD that gives other rows each time would number them wrongly."""
    topic = new_topic(kafka.bootstrap)
    write(kafka.bootstrap, topic, range(10))
    frame = read(spark, kafka.bootstrap, topic)
    assert frame.rdd.count() == 10
    write(kafka.bootstrap, topic, range(10, 15))
    assert frame.rdd.map(lambda row: row.offset).collect() == list(range(10))
    assert frame.count() == 15


def test_what_retention_takes_between_two_uses_is_an_error_that_says_what_to_do(
    spark: SparkSession, kafka: LocalCluster
) -> None:
    topic = new_topic(kafka.bootstrap)
    write(kafka.bootstrap, topic, range(10))
    strict, lenient = (read(spark, kafka.bootstrap, topic, failOnDataLoss=loss) for loss in ("true", "false"))
    assert strict.count() == lenient.count() == 10
    cut_off(kafka.bootstrap, topic, 4)
    write(kafka.bootstrap, topic, range(10, 13))
    assert lenient.count() == 9
    with pytest.raises(Exception, match=r"offsets \[0, 4\) are lost.*load\(\) it again"):
        strict.count()
    assert read(spark, kafka.bootstrap, topic).count() == 9
