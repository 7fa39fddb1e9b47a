"""Real brokers that break during a read: every record still comes exactly once, or the loss is reported."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest
from tests.brokers import mend
from tests.faults.breaking import elect_anybody, leaders, rotate_leaders
from tests.faults.proxy import FETCH, Proxies
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.config import Timeouts
from ottla.errors import OffsetsLost
from ottla.events import RangeLost
from ottla.fetch.options import Fetching
from ottla.fetch.reader import Reader
from ottla.model import OffsetRange
from ottla.net import Cluster

from .conftest import NewTopic
from .numbered import Ledger, write_numbered
from .watching import EventLog, names, values

pytestmark = pytest.mark.broker
confluent_admin: Any = confluent_kafka.admin  # its names are not exported as mypy sees it

COUNT = 50_000
SIZE = 1000
AHEAD = Fetching(memory_bytes=8 << 20, request_bytes=1 << 20)
TIMES = Timeouts(connect=3.0, request=4.0, total=60.0)
STEPS = 8


@pytest.fixture(scope="module")
def numbered(kafka: LocalCluster, new_topic: NewTopic) -> str:
    """A topic of six partitions with 50 MB of numbered records, on all brokers."""
    topic = new_topic(6, replicas=3)
    write_numbered(kafka.bootstrap, topic, COUNT, size=SIZE)
    with Reader(kafka.bootstrap) as reader:
        eventually(lambda: sum(reader.offsets(topic, "latest").values()) == COUNT, "all brokers have all of it")
    return topic


def read_through(reader: Reader, topic: str, disturb: Callable[[int], None]) -> None:
    """Read all of it. After each eighth, something happens."""
    ledger, step = Ledger(COUNT), 0
    for records in reader.read(topic):
        ledger.add(records)
        if ledger.rows * STEPS >= COUNT * (step + 1) and step < STEPS - 1:
            step += 1
            disturb(step)
    ledger.check()


def test_an_undisturbed_read_is_exact(kafka: LocalCluster, numbered: str) -> None:
    with Reader(kafka.bootstrap) as reader:
        read_through(reader, numbered, lambda _: None)
        assert reader.count(numbered) == COUNT == reader.fingerprint(numbered).count


def test_leaders_that_move_cost_no_record(kafka: LocalCluster, cluster: Cluster, numbered: str) -> None:
    moved = []
    with Reader(kafka.bootstrap, fetching=AHEAD, timeouts=TIMES) as reader:
        read_through(reader, numbered, lambda _: moved.append(rotate_leaders(cluster, numbered)))
    assert sum(moved) > 20


def test_a_broker_that_is_killed_costs_no_record(broken: LocalCluster, numbered: str) -> None:
    def disturb(step: int) -> None:
        if step == 2:
            broken.kill(1)
        if step == 5:
            mend(broken)

    with Reader(broken.bootstrap, fetching=AHEAD, timeouts=TIMES) as reader:
        read_through(reader, numbered, disturb)


def test_a_broker_that_is_frozen_costs_no_record(broken: LocalCluster, cluster: Cluster, numbered: str) -> None:
    def disturb(step: int) -> None:
        if step == 2:
            broken.freeze(leaders(cluster, numbered)[0])
        if step == 6:
            mend(broken)

    with Reader(broken.bootstrap, fetching=AHEAD, timeouts=TIMES) as reader:
        read_through(reader, numbered, disturb)


def test_answers_that_are_cut_in_the_middle_cost_no_record(kafka: LocalCluster, numbered: str) -> None:
    with Proxies(kafka.bootstrap, seed=3) as proxies:
        for proxy in proxies.proxies:
            proxy.faults.api, proxy.faults.cut, proxy.faults.passes = FETCH, 0.25, None
        with Reader(proxies.bootstrap, fetching=AHEAD, timeouts=TIMES) as reader:
            read_through(reader, numbered, lambda step: proxies.proxies[step % 3].reset())
        assert proxies.cuts > 10


# What is gone is reported


@pytest.fixture
def cut_topic(kafka: LocalCluster, new_topic: NewTopic) -> str:
    """One partition with 40 MB."""
    topic = new_topic(1, replicas=1)
    write_numbered(kafka.bootstrap, topic, 40_000, size=SIZE)
    return topic


def delete_before(kafka: LocalCluster, topic: str, offset: int) -> None:
    """Delete the records before an offset."""
    admin = confluent_admin.AdminClient({"bootstrap.servers": kafka.bootstrap})
    wanted = [confluent_kafka.TopicPartition(topic, 0, offset)]
    for done in admin.delete_records(wanted).values():
        done.result(30)


@pytest.mark.parametrize("policy", ["error", "earliest", "latest"])
def test_a_start_that_is_cut_off_while_it_is_read_is_reported(kafka: LocalCluster, cut_topic: str, policy: str) -> None:
    events = EventLog()
    frugal = Fetching(memory_bytes=1 << 20, request_bytes=1 << 18)
    with Reader(kafka.bootstrap, on_lost=policy, fetching=frugal, events=[events]) as reader:
        reading = names(reader.read(cut_topic, 0, 40_000))
        offsets = [next(reading).offset]
        delete_before(kafka, cut_topic, 30_000)
        failed: OffsetsLost | None = None
        try:
            for record in reading:
                offsets.append(record.offset)  # noqa: PERF401 - up to the error
        except OffsetsLost as error:
            failed = error
    lost = failed or events.of(RangeLost)[0]
    assert (lost.topic, lost.partition, lost.stop) == (cut_topic, 0, 30_000)
    assert (failed is not None) == (policy == "error")
    after = 40_000 if policy == "error" else 30_000
    assert offsets == [*range(lost.start), *range(after, 40_000)]
    assert 0 < lost.start < 30_000


@pytest.mark.parametrize("size", [3, 30], ids=["shorter", "longer"])
def test_another_topic_under_the_same_name_is_reported(
    kafka: LocalCluster, cluster: Cluster, new_topic: NewTopic, size: int
) -> None:
    topic = new_topic(1)
    write(kafka, topic, [b"old %d" % number for number in range(10)])
    events = EventLog()
    with (
        Reader(kafka.bootstrap) as strict,
        Reader(kafka.bootstrap, on_lost="earliest", events=[events]) as lenient,
    ):
        readings = [read_values(reader, topic) for reader in (strict, lenient)]
        for reading in readings:
            assert [next(reading) for _ in range(10)] == [b"old %d" % number for number in range(10)]
        admin = Admin(cluster)
        admin.delete_topics(topic)
        admin.create_topic(topic, partitions=1, replicas=3)
        write(kafka, topic, [b"new %d" % number for number in range(size)])
        with pytest.raises(OffsetsLost, match=r"deleted and created again under the same name") as caught:
            next(readings[0])
        assert (caught.value.topic, caught.value.start, caught.value.resume) == (topic, 10, 0)
        assert [next(readings[1]) for _ in range(size)] == [b"new %d" % number for number in range(size)]
        (event,) = events.of(RangeLost)
        assert (event.topic, event.start, event.resume) == (topic, 10, 0)
        readings[1].close()


def test_a_log_that_turned_back_is_reported(broken: LocalCluster, cluster: Cluster) -> None:
    """Two replicas, one of them stopped. What only the other one has is lost with it, and written again.

    After the truncation one topic gets fewer records than were read, and the other one more: there only the leader
    epoch shows it. A reader that follows a topic goes back to the truncation. So does a range of the second topic; that
    of the first one starts behind it, and is over.
    """
    settings = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    topics = {f"turned-back-{size}-{time.monotonic_ns()}": size for size in (20, 300)}
    for topic in topics:
        Admin(cluster).create_topic(topic, settings=settings, assignments=[[1, 2]])
        write(broken, topic, [b"common %d" % number for number in range(50)], acks="all")
    events, events_inside = EventLog(), EventLog()
    patient = replace(TIMES, total=150.0)
    with (
        Reader(broken.bootstrap, timeouts=TIMES) as strict,
        Reader(broken.bootstrap, timeouts=TIMES, on_lost="earliest", events=[events]) as lenient,
        Reader(broken.bootstrap, timeouts=patient, on_lost="earliest", events=[events_inside]) as inside,
    ):
        broken.stop(2)
        eventually(lambda: all(leaders(cluster, topic) == {0: 1} for topic in topics), "broker 1 leads")
        readings: dict[str, list[Any]] = {}
        starts = {topic: 100 if size == 20 else 20 for topic, size in topics.items()}
        ranges = {topic: names(inside.read(OffsetRange(topic, 0, starts[topic], 200))) for topic in topics}
        for topic in topics:
            write(broken, topic, [b"lost %d" % number for number in range(100)])
            readings[topic] = [read_values(reader, topic) for reader in (strict, lenient)]
            for reading in readings[topic]:
                assert [next(reading) for _ in range(150)][-1] == b"lost 99"
            before = range(starts[topic], 150)
            assert [next(ranges[topic]).offset for _ in before] == list(before)
        broken.kill(1)
        broken.restart(2)
        for topic, size in topics.items():
            elect_anybody(cluster, topic)
            eventually(lambda name=topic: leaders(cluster, name) == {0: 2}, "broker 2 leads")  # type: ignore[misc]
            write(broken, topic, [b"anew %d" % number for number in range(size)])
        for topic, size in topics.items():
            with pytest.raises(OffsetsLost, match=r"truncated to offset 50 .* unclean leader election") as caught:
                next(readings[topic][0])
            assert (caught.value.topic, caught.value.partition) == (topic, 0)
            assert (caught.value.start, caught.value.stop, caught.value.resume) == (50, 150, 50)
            values = [next(readings[topic][1]) for _ in range(size)]
            assert values == [b"anew %d" % number for number in range(size)]
            (event,) = [event for event in events.of(RangeLost) if event.topic == topic]
            assert (event.start, event.stop, event.resume) == (50, 150, 50)
            readings[topic][1].close()
            assert [record.offset for record in ranges[topic]] == ([] if size == 20 else list(range(50, 200)))
            lost = [
                (event.start, event.stop, event.resume) for event in events_inside.of(RangeLost) if event.topic == topic
            ]
            assert lost == ([(100, 150, 100), (100, 200, 200)] if size == 20 else [(50, 150, 50)])


def read_values(reader: Reader, topic: str) -> Any:
    """Yield the values of the topic, forever."""

    def each() -> Iterator[bytes | None]:
        for batch in reader.read(topic, 0, None, columns=["value"]):
            yield from values([batch])

    return each()


def write(kafka: LocalCluster, topic: str, contents: list[bytes], *, acks: str = "1") -> None:
    """Write values, acknowledged by the leader alone by default."""
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap, "acks": acks, "linger.ms": 50})
    for content in contents:
        producer.produce(topic, content, partition=0)
    assert producer.flush(60) == 0
