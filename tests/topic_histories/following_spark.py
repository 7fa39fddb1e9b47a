"""A streaming query of Spark as a follower; its batches are collected as they are written."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .following import ANY, Entry, Handed, Lost, Restarted
from .world import World

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_BUSY = "Python worker failed to connect back"
"""Spark gives a worker ten seconds to start, which a busy machine may need: the query goes on with its checkpoint."""


def options(world: World, *, fail_on_data_loss: bool) -> dict[str, str]:
    """Of a query on the world's topic, which does not wait for long."""
    return {
        "kafka.bootstrap.servers": world.bootstrap,
        "subscribe": world.topic,
        "startingOffsets": "earliest",
        "failOnDataLoss": str(fail_on_data_loss).lower(),
        "kafka.metadata.max.age.ms": "200",
        "kafka.default.api.timeout.ms": "4000",
    }


class FollowsByStream:
    """A query with a checkpoint. With `failOnDataLoss=true` it ends when something is lost, and another one begins with
    a checkpoint of its own. With `false` what is lost is a line in the log of Spark's workers, which is not read here:
    that something is said is not judged."""

    follows_cuts = False

    def __init__(
        self, world: World, spark: SparkSession, folder: Path, *, fail_on_data_loss: bool, **more: str
    ) -> None:
        self.tells = fail_on_data_loss
        self._world = world
        self._spark = spark
        self._folder = folder
        self._options = {**options(world, fail_on_data_loss=fail_on_data_loss), **more}
        self._checkpoints = 0
        self._batches: dict[tuple[int, int], list[Handed]] = {}
        self._said: list[Entry] = []
        self._query = self._begin()

    @property
    def story(self) -> list[Entry]:
        """A batch that Spark repeats takes the place of itself."""
        return [*self._said, *(row for key in sorted(self._batches) for row in self._batches[key])]

    def step(self) -> None:
        """Where a loss has ended the query, it begins again."""
        threading.Event().wait(0.05)
        if self._query.isActive:
            return
        error = str(self._query.exception())
        if _BUSY in error:
            self._query = self._begin()
            return
        if not (self.tells and _is_loss(error)) and "UNKNOWN_TOPIC_OR_PARTITION" not in error:
            raise AssertionError(f"the query ended: {error}")
        self._said.append(Lost(ANY, 0, 0, 0, "created again, cut back, or older than what the topic keeps"))
        self._checkpoints += 1
        self._query = self._begin()

    def position(self, _: int) -> int | None:
        """It does not say."""
        return None

    def restart(self, meanwhile: Any = None) -> None:
        """The query ends, and another one goes on with its checkpoint."""
        ended = self._world.clock
        self._query.stop()
        if meanwhile is not None:
            meanwhile()
        self._said.append(Restarted(ended, self._world.clock))
        self._query = self._begin()

    def close(self) -> None:
        """Ends the query."""
        self._query.stop()

    @property
    def committed(self) -> dict[int, int] | None:
        """In its checkpoint only."""
        return None

    def _begin(self) -> StreamingQuery:
        number = self._checkpoints

        def keep(batch: DataFrame, batch_id: int) -> None:
            rows = batch.select("partition", "offset", "value").collect()
            self._batches[number, batch_id] = [Handed(row[0], row[1], bytes(row[2])) for row in rows]

        frame = self._spark.readStream.format("ottla").options(**self._options).load()
        writer = frame.writeStream.foreachBatch(keep).trigger(processingTime="0 seconds")
        query: StreamingQuery = writer.option("checkpointLocation", str(self._folder / f"{number}")).start()
        return query


def _is_loss(error: str) -> bool:
    return "OffsetsLost" in error or "failOnDataLoss" in error
