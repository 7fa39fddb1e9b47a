"""A streaming query over topics that change: a random history of changes, crashes and triggers, judged by the logs.

Brokers and Spark's engine are played here: what a trigger asks of a source, what is in the checkpoint after it, and
what a restart asks again. Every record that is in a log at the end was read exactly once.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from ottla.errors import ConfigError, OffsetsLost
from ottla.model import Isolation, TopicPartition
from ottla.net.metadata import Partition, Topic
from ottla.spark.follower import Follower
from ottla.spark.offsets import Logs
from ottla.spark.read_options import ReadOptions, for_stream
from ottla.spark.stream_position import StreamPosition


@dataclass
class Log:
    first: int = 0
    last: int = 0


@dataclass
class Brokers:
    """Topics with their ids and logs. Topic id, partition and offset identify a record."""

    topics: dict[str, tuple[uuid.UUID, list[Log]]] = field(default_factory=dict)

    def create(self, name: str, *lengths: int) -> None:
        self.topics[name] = (uuid.uuid4(), [Log(0, length) for length in lengths])

    def records(self) -> set[tuple[str, int, int]]:
        return {
            (number.hex, partition, offset)
            for number, logs in self.topics.values()
            for partition, log in enumerate(logs)
            for offset in range(log.first, log.last)
        }


class Played(Logs):
    """`Logs` answered from memory instead of by brokers."""

    def __init__(self, brokers: Brokers, parsed: ReadOptions) -> None:
        super().__init__(None, parsed.subscription, isolation=Isolation.READ_UNCOMMITTED)  # type: ignore[arg-type]
        self._brokers = brokers

    def topics(self) -> dict[str, Topic]:
        return {
            name: Topic(name, number, tuple(Partition(index, 1) for index in range(len(logs))))
            for name, (number, logs) in sorted(self._brokers.topics.items())
        }

    def partitions(self, topics: Mapping[str, Topic] | None = None) -> list[TopicPartition]:
        return [
            TopicPartition(name, part.index)
            for name, topic in (topics or self.topics()).items()
            for part in topic.partitions
        ]

    def at(self, end: Any, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        logs = {tp: self._brokers.topics[tp.topic][1][tp.partition] for tp in partitions}
        return {tp: log.last if end.name == "LATEST" else log.first for tp, log in logs.items()}


class Query:
    """Spark's side: an offset log, a commit log, and the records of each batch."""

    def __init__(self, brokers: Brokers, **options: str) -> None:
        base = {"kafka.bootstrap.servers": "x:1", "subscribe": "a,b", "failOnDataLoss": "false"}
        self.brokers = brokers
        self.parsed = for_stream({**base, **options})
        self.ends: list[str] = []
        self.done = 0
        self.batches: dict[int, list[tuple[str, int, int]]] = {}
        self.now = 0.0
        self.restart()

    def restart(self) -> None:
        self.follower = Follower(Played(self.brokers, self.parsed), self.parsed, clock=lambda: self.now)
        self.initial: str | None = None

    def trigger(self, *, crash: str = "", everything: bool = False) -> bool:
        """Run one trigger; returns whether there was a batch. A crash leaves only what is on disk."""
        if self.done == len(self.ends):
            end = self._text(self.follower.latest(self._mark(self._start()), everything=everything))
            if self.ends and end == self.ends[-1]:
                return False
            self.ends.append(end)
        if crash == "planned":
            self.restart()
            return True
        end = self.ends[self.done]
        ranges = self.follower.ranges(self._mark(self._start()), self._mark(end))
        ids = {name: number.hex for name, (number, _) in self.brokers.topics.items()}
        self.batches[self.done] = [
            (ids[item.topic], item.partition, offset) for item in ranges for offset in range(item.start, item.stop)
        ]
        if crash == "written":
            self.restart()
            return True
        self.done += 1
        if crash == "done":
            self.restart()
        return True

    def until_idle(self) -> None:
        self.now += 10_000
        while self.trigger():
            self.now += 10_000

    def _start(self) -> str:
        if self.done:
            return self.ends[self.done - 1]
        if self.initial is None:
            self.initial = self._text(self.follower.first())
        return self.initial

    @staticmethod
    def _text(position: StreamPosition) -> str:
        return json.dumps(position.to_json())

    @staticmethod
    def _mark(text: str) -> StreamPosition:
        return StreamPosition.from_json(json.loads(text))

    @property
    def read(self) -> list[tuple[str, int, int]]:
        return [record for batch in self.batches.values() for record in batch]


