"""Searching the end of a log: where the search begins, and how often it is repeated if it is denied."""

from __future__ import annotations

import time
from pathlib import Path

from tests.waiting import eventually

import ottla
from ottla.model import TopicPartition
from ottla.net import Cluster
from ottla.produce import tail
from ottla.produce.effects import Search
from ottla.produce.outgoing import Identity
from ottla.testing import FakeKafka
from ottla.wire.batch import split

AT = TopicPartition("t", 0)


def test_a_floor_that_the_log_has_not_reached_is_none() -> None:
    """Found: for a recreated topic nothing was searched; what had been written was written twice."""
    started = time.time()
    with FakeKafka(topics={"t": 1}) as kafka:
        with ottla.Producer(kafka.bootstrap) as producer:
            for number in range(3):
                producer.send("t", str(number)).result(30)
        headers = [batch.header for batch in split(b"".join(kafka.log("t", 0)))]
        counts = {
            Identity(header.producer_id, header.producer_epoch, header.base_sequence): header.count
            for header in headers
        }
        assert len(counts) == 3
        with Cluster(kafka.bootstrap) as cluster:
            for floor in (-1, 0, 4, 5_000):
                search = Search(AT, floor=floor, created=started, timestamp_ms=headers[0].base_timestamp)
                assert sorted(tail.find(cluster, search, counts).values()) == [0, 1, 2], floor
            search = Search(AT, floor=2, created=started, timestamp_ms=headers[0].base_timestamp)
            assert list(tail.find(cluster, search, counts).values()) == [2]


def test_a_log_that_may_not_be_read_is_not_asked_for_all_the_time(tmp_path: Path) -> None:
    """Found: a spool with a batch for a topic that it may not read sent 770 requests in a second."""
    with FakeKafka(topics={"t": 1}) as kafka:
        spool = ottla.Spool(tmp_path / "spool")
        with ottla.Producer(kafka.bootstrap, spool=spool) as producer:
            producer.send("t", b"0").result(30)
            kafka.all_down()
            producer.send("t", b"1")
            producer.persist(30)
            producer.close(0)
        kafka.all_up()
        denied = kafka.fail("ListOffsets", 29, times=1_000_000)  # TOPIC_AUTHORIZATION_FAILED
        retry = ottla.Retry(initial=0.1, maximum=0.1, jitter=0.0)
        with ottla.Producer(kafka.bootstrap, spool=spool, retry=retry) as producer:
            started = time.monotonic()
            eventually(lambda: denied.hits >= 5)
            assert denied.hits <= 1 + (time.monotonic() - started) / 0.1
            kafka.clear_faults()
            producer.flush(30)
        assert [record.value for record in kafka.records("t", 0)] == [b"0", b"1"]
