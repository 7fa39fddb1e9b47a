"""A producer behind proxies that cut, swallow, delay and drip its bytes, in front of three real brokers.

The brokers are healthy all the time; only the network between them and the producer fails. Afterwards confluent-kafka
reads the log without the proxies.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.waiting import eventually

from ottla.cluster import LocalCluster
from ottla.config import Retry, Timeouts
from ottla.net import Cluster
from ottla.produce.producer import Producer

from .breaking import leaders
from .conftest import NewTopic
from .history import State
from .load import Load
from .proxy import Proxies

pytestmark = pytest.mark.broker

PARTITIONS = 6
SHORT = Timeouts(connect=2, request=2, total=10)
QUICK = Retry(initial=0.01, maximum=0.05)


@pytest.fixture(scope="module")
def proxies(kafka: LocalCluster) -> Iterator[Proxies]:
    with Proxies(kafka.bootstrap) as running:
        yield running


@contextmanager
def producing(kafka: LocalCluster, proxies: Proxies, topic: str) -> Iterator[Load]:
    """Produce through the proxies inside the block. Afterwards, check that the log has what was acknowledged."""
    with Producer(proxies.bootstrap, timeouts=SHORT, retry=QUICK, delivery_timeout=120) as producer:
        with Load(producer, topic) as load:
            load.wait_for(200)
            try:
                yield load
            finally:
                proxies.heal()
            load.wait_for(200)
            load.settle()
        verdict = load.check(kafka.bootstrap, partitions=PARTITIONS)
    assert verdict.clean, str(verdict)
    assert verdict.told == {State.ACKED: load.sent}


def test_the_proxies_are_the_only_way(kafka: LocalCluster, proxies: Proxies) -> None:
    with Cluster(proxies.bootstrap) as cluster:
        seen = {str(broker.address) for broker in cluster.metadata().brokers.values()}
    assert seen == set(proxies.bootstrap.split(","))
    assert not seen & set(kafka.bootstrap.split(","))


@pytest.mark.parametrize("passes", [0, 1, 4, 30, None], ids=lambda passes: f"{passes} bytes pass")
def test_connections_are_cut_in_the_middle_of_an_answer(
    kafka: LocalCluster, proxies: Proxies, new_topic: NewTopic, passes: int | None
) -> None:
    with producing(kafka, proxies, new_topic(PARTITIONS)) as load:
        before = proxies.cuts
        for proxy in proxies.proxies:
            proxy.faults.passes = passes
            proxy.faults.cut = 0.3
        proxies.wait_for_cuts(before + 20)
        load.wait_for(100)


def test_fifty_answers_in_a_row_are_lost(kafka: LocalCluster, proxies: Proxies, new_topic: NewTopic) -> None:
    with producing(kafka, proxies, new_topic(PARTITIONS)) as load:
        before = proxies.cuts
        lost = load.mark()
        for proxy in proxies.proxies:
            proxy.faults.passes = None
            proxy.faults.cut = 1.0
        proxies.wait_for_cuts(before + 50)
        assert load.acked_since(lost) < 100


def test_half_open_connections_are_left_behind(
    kafka: LocalCluster, proxies: Proxies, cluster: Cluster, new_topic: NewTopic
) -> None:
    topic = new_topic(PARTITIONS)
    with producing(kafka, proxies, topic) as load:
        holed = proxies.proxies[leaders(cluster, topic)[0] - 1]
        holed.faults.hole = True
        began = load.mark()
        load.wait_for(200, since=began)  # to the other two
        eventually(lambda: holed.swallowed > 5, "answers swallowed")
        time.sleep(SHORT.request + 0.5)  # past the request timeout, so that the requests were given up
        load.wait_for(200)


def test_answers_in_drips_end_at_the_deadline_of_the_request(
    kafka: LocalCluster, proxies: Proxies, cluster: Cluster, new_topic: NewTopic
) -> None:
    topic = new_topic(PARTITIONS)
    with producing(kafka, proxies, topic) as load:
        slow = proxies.proxies[leaders(cluster, topic)[0] - 1]
        slow.faults.drip = 10
        mark = load.mark()
        eventually(lambda: slow.dripped > 3, "answers in drips")
        time.sleep(SHORT.request + 0.5)  # a deadline per recv would never pass
        load.wait_for(200, since=mark)


def test_late_answers_are_waited_for(kafka: LocalCluster, proxies: Proxies, new_topic: NewTopic) -> None:
    with producing(kafka, proxies, new_topic(PARTITIONS)) as load:
        for proxy in proxies.proxies:
            proxy.faults.delay = 0.3
        load.wait_for(500)
        proxies.heal()
        for proxy in proxies.proxies:
            proxy.reset()


def test_records_given_up_in_doubt_are_there_once_or_not_at_all(
    kafka: LocalCluster, proxies: Proxies, new_topic: NewTopic
) -> None:
    topic = new_topic(PARTITIONS)
    producer = Producer(proxies.bootstrap, timeouts=SHORT, retry=QUICK, delivery_timeout=1)
    with Load(producer, topic) as load:
        load.wait_for(200)
        for proxy in proxies.proxies:
            proxy.faults.cut = 1.0
        eventually(lambda: load.told(State.UNKNOWN) > 100, "records given up")
        proxies.heal()
        load.wait_for(500)
        load.settle()
    producer.close()
    verdict = load.check(kafka.bootstrap, partitions=PARTITIONS)
    assert verdict.clean, str(verdict)
    assert verdict.arrived > 0