OPTIONS: tuple[dict[str, str], ...] = (
    {"startingOffsets": "earliest"},
    {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "7"},
    {"startingOffsets": "earliest", "minOffsetsPerTrigger": "9"},
    {"startingOffsets": "earliest", "minOffsetsPerTrigger": "4", "maxOffsetsPerTrigger": "6"},
    {"startingOffsets": "latest"},
    {"startingOffsets": "latest", "maxOffsetsPerTrigger": "5"},
)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ", ".join(options.values()))
@pytest.mark.parametrize("seed", range(40))
def test_every_record_that_is_there_is_read_once(options: dict[str, str], seed: int) -> None:
    chance = random.Random(seed)
    brokers = Brokers()
    brokers.create("a", chance.randrange(20))
    brokers.create("b", 3, 0)
    query = Query(brokers, **options)
    before: set[tuple[str, int, int]] = set()
    if options["startingOffsets"] == "latest":
        before = brokers.records()
        query.trigger(crash=chance.choice(["", "planned", "written", "done"]))
    for _ in range(40):
        topic = chance.choice("ab")
        logs = brokers.topics[topic][1]
        match chance.choice(["add", "add", "add", "again", "same again", "grow", "expire", "trigger", "trigger"]):
            case "add":
                chance.choice(logs).last += chance.randrange(8)
            case "again":
                brokers.create(topic, *(chance.randrange(15) for _ in range(chance.randrange(1, 4))))
            case "same again":  # as many records as before: the offsets alone do not show it
                brokers.create(topic, *(log.last for log in logs))
            case "grow":
                logs.append(Log())
            case "expire":
                log = chance.choice(logs)
                log.first = min(log.last, log.first + chance.randrange(4))
            case "trigger":
                query.now += chance.choice([0.0, 1.0, 1000.0])
                query.trigger(crash=chance.choice(["", "", "planned", "written", "done"]))
    query.until_idle()
    assert len(query.read) == len(set(query.read))
    assert brokers.records() - before <= set(query.read)


def two(**options: str) -> tuple[Brokers, Query]:
    brokers = Brokers()
    brokers.create("a", 100)
    brokers.create("b", 5)
    return brokers, Query(brokers, startingOffsets="earliest", **options)


def test_a_topic_created_again_is_an_error_by_default_however_long_it_is() -> None:
    for length in (5, 100, 200):
        for restarted in (False, True):
            brokers, query = two(failOnDataLoss="true")
            query.until_idle()
            brokers.create("a", length)
            if restarted:
                query.restart()
            with pytest.raises(OffsetsLost, match="the topic was deleted and created again"):
                query.trigger()


def test_a_batch_whose_topic_was_replaced_before_it_was_read_reads_nothing_of_the_new_one() -> None:
    brokers, query = two()
    query.trigger(crash="planned")
    brokers.create("a", 100)
    query.until_idle()
    assert sorted(len(batch) for batch in query.batches.values()) == [5, 100]


def test_a_log_that_was_cut_back_is_not_read_twice() -> None:
    brokers, query = two()
    query.until_idle()
    brokers.topics["a"][1][0].last = 60
    query.until_idle()
    brokers.topics["a"][1][0].last = 70
    query.until_idle()
    assert len(query.read) == 105 + 10


def test_a_checkpoint_of_the_connector_has_no_ids_and_gets_them() -> None:
    brokers, query = two()
    query.ends, query.done = ['{"a":{"0":40},"b":{"0":5}}'], 1
    query.until_idle()
    assert len(query.read) == 60
    assert json.loads(query.ends[-1])[f"a@{brokers.topics['a'][0].hex}"] == {}


def test_a_first_batch_of_the_connector_that_is_not_finished_is_not_guessed() -> None:
    _, query = two()
    query.parsed = for_stream({"kafka.bootstrap.servers": "x:1", "subscribe": "a,b", "startingOffsets": "latest"})
    query.restart()
    query.ends = ['{"a":{"0":40},"b":{"0":5}}']
    with pytest.raises(ConfigError, match="the first batch of this checkpoint is not finished"):
        query.trigger()


def test_marks_keep_the_form_of_the_connector() -> None:
    offsets = {TopicPartition("a", 10): 4, TopicPartition("a", 2): 3, TopicPartition("b", 0): 1}
    position = StreamPosition(offsets, {"a": "0f", "b": "1e"}, {TopicPartition("a", 2): 1, TopicPartition("a", 10): 0})
    text = json.dumps(position.to_json())
    assert text == '{"a": {"2": 3, "10": 4}, "b": {"0": 1}, "a@0f@2:1,10:0": {}, "b@1e": {}}'
    assert StreamPosition.from_json(json.loads(text)) == position
    assert StreamPosition.from_json({"a": {"0": 7}}) == StreamPosition({TopicPartition("a", 0): 7})


def test_the_first_batch_begins_at_once_and_a_restart_finds_where_it_began() -> None:
    brokers = Brokers()
    brokers.create("a", 10)
    brokers.create("b", 0)
    places = '{"a":{"0":4},"b":{"0":0}}'
    query = Query(brokers, startingOffsets=places)
    assert query.trigger(crash="planned")
    brokers.topics["a"][1][0].last = 12
    query.parsed = Query(brokers, startingOffsets="latest").parsed  # now "latest" is elsewhere
    query.until_idle()
    assert sorted(offset for _, _, offset in query.batches[0]) == list(range(4, 10))
    assert [offset for _, _, offset in query.read] == list(range(4, 12))
