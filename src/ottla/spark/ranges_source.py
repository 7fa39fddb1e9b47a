"""The data source `ottla-ranges`: a stream whose rows are ranges of offsets that an archive needs next.

A `RangesPlan` comes in as an option; for every batch of the query, a few rows go out. Spark keeps the offsets and
repeats a batch after a failure; what is archived already is left out then, since the ledger says so. No record is read
here.
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
# Spark hides the values of options whose names contain this word: the plan may hold a password.
OPTION = "secret"
RANGE, GAP, TOPIC, TROUBLE = "range", "gap", "topic", "trouble"
"""Kinds of rows: a range to archive, offsets that are gone (with the reason), the id of a topic, a topic that cannot be
archived at present (and why)."""
Row = tuple[str, str, int, int, int, str]
_Json = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RangesPlan:
    """What the rows are made from."""

    brokers: Brokers
    path: str
    topics: tuple[str, ...]
    on_lost: OnLost
    cutting: Cutting

    def to_option(self) -> str:
        """As a text."""
        return base64.b64encode(pickle.dumps(self)).decode()

    @staticmethod
    def from_option(text: str) -> RangesPlan:
        """What `to_option` made of one."""
        found = pickle.loads(base64.b64decode(text))  # noqa: S301 - made by ourselves, in `archiving`
        assert isinstance(found, RangesPlan)
        return found


class RangesSource(DataSource):
    """Registered by `ottla.spark.archiving`."""

    @classmethod
    def name(cls) -> str:
        """Of the format."""
        return NAME

    def schema(self) -> str:
        """The same for every archive."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> RangesReader:  # noqa: N802 - Spark's name
        """Nothing is asked yet."""
        return RangesReader(RangesPlan.from_option(self.options[OPTION]))


@dataclass(frozen=True)
class _Rows(InputPartition):
    rows: tuple[Row, ...]


class RangesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches. Positions come from the ledger; Spark's offsets say where a batch ends."""

    def __init__(self, plan: RangesPlan) -> None:
        self._plan = plan
        self._topics: Topics | None = None
        self._lake: Lake | None = None
        self._final: dict[TopicPartition, int] | None = None
        """Where a query that ends by itself ends."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_topics": None, "_lake": None}  # sockets stay in their process

    def initialOffset(self) -> _Json:  # noqa: N802
        """Where the archive is; new partitions begin with their logs."""
        logs, positions = self._look()
        return _to_json({at: positions.get(at, begin) for at, begin in logs.begins.items()})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What one batch should have at most."""
        return ReadMaxBytes(self._plan.cutting.round_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remembers where the logs end now."""
        self._final = dict(self._look()[0].ends)

    def latestOffset(self, start: _Json, limit: ReadLimit) -> _Json:  # noqa: N802
        """Where the next batch ends; `start` itself when there is nothing to do."""
        logs, positions = self._look()
        if self._final is not None:
            ends = {at: min(end, self._final.get(at, logs.begins[at])) for at, end in logs.ends.items()}
            logs = replace(logs, ends=ends)
        whole = due(positions, logs, on_lost=self._plan.on_lost)
        if isinstance(limit, ReadMaxBytes):
            whole = limited(whole, limit.max_bytes, logs.record_bytes)
        end = _from_json(start)
        for at, begin in logs.begins.items():
            end[at] = max(end.get(at, begin), positions.get(at, begin))
        for one in (*(gap.range for gap in whole.gaps), *whole.ranges):
            end[one.topic_partition] = max(end.get(one.topic_partition, 0), one.stop)
        return _to_json(end)

    def reportLatestOffset(self) -> _Json:  # noqa: N802
        """Where the logs end."""
        return _to_json(self._look()[0].ends)

    def partitions(self, start: _Json, end: _Json) -> list[InputPartition]:
        """One, with all rows of the batch."""
        logs, positions = self._look()
        wanted = _from_json(end)
        ends = {at: wanted.get(at, begin) for at, begin in logs.begins.items()}
        chosen = due(positions, replace(logs, ends=ends), on_lost=self._plan.on_lost)
        return [_Rows(tuple(self._rows(chosen, logs)))]

    def read(self, partition: InputPartition) -> Iterator[Row]:
        """The rows of a batch."""
        assert isinstance(partition, _Rows)
        return iter(partition.rows)

    def commit(self, end: _Json) -> None:
        """The ledger knows."""

    def stop(self) -> None:
        """Spark ends the process."""

    def _rows(self, chosen: Round, logs: Logs) -> Iterator[Row]:
        if not chosen.ranges and not chosen.gaps:
            return
        for gap in chosen.gaps:
            yield (GAP, *_flat(gap.range), gap.reason)
        for one in self._plan.cutting.tasks(chosen, logs.record_bytes):
            yield (RANGE, *_flat(one), "")
        for topic, found in sorted(logs.topics.items()):
            yield (TOPIC, topic, 0, 0, 0, found)
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
    """Topics that are left out of a batch, and why."""
    return {row[1]: row[5] for row in rows if row[0] == TROUBLE}


def _flat(one: OffsetRange) -> tuple[str, int, int, int]:
    return one.topic, one.partition, one.start, one.stop


def _to_json(offsets: dict[TopicPartition, int] | Any) -> _Json:
    """In order: Spark compares the texts, and another order would be another offset."""
    found: _Json = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def _from_json(offsets: _Json) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, there in offsets.items()
        for partition, offset in there.items()
    }
