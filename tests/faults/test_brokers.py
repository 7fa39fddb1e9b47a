"""Three real brokers that are killed, frozen and lose their leaderships while threads produce.

Replication 3, min.insync.replicas 2, acks=all. After each fault confluent-kafka reads every partition: everything that
was acknowledged is there once, at the reported offset, and in order.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.brokers import mend
from tests.waiting import eventually

from ottla import Reader
from ottla.cluster import LocalCluster
from ottla.config import Timeouts
from ottla.errors import BufferFull, NotDelivered
from ottla.events import ConnectionDown, Event
from ottla.net import Cluster
from ottla.produce.delivery import Delivery
from ottla.produce.options import Buffering
from ottla.produce.producer import Producer
from ottla.produce.route import RoundRobin

from .breaking import leaders, rotate_leaders
from .conftest import NewTopic
from .history import State
from .load import Load
from .proxy import PRODUCE, Proxies

pytestmark = pytest.mark.broker

PARTITIONS = 6
BROKERS = (1, 2, 3)


@contextmanager
def producing(kafka: LocalCluster, topic: str, *, timeouts: Timeouts | None = None) -> Iterator[Load]:
    """Threads produce inside the block. After it everything is acknowledged, and in the log as reported."""
    with Producer(kafka.bootstrap, timeouts=timeouts, delivery_timeout=120) as producer:
        with Load(producer, topic) as load:
            load.wait_for(200)
            yield load
            load.wait_for(200)
            load.settle()
        verdict = load.check(kafka.bootstrap, partitions=PARTITIONS)
    assert verdict.clean, str(verdict)
    assert verdict.told == {State.ACKED: load.sent}
    assert verdict.read == load.sent


def wait_until_leaderless(cluster: Cluster, topic: str, broker: int) -> None:
    eventually(lambda: broker not in leaders(cluster, topic).values(), f"no partition led by {broker}")


@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.long)])
def test_one_broker_after_another_is_killed_and_restarted(
    broken: LocalCluster, cluster: Cluster, new_topic: NewTopic, kills: int
) -> None:
    topic = new_topic(PARTITIONS)
    with producing(broken, topic) as load:
        for _ in range(kills):
            led = leaders(cluster, topic)
            victim = max(BROKERS, key=list(led.values()).count)
            broken.kill(victim)
            during = load.mark()
            load.wait_for(500, since=during)
            wait_until_leaderless(cluster, topic, victim)
            assert victim in led.values()
            broken.restart(victim)


def test_old_records_are_written_once_although_their_broker_dies_before_it_acknowledges_them(
    broken: LocalCluster, cluster: Cluster, new_topic: NewTopic
) -> None:
    """Regression: as soon as it is started again, a broker has forgotten the producer of records older than a day."""
    topic = new_topic(1, replicas=1)
    with Proxies(broken.bootstrap) as proxies, Producer(proxies.bootstrap, delivery_timeout=120) as producer:
        producer.send(topic, b"new").result(30)
        for proxy in proxies.proxies:
            proxy.faults.api, proxy.faults.cut, proxy.faults.passes = PRODUCE, 1.0, 0
        old = producer.send(topic, b"old", timestamp=time.time() - 2 * 24 * 60 * 60)
        with Reader(broken.bootstrap) as reader:
            eventually(lambda: reader.count(topic) == 2, "it is written")
        (leader,) = leaders(cluster, topic).values()
        broken.kill(leader)
        proxies.heal()
        broken.restart(leader)
        assert old.result(60).offset == 1
        with Reader(broken.bootstrap) as reader:
            assert reader.count(topic) == 2


def test_with_all_brokers_killed_records_wait_for_them_or_end_by_their_deadline(
    broken: LocalCluster, new_topic: NewTopic
) -> None:
    topic, other = new_topic(PARTITIONS), new_topic(PARTITIONS)
    with Producer(broken.bootstrap, delivery_timeout=3) as impatient, producing(broken, topic) as load:
        impatient.send(other, b"known by now").result(20)
        broken.kill(*BROKERS)
        down = load.mark()
        late, errors = _send_late(impatient, other)
        waiting = load.sent - load.told(State.ACKED)
        assert load.acked_since(down) == 0
        assert waiting > 100
        broken.restart(*BROKERS)
        load.wait_for(waiting, since=down)
    # A batch has the deadline of its first record, and stays open for less than a second while it cannot be sent.
    assert min(late) > 2
    assert max(late) < 4
    for error in errors:
        assert isinstance(error, NotDelivered)
        assert "not acknowledged within 3 s" in str(error)
        assert re.search(r"broker \d \(127.0.0.1:\d+\), away for .* refused", str(error))


def _send_late(producer: Producer, topic: str) -> tuple[list[float], list[NotDelivered | None]]:
    """A hundred records without a broker: how long each took to fail, and why."""
    ended: dict[int, float] = {}
    sent: list[tuple[float, Delivery]] = []

    def noted(number: int) -> Callable[[Delivery], None]:
        return lambda _: ended.update({number: time.monotonic()})

    for number in range(100):
        sent.append((time.monotonic(), producer.send(topic, b"late", key=b"%d" % number)))
        sent[-1][1].add_done_callback(noted(number))
        time.sleep(0.03)
    errors = [delivery.exception(30) for _, delivery in sent]
    with pytest.raises(NotDelivered, match="100 records"):
        producer.flush(5)
    return [ended[number] - sent_at for number, (sent_at, _) in enumerate(sent)], errors


def test_leaders_are_moved_by_reassignment_and_election(
    kafka: LocalCluster, cluster: Cluster, new_topic: NewTopic
) -> None:
    topic = new_topic(PARTITIONS)
    with producing(kafka, topic) as load:
        moved = 0
        for _ in range(3):
            moved += rotate_leaders(cluster, topic)
            load.wait_for(200)
        assert moved >= 2 * PARTITIONS


def test_a_broker_is_frozen_past_the_request_timeout_and_resumes(
    broken: LocalCluster, cluster: Cluster, new_topic: NewTopic
) -> None:
    topic = new_topic(PARTITIONS)
    with producing(broken, topic, timeouts=Timeouts(connect=3, request=3)) as load:
        victim = leaders(cluster, topic)[0]
        broken.freeze(victim)
        frozen = load.mark()
        started = time.monotonic()
        # Everything sent meanwhile, including what was in flight to the frozen one: its requests timed out.
        load.wait_for(1000, since=frozen)
        wait_until_leaderless(cluster, topic, victim)
        eventually(lambda: time.monotonic() - started > 4, "longer than the request timeout")
        broken.thaw(victim)


def test_unkeyed_records_pass_over_partitions_whose_broker_is_down(
    broken: LocalCluster, cluster: Cluster, new_topic: NewTopic
) -> None:
    topic = new_topic(3, replicas=1)
    seen: list[Event] = []
    options: dict[str, Any] = {"strategy": RoundRobin(), "delivery_timeout": 60, "events": [seen.append]}
    with Producer(broken.bootstrap, **options) as producer:
        for _ in range(12):
            producer.send(topic, b"before")
        producer.flush(20)
        victim = leaders(cluster, topic)[1]
        broken.kill(victim)
        eventually(lambda: any(isinstance(event, ConnectionDown) for event in seen), "the producer knows")
        keyed = [producer.send(topic, b"%d" % number, key=_key_for(producer, topic, 1)) for number in range(10)]
        started = time.monotonic()
        while time.monotonic() - started < 6:  # before and after the cluster itself knows
            deliveries = [producer.send(topic, b"during") for _ in range(20)]
            assert {delivery.result(20).partition for delivery in deliveries} == {0, 2}
        assert not any(delivery.done for delivery in keyed)
        broken.restart(victim)
        arrived = [delivery.result(30) for delivery in keyed]
        assert {sent.partition for sent in arrived} == {1}
        assert [sent.offset for sent in arrived] == sorted(sent.offset for sent in arrived)
        eventually(lambda: producer.send(topic, b"after").result(20).partition == 1, "its partition is used again")


def _key_for(producer: Producer, topic: str, partition: int) -> bytes:
    keys = (b"key-%d" % number for number in range(1000))
    return next(key for key in keys if producer.partition_for(topic, key) == partition)


def test_memory_is_bounded_and_the_caller_gets_the_reason(broken: LocalCluster, new_topic: NewTopic) -> None:
    topic = new_topic(PARTITIONS)
    buffering = Buffering(bytes=8 << 20, wait=2)
    timeouts = Timeouts(connect=2, request=60)
    with Producer(broken.bootstrap, buffering=buffering, timeouts=timeouts, delivery_timeout=60) as producer:
        for number in range(1000):
            producer.send(topic, b"x" * 1000, key=b"%d" % number)
        producer.flush(20)
        broken.freeze(*BROKERS)
        before = _resident_bytes()
        sent, full = _send_until_full(producer, topic)
        grown = _resident_bytes() - before
        mend(broken)
        assert 2 <= full.seconds < 10
        assert 7_000 < sent < 20_000
        assert grown < 60 << 20
        assert "led by broker " in str(full)
        producer.flush(60)


def _send_until_full(producer: Producer, topic: str) -> tuple[int, BufferFull]:
    value = b"x" * 1000
    for number in range(100_000):
        try:
            producer.send(topic, value, key=b"%d" % (number % 100))
        except BufferFull as error:
            return number, error
    raise AssertionError("100 MB were taken by a buffer of 8 MiB")


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
