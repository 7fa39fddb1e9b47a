"""Starting and stopping the fake: nothing runs before the start, nothing remains after the stop."""

from __future__ import annotations

import os
import resource
import socket
import struct
import time
from datetime import timedelta

import pytest

from ottla.errors import ConfigError, InputError
from ottla.testing import AutoCreate, FakeKafka

from .raw import RawClient, make_batch, produce


def test_constructing_opens_nothing_and_says_so() -> None:
    kafka = FakeKafka(topics={"t": 3})
    assert kafka.topics == {"t": 3}
    assert repr(kafka) == "FakeKafka(not started, topics=['t'])"
    with pytest.raises(InputError, match="not started"):
        _ = kafka.bootstrap
    with pytest.raises(InputError, match="not started"):
        kafka.up(1)


def test_after_stopping_connections_are_refused_and_the_log_is_still_there() -> None:
    with FakeKafka(topics={"t": 1}) as kafka:
        address = kafka.addresses[1]
        with RawClient(address) as client:
            produce(client, make_batch(2))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    assert [record.value for record in kafka.records("t", 0)] == [b"hi", b"hi"]


def test_it_works_in_a_process_with_more_than_a_thousand_open_files() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, before[1]), before[1]))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with FakeKafka(topics={"t": 1}) as kafka, RawClient(kafka.addresses[1]) as client:
            assert produce(client, make_batch()).base_offset == 0
    finally:
        for number in held:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_it_can_be_started_again_but_not_twice_at_once() -> None:
    kafka = FakeKafka(topics={"t": 1})
    for expected in (0, 1):
        with kafka, RawClient(kafka.addresses[1]) as client:
            assert produce(client, make_batch()).base_offset == expected
            with pytest.raises(InputError, match="already started"):
                kafka.start()


def test_stopping_does_not_wait_for_clients_that_wait() -> None:
    with FakeKafka(topics={"t": 1}) as kafka:
        kafka.silence("ApiVersions")
        kafka.delay("ListOffsets", 600.0)
        with (
            RawClient(kafka.addresses[1]) as fetching,
            RawClient(kafka.addresses[1]) as ignored,
            RawClient(kafka.addresses[1]) as delayed,
            RawClient(kafka.addresses[1]) as half,
        ):
            part = {"partition": 0, "partition_max_bytes": 1000}
            topics = [{"topic": "t", "partitions": [part]}]
            fetching.send("Fetch", 12, max_wait=timedelta(seconds=600), min_bytes=1, max_bytes=1, topics=topics)
            ignored.send("ApiVersions", 0)
            delayed.send("ListOffsets", 9)
            half.send_bytes(b"")
            for api in ("Fetch", "ApiVersions", "ListOffsets"):
                kafka.wait_for_request(api)
            before = time.monotonic()
            kafka.stop()
            assert time.monotonic() - before < 5
            for client in (fetching, ignored, delayed, half):
                with pytest.raises(ConnectionError):
                    client.receive_bytes()


@pytest.mark.parametrize("claimed", [-1, 0, 2**31 - 1])
def test_a_frame_of_an_impossible_size_ends_the_connection(fake_kafka: FakeKafka, claimed: int) -> None:
    with socket.create_connection(fake_kafka.addresses[1], 10.0) as raw:
        raw.sendall(struct.pack(">i", claimed))
        assert raw.recv(1) == b""


def test_pipelined_requests_are_answered_in_order(fake_kafka: FakeKafka) -> None:
    with RawClient(fake_kafka.addresses[1]) as client:
        for _ in range(50):
            client.send("ApiVersions", 0)
        frames = [client.receive_bytes() for _ in range(50)]
    assert [struct.unpack_from(">i", frame)[0] for frame in frames] == list(range(50))


def test_topics_are_created_as_auto_create_says() -> None:
    with FakeKafka(brokers=3, auto_create=AutoCreate(partitions=4, replicas=2)) as kafka:
        with RawClient(kafka.addresses[2]) as client:
            topics = [{"name": "new"}]
            topic = client.ask("Metadata", 12, topics=topics, allow_auto_topic_creation=True).topics[0]
        assert [len(p.replica_nodes) for p in topic.partitions] == [2, 2, 2, 2]
        assert {p.leader_id for p in topic.partitions} == {1, 2, 3}


def test_wrong_arguments_are_explained() -> None:
    with pytest.raises(ConfigError, match="brokers=0"):
        FakeKafka(brokers=0)
    with pytest.raises(InputError, match=r"create_topic\('t', 0\): a topic needs at least 1 partition"):
        FakeKafka(topics={"t": 0})
    with pytest.raises(InputError, match="topic 'x' does not exist; topics are"):
        FakeKafka().records("x", 0)
