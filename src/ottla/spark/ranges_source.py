"""The data source `ottla-ranges`: a stream whose rows are the offset ranges that an archive needs next.

A `RangesPlan` comes in as an option; a few rows go out for every batch of the query. Spark keeps the offsets and
repeats a batch after a failure; ranges that the ledger has are then left out. This module reads no record.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ottla.events import Events, LogSink
from ottla.fetch.options import OnLost
from ottla.jobs.archive_plan import Cutting, Logs, Round, Survey, due, limited
from ottla.jobs.archive_topics import Topics
from ottla.jobs.brokers import Brokers
from ottla.lake.lake import Lake
from ottla.lake.values import Gap
from ottla.model import OffsetRange, TopicPartition

NAME = "ottla-ranges"
SCHEMA = "kind string, topic string, partition int, start bigint, stop bigint, text string"
OPTION = "secret"
"""The option with the pickled plan, which may contain a password. Spark redacts options with this word in the name."""
RANGE, GAP, TOPIC, TROUBLE = "range", "gap", "topic", "trouble"
"""Kinds of rows: a range to archive; lost offsets with the reason; the id of a topic; a suspended topic with the
reason."""
Row = tuple[str, str, int, int, int, str]
_Json = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RangesPlan:
    """Everything that planning a batch needs."""

    brokers: Brokers
    path: str
    topics: tuple[str, ...]
    on_lost: OnLost
    cutting: Cutting

    def to_option(self) -> str:
        """As text, for a Spark option."""
        return base64.b64encode(pickle.dumps(self)).decode()

    @staticmethod
    def from_option(text: str) -> RangesPlan:
        """Read what `to_option` wrote."""
        plan = pickle.loads(base64.b64decode(text))  # noqa: S301 - our own, from `archiving`
        assert isinstance(plan, RangesPlan)
        return plan


class RangesSource(DataSource):
    """The source for Spark. `ottla.spark.archiving` registers it."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return NAME

    def schema(self) -> str:
        """The columns, the same for every archive."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> RangesReader:  # noqa: N802 - Spark's name
        """The reader. It contacts no broker yet."""
        return RangesReader(RangesPlan.from_option(self.options[OPTION]))


@dataclass(frozen=True)
class _Rows(InputPartition):
    rows: tuple[Row, ...]


class RangesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches. Positions come from the ledger; Spark's offsets only say where a batch ends.

    Methods raise the errors of `Topics.look` when brokers or the lake fail.
    """

    def __init__(self, plan: RangesPlan) -> None:
        self._plan = plan
        self._topics: Topics | None = None
        self._lake: Lake | None = None
        self._final: dict[TopicPartition, int] | None = None
        """Where a query with trigger availableNow ends; None if it has another trigger."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_topics": None, "_lake": None}  # sockets stay in their process

    def initialOffset(self) -> _Json:  # noqa: N802
        """The archive's positions; new partitions begin with their logs."""
        logs, positions = self._look()
        return _to_json({partition: positions.get(partition, begin) for partition, begin in logs.begins.items()})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The maximum size of a batch."""
        return ReadMaxBytes(self._plan.cutting.round_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query: where the logs end now."""
        self._final = dict(self._look()[0].ends)

    def latestOffset(self, start: _Json, limit: ReadLimit) -> _Json:  # noqa: N802
        """Where the next batch ends; equal to `start` if there is nothing to do."""
        logs, positions = self._look()
        if self._final is not None:
            final = self._final
            ends = {tp: min(end, final.get(tp, logs.begins[tp])) for tp, end in logs.ends.items()}
            logs = replace(logs, ends=ends)
        chosen = due(positions, logs, on_lost=self._plan.on_lost)
        if isinstance(limit, ReadMaxBytes):
            chosen = limited(chosen, limit.max_bytes, logs.record_bytes)
        end = _from_json(start)
        for tp, begin in logs.begins.items():
            end[tp] = max(end.get(tp, begin), positions.get(tp, begin))
        for item in (*(gap.range for gap in chosen.gaps), *chosen.ranges):
            end[item.topic_partition] = max(end.get(item.topic_partition, 0), item.stop)
        return _to_json(end)

    def reportLatestOffset(self) -> _Json:  # noqa: N802
        """Where the logs end, for the query's progress report."""
        return _to_json(self._look()[0].ends)

    def partitions(self, start: _Json, end: _Json) -> list[InputPartition]:
        """A single partition with all rows of the batch."""
        logs, positions = self._look()
        stops = _from_json(end)
        ends = {partition: stops.get(partition, begin) for partition, begin in logs.begins.items()}
        chosen = due(positions, replace(logs, ends=ends), on_lost=self._plan.on_lost)
        return [_Rows(tuple(self._rows(chosen, logs)))]

    def read(self, partition: InputPartition) -> Iterator[Row]:
        """The rows of a batch."""
        assert isinstance(partition, _Rows)
        return iter(partition.rows)

    def commit(self, end: _Json) -> None:
        """Nothing to do: the ledger has the positions."""

    def stop(self) -> None:
        """Nothing to do: Spark ends the process."""

    def _rows(self, chosen: Round, logs: Logs) -> Iterator[Row]:
        if not chosen.ranges and not chosen.gaps:
            return
        for gap in chosen.gaps:
            yield (GAP, *_flat(gap.range), gap.reason)
        for task_range in self._plan.cutting.tasks(chosen, logs.record_bytes):
            yield (RANGE, *_flat(task_range), "")
        for topic, topic_id in sorted(logs.topics.items()):
            yield (TOPIC, topic, 0, 0, 0, topic_id)
        for topic, error in sorted(self._topics.troubles.items() if self._topics is not None else ()):
            yield (TROUBLE, topic, 0, 0, 0, str(error))

    def _look(self) -> tuple[Logs, dict[TopicPartition, int]]:
        if self._topics is None:
            brokers, topics = self._plan.brokers, self._plan.topics
            self._lake = Lake.open(self._plan.path)
            survey = Survey(brokers.cluster(), topics, brokers.isolation)
            self._topics = Topics(survey, self._lake, topics, on_lost=self._plan.on_lost, events=Events(LogSink()))
        assert self._lake is not None
        positions = self._lake.positions()
        return self._topics.look(), positions


def planned(rows: list[Row]) -> tuple[Round, dict[str, str]]:
    """The ranges and gaps of a batch, and the ids of its topics."""
    ranges = tuple(OffsetRange(*row[1:5]) for row in rows if row[0] == RANGE)
    gaps = tuple(Gap(OffsetRange(*row[1:5]), row[5]) for row in rows if row[0] == GAP)
    return Round(ranges, gaps), {row[1]: row[5] for row in rows if row[0] == TOPIC}


def suspended(rows: list[Row]) -> dict[str, str]:
    """Topics that are left out of a batch, with the reason."""
    return {row[1]: row[5] for row in rows if row[0] == TROUBLE}


def _flat(item: OffsetRange) -> tuple[str, int, int, int]:
    return item.topic, item.partition, item.start, item.stop


def _to_json(offsets: dict[TopicPartition, int] | Any) -> _Json:
    """Sorted: Spark compares the text, so another order would be another offset."""
    rows: _Json = {}
    for (topic, partition), offset in sorted(offsets.items()):
        rows.setdefault(topic, {})[str(partition)] = offset
    return rows


def _from_json(offsets: _Json) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, by_partition in offsets.items()
        for partition, offset in by_partition.items()
    }
