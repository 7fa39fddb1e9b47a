"""Each fault on demand, met by a real client."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from typing import Any

import aiokafka
import confluent_kafka
import pytest

from ottla.errors import ConfigError, DeadlineExceeded, ErrorCode, InputError
from ottla.testing import FakeKafka, When

from .raw import RawClient, make_batch, produce

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import kafka as kafka_python

DEADLINE = 20.0


class Sender:
    """A confluent producer that records the outcome of each record and retries quickly."""

    def __init__(self, kafka: FakeKafka, **more: Any) -> None:
        self.outcomes: list[str] = []
        settings = {
            "bootstrap.servers": kafka.bootstrap,
            "enable.idempotence": True,
            "retry.backoff.ms": 20,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            "linger.ms": 0,
            "log_level": 0,
        }
        self.producer = confluent_kafka.Producer({**settings, **more})

    def send(self, value: bytes, *, topic: str = "t", partition: int = 0) -> None:
        self.producer.produce(topic, value, partition=partition, on_delivery=self._delivered)

    def finish(self) -> list[str]:
        assert self.producer.flush(DEADLINE) == 0
        return self.outcomes

    def _delivered(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        self.outcomes.append(error.name() if error else "ok")


def values(kafka: FakeKafka, topic: str = "t", partition: int = 0) -> list[bytes | None]:
    return [record.value for record in kafka.records(topic, partition)]


def read(kafka: FakeKafka, count: int, during: Callable[[], None] = lambda: None) -> list[bytes | None]:
    """Read `count` records of t-0 with a confluent consumer; call `during` after the first."""
    settings = {
        "bootstrap.servers": kafka.bootstrap,
        "group.id": "g",
        "retry.backoff.ms": 20,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 100,
        "fetch.error.backoff.ms": 20,
        "fetch.wait.max.ms": 100,
        "topic.metadata.refresh.interval.ms": 500,
        "log_level": 0,
    }
    got: list[bytes | None] = []
    with closing(confluent_kafka.Consumer(settings)) as consumer:
        consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
        end = time.monotonic() + DEADLINE
        while len(got) < count:
            assert time.monotonic() < end
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                got.append(message.value())
                if len(got) == 1:
                    during()
    return got


def test_an_error_is_answered_as_often_as_asked_and_the_client_tries_again(fake_kafka: FakeKafka) -> None:
    fault = fake_kafka.fail("Produce", ErrorCode.not_leader_or_follower, times=2)
    sender = Sender(fake_kafka)
    sender.send(b"x")
    assert sender.finish() == ["ok"]
    assert (fault.hits, values(fake_kafka)) == (2, [b"x"])
    assert len([seen for seen in fake_kafka.requests if seen.api == "Produce"]) == 3


def test_an_error_for_one_partition_leaves_the_other_alone() -> None:
    with FakeKafka(topics={"t": 2}) as kafka:
        kafka.fail("Produce", ErrorCode.message_too_large, topic="t", partition=1)
        sender = Sender(kafka, **{"enable.idempotence": False, "partitioner": "consistent"})
        sender.send(b"good", partition=0)
        sender.send(b"bad", partition=1)
        assert sorted(sender.finish()) == ["MSG_SIZE_TOO_LARGE", "ok"]
        assert (values(kafka, partition=0), values(kafka, partition=1)) == ([b"good"], [])


def test_a_broker_that_is_still_loading_gives_a_producer_id_later(fake_kafka: FakeKafka) -> None:
    fault = fake_kafka.fail("InitProducerId", 14, times=2)

    async def send() -> None:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=fake_kafka.bootstrap, enable_idempotence=True, retry_backoff_ms=20
        ) as producer:
            await asyncio.wait_for(producer.send_and_wait("t", b"x"), DEADLINE)

    asyncio.run(send())
    assert (fault.hits, values(fake_kafka)) == (2, [b"x"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_kafka_python_meets_an_error_and_continues(fake_kafka: FakeKafka) -> None:
    fault = fake_kafka.fail("Produce", ErrorCode.leader_not_available)
    with closing(kafka_python.KafkaProducer(bootstrap_servers=fake_kafka.bootstrap, retry_backoff_ms=20)) as producer:
        assert producer.send("t", b"x").get(DEADLINE).offset == 0
    assert (fault.hits, values(fake_kafka)) == (1, [b"x"])


def test_metadata_errors_are_per_topic_and_met_by_consumers(fake_kafka: FakeKafka) -> None:
    sender = Sender(fake_kafka)
    sender.send(b"x")
    sender.finish()
    metadata = fake_kafka.fail("Metadata", ErrorCode.leader_not_available, topic="t")
    fetch = fake_kafka.fail("Fetch", ErrorCode.unknown_server_error)
    assert read(fake_kafka, 1) == [b"x"]
    assert (metadata.hits, fetch.hits) == (1, 1)


def test_an_answer_lost_after_the_append_is_stored_once_by_an_idempotent_producer(fake_kafka: FakeKafka) -> None:
    fault = fake_kafka.cut("Produce", when=When.AFTER_HANDLING, times=2)
    sender = Sender(fake_kafka)
    sender.send(b"x")
    assert sender.finish() == ["ok"]
    assert (fault.hits, values(fake_kafka)) == (2, [b"x"])


def test_an_answer_lost_after_the_append_doubles_what_is_not_idempotent(fake_kafka: FakeKafka) -> None:
    fake_kafka.cut("Produce", when=When.AFTER_HANDLING)
    sender = Sender(fake_kafka, **{"enable.idempotence": False})
    sender.send(b"x")
    assert sender.finish() == ["ok"]
    assert values(fake_kafka) == [b"x", b"x"]


def test_a_request_lost_before_the_append_is_sent_again(fake_kafka: FakeKafka) -> None:
    fault = fake_kafka.cut("Produce", when=When.BEFORE_HANDLING)
    sender = Sender(fake_kafka, **{"enable.idempotence": False})
    sender.send(b"x")
    assert sender.finish() == ["ok"]
    assert (fault.hits, values(fake_kafka)) == (1, [b"x"])


def test_aiokafka_survives_a_lost_answer_without_a_duplicate(fake_kafka: FakeKafka) -> None:
    fault = fake_kafka.cut("Produce", when=When.AFTER_HANDLING)

    async def send() -> int:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=fake_kafka.bootstrap, enable_idempotence=True, retry_backoff_ms=20
        ) as producer:
            sent = await asyncio.wait_for(producer.send_and_wait("t", b"x"), DEADLINE)
            return int(sent.offset)

    assert asyncio.run(send()) == 0
    assert (fault.hits, values(fake_kafka)) == (1, [b"x"])


def test_half_an_answer_costs_a_reader_nothing_but_time(fake_kafka: FakeKafka) -> None:
    sender = Sender(fake_kafka)
    for i in range(3):
        sender.send(b"%d" % i)
    sender.finish()
    half = fake_kafka.half_response("Fetch")
    metadata = fake_kafka.half_response("Metadata", keep_bytes=10)
    assert read(fake_kafka, 3) == [b"0", b"1", b"2"]
    assert (half.hits, metadata.hits) == (1, 1)


def test_half_an_answer_is_as_long_as_asked(fake_kafka: FakeKafka) -> None:
    fake_kafka.half_response("ApiVersions", keep_bytes=7)
    with RawClient(fake_kafka.addresses[1]) as client:
        client.send("ApiVersions", 0)
        with pytest.raises(ConnectionError, match="closed after 3 of"):
            client.receive_bytes()


def test_an_answer_beyond_the_request_timeout_leads_to_a_retry_and_no_duplicate(fake_kafka: FakeKafka) -> None:
    fault = fake_kafka.delay("Produce", 1.5, times=1)
    sender = Sender(fake_kafka, **{"socket.timeout.ms": 400, "request.timeout.ms": 300})
    sender.send(b"x")
    assert sender.finish() == ["ok"]
    assert (fault.hits, values(fake_kafka)) == (1, [b"x"])
    assert len([seen for seen in fake_kafka.requests if seen.api == "Produce"]) >= 2


def test_a_delay_holds_every_answer_back_until_it_is_cleared(fake_kafka: FakeKafka) -> None:
    fault = fake_kafka.delay(None, 1.0)
    with RawClient(fake_kafka.addresses[1]) as client:
        assert elapsed(client) >= 1.0
        assert elapsed(client) >= 1.0
        fake_kafka.clear_faults()
        assert elapsed(client) < 1.0
    assert fault.hits == 2


def elapsed(client: RawClient) -> float:
    before = time.monotonic()
    client.ask("ApiVersions", 0)
    return time.monotonic() - before


def test_a_request_delayed_before_its_handling_is_not_stored_meanwhile() -> None:
    with FakeKafka(topics={"t": 1}) as kafka:
        fault = kafka.delay("Produce", 60.0, when=When.BEFORE_HANDLING)
        with RawClient(kafka.addresses[1]) as client:
            client.send("Produce", 9, acks=1, topic_data=[])
            kafka.wait_for_request("Produce")
            assert (fault.hits, values(kafka)) == (1, [])


def test_a_silent_broker_is_left_after_the_timeout_and_tried_again(fake_kafka: FakeKafka) -> None:
    fault = fake_kafka.silence("Produce")
    sender = Sender(fake_kafka, **{"socket.timeout.ms": 400, "request.timeout.ms": 300})
    sender.send(b"x")
    assert sender.finish() == ["ok"]
    assert (fault.hits, values(fake_kafka)) == (1, [b"x"])


def test_a_silent_connection_stays_open_and_answers_nothing_more(fake_kafka: FakeKafka) -> None:
    fake_kafka.silence("ApiVersions")
    with RawClient(fake_kafka.addresses[1], timeout=0.3) as client:
        client.send("ApiVersions", 0)
        client.send("Metadata", 12)
        with pytest.raises(TimeoutError):
            client.receive_bytes()
    assert [seen.api for seen in fake_kafka.requests] == ["ApiVersions"]


def test_clients_follow_a_leader_that_moves() -> None:
    with FakeKafka(brokers=3, topics={"t": 1}) as kafka:
        sender = Sender(kafka)
        sender.send(b"before")
        sender.finish()

        def move() -> None:
            old = kafka.leader("t", 0)
            kafka.move_leader("t", 0, to=old % 3 + 1)
            sender.send(b"after")
            assert sender.finish() == ["ok", "ok"]

        assert read(kafka, 2, during=move) == [b"before", b"after"]
        produced = [seen.broker for seen in kafka.requests if seen.api == "Produce"]
        assert len(set(produced)) == 2


def test_a_producer_waits_for_a_broker_that_comes_back_on_its_port(fake_kafka: FakeKafka) -> None:
    sender = Sender(fake_kafka)
    sender.send(b"before")
    sender.finish()
    address = fake_kafka.addresses[1]
    fake_kafka.down(1)
    with pytest.raises(ConnectionRefusedError):
        RawClient(address)
    sender.send(b"during")
    assert sender.producer.flush(0.3) == 1
    fake_kafka.up(1)
    assert sender.finish() == ["ok", "ok"]
    assert fake_kafka.addresses[1] == address
    assert values(fake_kafka) == [b"before", b"during"]


def test_another_replica_leads_while_a_broker_is_down() -> None:
    with FakeKafka(brokers=3, topics={"t": 3}) as kafka:
        sender = Sender(kafka)
        leader = kafka.leader("t", 0)
        kafka.down(leader)
        assert kafka.leader("t", 0) not in (leader, -1)
        for partition in range(3):
            sender.send(b"x", partition=partition)
        assert sender.finish() == ["ok"] * 3
        kafka.up(leader)
        kafka.move_leader("t", 0, to=leader)
        sender.send(b"y")
        assert sender.finish() == ["ok"] * 4
        assert values(kafka) == [b"x", b"y"]


def test_without_a_live_replica_there_is_no_leader_until_it_returns() -> None:
    with FakeKafka(brokers=2) as kafka:
        kafka.create_topic("t", 1, replicas=1)
        only = kafka.leader("t", 0)
        kafka.down(only)
        assert kafka.leader("t", 0) == -1
        with RawClient(kafka.addresses[3 - only]) as client:
            topic = client.ask("Metadata", 12, topics=[{"name": "t"}]).topics[0]
            assert topic.partitions[0].error_code == ErrorCode.leader_not_available
        kafka.up(only)
        assert kafka.leader("t", 0) == only


def test_everything_survives_all_brokers_going_down() -> None:
    with FakeKafka(brokers=3, topics={"t": 1}) as kafka:
        sender = Sender(kafka)
        sender.send(b"before")
        sender.finish()

        def outage() -> None:
            kafka.all_down()
            sender.send(b"during")
            assert sender.producer.flush(0.3) == 1
            kafka.all_up()
            assert sender.finish() == ["ok", "ok"]

        assert read(kafka, 2, during=outage) == [b"before", b"during"]


def test_a_fault_for_one_broker_leaves_the_others_alone() -> None:
    with FakeKafka(brokers=2) as kafka:
        fault = kafka.cut("ApiVersions", broker=2, times=None)
        with RawClient(kafka.addresses[1]) as first, RawClient(kafka.addresses[2]) as second:
            assert first.ask("ApiVersions", 0).error_code == ErrorCode.none
            second.send("ApiVersions", 0)
            with pytest.raises(ConnectionError):
                second.receive_bytes()
        assert fault.hits == 1


def test_requests_tell_who_asked_what_of_whom() -> None:
    with FakeKafka(brokers=2, topics={"t": 2}) as kafka:
        leader = kafka.leader("t", 1)
        with RawClient(kafka.addresses[leader]) as client:
            produce(client, make_batch(), partition=1)
        seen = kafka.wait_for_request("produce")
        assert (seen.broker, seen.api, seen.version, seen.client_id) == (leader, "Produce", 9, "raw")
        assert (seen.topics, seen.partitions) == (("t",), (("t", 1),))


def test_waiting_for_a_request_that_does_not_come_says_what_came(fake_kafka: FakeKafka) -> None:
    with RawClient(fake_kafka.addresses[1]) as client:
        client.ask("ApiVersions", 0)
    with pytest.raises(DeadlineExceeded, match=r"(?s)Fetch.*seen: broker 1: ApiVersions v0 from raw"):
        fake_kafka.wait_for_request("Fetch", 0.05)


def test_a_fault_that_makes_no_sense_is_refused_with_an_explanation(fake_kafka: FakeKafka) -> None:
    with pytest.raises(ConfigError, match="'Prodcue' is not the name of a Kafka API"):
        fake_kafka.fail("Prodcue", 3)
    with pytest.raises(ConfigError, match="times=0"):
        fake_kafka.cut("Produce", times=0)
    with pytest.raises(ConfigError, match="needs a topic"):
        fake_kafka.fail("Produce", 3, partition=1)
    with pytest.raises(InputError, match="there is no broker 7"):
        fake_kafka.down(7)
    fake_kafka.create_topic("t")
    with pytest.raises(InputError, match="broker 2 is not up"):
        fake_kafka.move_leader("t", 0, to=2)
