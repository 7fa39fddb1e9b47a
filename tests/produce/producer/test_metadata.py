"""What a producer notices on its own (changes of partitions, leaders and brokers, topics that go), and forgets."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.waiting import eventually

from ottla import Spool, TopicOptions
from ottla.admin import Admin
from ottla.config import Timeouts
from ottla.errors import AuthenticationFailed, ErrorCode, KeptInSpool, NotDelivered, OttlaError
from ottla.net import Cluster
from ottla.net.discovery import OnUnknownTopic
from ottla.produce.producer import Producer
from ottla.testing import FakeKafka, RequestSeen
from ottla.wire.partitioning import partition_of_key

from .stand import SOON, TIMES, new, values

_OFTEN = dataclasses.replace(TIMES, metadata_age=0.2)


@pytest.fixture
def admin(kafka: FakeKafka) -> Iterator[Admin]:
    with Admin(kafka.bootstrap) as admin:
        yield admin


def lookups_of(kafka: FakeKafka, topic: str) -> list[RequestSeen]:
    """The producers' requests for this topic's metadata."""
    return [
        seen
        for seen in kafka.requests
        if seen.api == "Metadata" and topic in seen.topics and seen.client_id == "ottla-producer"
    ]


# Partitions


def test_new_partitions_are_used_after_the_interval_without_any_error(kafka: FakeKafka, admin: Admin) -> None:
    keys = [f"k{number}".encode() for number in range(40)]
    with new(kafka, timeouts=_OFTEN) as producer:
        producer.send("t", b"first").result(SOON)
        admin.add_partitions("t", 6)
        eventually(lambda: producer.partition_for("t", keys[0]) == partition_of_key(keys[0], 6))
        sent = [producer.send("t", b"x", key) for key in keys]
        assert [d.result(SOON).partition for d in sent] == [partition_of_key(key, 6) for key in keys]


def test_an_explicit_partition_that_was_just_added_is_looked_up(kafka: FakeKafka, admin: Admin) -> None:
    with new(kafka) as producer:
        producer.send("t", b"first").result(SOON)
        admin.add_partitions("t", 6)
        sent = producer.send("t", b"x", partition=5)
        assert sent.result(SOON).partition == 5


def test_rows_for_known_partitions_do_not_wait_for_those_of_a_new_one(kafka: FakeKafka, admin: Admin) -> None:
    with new(kafka) as producer:
        producer.send("t", b"first").result(SOON)
        admin.add_partitions("t", 3)
        kafka.silence("Metadata", times=1)
        table = pa.table({"value": [b"0", b"2a", b"1", b"2b"], "partition": pa.array([0, 2, 1, 2], pa.int32())})
        sent = producer.send_table("t", table)
        eventually(lambda: values(kafka) == [b"first", b"0"])
        more = producer.send("t", b"2c", partition=2)
        assert more.result(SOON).partition == 2
        assert sent.result(SOON).records == 4
    assert values(kafka, "t", 2) == [b"2a", b"2b", b"2c"], "in order"
    assert values(kafka, "t", 1) == [b"1"]


def test_a_partition_that_does_not_exist_is_refused_after_a_look(kafka: FakeKafka) -> None:
    with new(kafka) as producer:
        producer.send("t", b"first").result(SOON)
        before = len(lookups_of(kafka, "t"))
        sent = producer.send("t", b"x", partition=7)
        with pytest.raises(NotDelivered, match="topic t has no partition 7: it has partitions 0 to 0"):
            sent.result(SOON)
        assert len(lookups_of(kafka, "t")) > before
        with pytest.raises(NotDelivered):
            producer.flush(SOON)


def test_a_partition_is_refused_in_time_if_no_broker_can_be_asked(kafka: FakeKafka) -> None:
    with new(kafka, delivery_timeout=0.5) as producer:
        producer.send("t", b"first").result(SOON)
        kafka.all_down()
        sent = producer.send("t", b"x", partition=7)
        with pytest.raises(NotDelivered, match=r"had no partition 7 when last looked up.*asked within 0\.5 s"):
            sent.result(SOON)
        with pytest.raises(NotDelivered):
            producer.flush(SOON)


# Brokers


def test_a_leader_that_moves_to_a_broker_never_used_is_found_on_the_error(kafka: FakeKafka) -> None:
    with new(kafka) as producer:
        producer.send("t", b"1").result(SOON)
        kafka.move_leader("t", 0, to=3 - kafka.leader("t", 0))
        producer.send("t", b"2").result(SOON)
    assert values(kafka) == [b"1", b"2"]
    assert {seen.broker for seen in kafka.requests if seen.api == "Produce"} == {1, 2}


def test_a_broker_that_joins_the_cluster_is_found(kafka: FakeKafka) -> None:
    kafka.down(2)
    with new(kafka) as producer:
        producer.send("t", b"1").result(SOON)
        assert set(producer._cluster.known.brokers) == {1}
        kafka.up(2)
        kafka.move_leader("t", 0, to=2)
        producer.send("t", b"2").result(SOON)
    assert values(kafka) == [b"1", b"2"]


def test_a_leader_that_moves_is_found_by_the_interval(kafka: FakeKafka) -> None:
    with new(kafka, timeouts=_OFTEN) as producer:
        producer.send("many", b"1", partition=1).result(SOON)
        target = 3 - kafka.leader("many", 1)
        kafka.move_leader("many", 1, to=target)
        _until_asked_again(kafka, producer, "many")
        before = len([seen for seen in kafka.requests if seen.api == "Produce"])
        producer.send("many", b"2", partition=1).result(SOON)
    produced = [seen.broker for seen in kafka.requests if seen.api == "Produce"][before:]
    assert produced == [target], "straight to the new leader"


def _until_asked_again(kafka: FakeKafka, producer: Producer, topic: str) -> None:
    """Wait for a few more lookups, while records go to its first partition."""
    lookups = len(lookups_of(kafka, topic))

    def is_asked() -> bool:
        producer.send(topic, b"x", partition=0).result(SOON)
        return len(lookups_of(kafka, topic)) > lookups + 2

    eventually(is_asked)


def test_any_bootstrap_server_will_do_and_none_is_asked_before_something_is_sent(kafka: FakeKafka) -> None:
    kafka.down(1)
    with new(kafka) as producer:
        assert not kafka.requests
        assert producer.send("t", b"x").result(SOON).offset == 0


# Topics that are not used any more


def test_a_deleted_topic_is_not_created_again_by_a_producer_that_sends_nothing_to_it(admin: Admin) -> None:
    with FakeKafka(topics={"busy": 1}) as kafka, Admin(kafka.bootstrap) as admin:
        options = {"unknown_topic": OnUnknownTopic.CREATE, "timeouts": _OFTEN}
        with new(kafka, **options) as producer:
            producer.send("fleeting", b"1").result(SOON)
            admin.delete_topics("fleeting")
            _until_asked_again(kafka, producer, "busy")
            assert "fleeting" not in kafka.topics
            producer.send("fleeting", b"2").result(SOON)
            assert values(kafka, "fleeting") == [b"2"]


def test_an_idle_topic_is_forgotten_and_one_in_use_is_kept(kafka: FakeKafka) -> None:
    with new(kafka, timeouts=_OFTEN) as producer:
        producer.send("t", b"1").result(SOON)
        router = weakref.ref(producer._topics.router("t"))
        lane = weakref.ref(producer._sender.topic("t").lanes[0])  # type: ignore[union-attr]

        def is_forgotten() -> bool:
            producer.send("many", b"x").result(SOON)
            return producer._sender.topic("t") is None

        eventually(is_forgotten)
        gc.collect()
        assert (router(), lane()) == (None, None)

        def is_unknown() -> bool:
            producer.send("many", b"x").result(SOON)
            assert producer._sender.topic("many") is not None
            return "t" not in producer._cluster.known.topics

        eventually(is_unknown)  # including an answer that was in flight
        lookups = len(lookups_of(kafka, "t"))
        _until_asked_again(kafka, producer, "many")
        assert len(lookups_of(kafka, "t")) == lookups


def test_a_topic_that_was_forgotten_is_used_again_under_numbers_that_were_never_used(kafka: FakeKafka) -> None:
    """The broker would mistake a used number for a copy of that batch, and store nothing."""
    with new(kafka, timeouts=_OFTEN) as producer:
        for lap in range(3):
            for number in range(4):
                producer.send("t", f"{lap}.{number}".encode()).result(SOON)
            eventually(lambda: producer._sender.topic("t") is None)
    assert values(kafka) == [f"{lap}.{number}".encode() for lap in range(3) for number in range(4)]


def test_what_waits_for_a_broker_is_not_forgotten(kafka: FakeKafka) -> None:
    with new(kafka, timeouts=_OFTEN, topics={"t": TopicOptions(delivery_timeout=60.0)}) as producer:
        producer.send("t", b"1").result(SOON)
        kafka.fail("Produce", ErrorCode.not_enough_replicas, times=None, topic="t")
        waits = producer.send("t", b"2")
        lookups = len(lookups_of(kafka, "t"))
        eventually(lambda: len(lookups_of(kafka, "t")) > lookups + 3)
        kafka.clear_faults()
        assert waits.result(SOON).offset == 1


# What a spool remembers of topics


def spooling(kafka: FakeKafka, path: Path, **options: object) -> Producer:
    return new(kafka, spool=Spool(path, after=0.1), **options)


def test_while_brokers_are_up_the_metadata_decides_and_not_what_the_spool_remembers(
    kafka: FakeKafka, admin: Admin, tmp_path: Path
) -> None:
    keys = [f"k{number}".encode() for number in range(100)]
    with spooling(kafka, tmp_path) as producer:
        producer.send("t", b"x", keys[0]).result(SOON)
    admin.add_partitions("t", 6)
    with spooling(kafka, tmp_path) as producer:
        sent = [producer.send("t", b"x", key) for key in keys]
        explicit = producer.send("t", b"x", partition=5)
        assert [d.result(SOON).partition for d in sent] == [partition_of_key(key, 6) for key in keys]
        assert explicit.result(SOON).partition == 5


def test_a_broker_that_is_slow_is_waited_for(kafka: FakeKafka, admin: Admin, tmp_path: Path) -> None:
    with spooling(kafka, tmp_path) as producer:
        producer.send("t", b"x").result(SOON)
    admin.add_partitions("t", 6)
    kafka.delay("Metadata", 0.8, times=2)
    with spooling(kafka, tmp_path) as producer:
        assert producer.send("t", b"x", b"k0").result(SOON).partition == partition_of_key(b"k0", 6)


def test_without_brokers_the_spool_knows_and_what_was_routed_then_stays_where_it_is(
    kafka: FakeKafka, admin: Admin, tmp_path: Path
) -> None:
    keys = [f"k{number}".encode() for number in range(20)]
    with spooling(kafka, tmp_path) as producer:
        producer.send("many", b"x", keys[0]).result(SOON)
    kafka.all_down()
    with spooling(kafka, tmp_path, timeouts=_OFTEN) as producer:
        during = [producer.send("many", b"during", key) for key in keys]
        producer.persist(SOON)
        kafka.all_up()
        admin.add_partitions("many", 7)
        eventually(lambda: producer.partition_for("many", keys[0]) == partition_of_key(keys[0], 7))
        after = [producer.send("many", b"after", key) for key in keys]
        assert [d.result(SOON).partition for d in during] == [partition_of_key(key, 4) for key in keys]
        assert [d.result(SOON).partition for d in after] == [partition_of_key(key, 7) for key in keys]


def test_each_delivery_gets_to_the_disk_without_waiting_for_the_topics_and_partitions_of_others(
    kafka: FakeKafka, tmp_path: Path
) -> None:
    with spooling(kafka, tmp_path) as producer:
        producer.send("many", b"x").result(SOON)
        kafka.all_down()
        unseen = producer.send_many("never-seen", [b"x"])
        known = producer.send_many("many", [b"x", b"y"])
        table = pa.table({"value": [b"z"], "partition": pa.array([9], pa.int32())})
        nowhere = producer.send_table("many", table)
        reasons = producer.persist_each([unseen, known, nowhere], SOON)
        assert ["never-seen" in str(reasons[0]), reasons[1], "partition 9" in str(reasons[2])] == [True, None, True]
        with pytest.raises(OttlaError, match=r"never-seen|partition 9"):
            producer.persist(0.3)
        kafka.all_up()
        assert known.result(SOON).records == 2
        eventually(lambda: producer.persist_each([unseen, nowhere], SOON) == [None, None])
        with pytest.raises(NotDelivered):
            producer.flush(SOON)


def test_an_outage_is_not_assumed_to_last_without_recent_lookups(
    kafka: FakeKafka, admin: Admin, tmp_path: Path
) -> None:
    """With no topic in use, the producer does not check whether brokers are back."""
    with spooling(kafka, tmp_path) as producer:
        producer.send("many", b"x").result(SOON)
    kafka.all_down()
    with spooling(kafka, tmp_path, timeouts=_OFTEN, delivery_timeout=0.6) as producer:
        assert producer.send("never-seen", b"x").exception(SOON) is not None
        eventually(lambda: producer._sender.topic("never-seen") is None)
        eventually(lambda: not producer._sender._loop.background.busy("metadata"))
        kafka.all_up()
        admin.add_partitions("many", 7)
        assert producer.send("many", b"x", b"k3").result(SOON).partition == partition_of_key(b"k3", 7)
        with pytest.raises(NotDelivered):
            producer.flush(SOON)


def test_a_producer_that_is_not_let_in_keeps_what_it_is_given(
    kafka: FakeKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AuthenticationFailed("127.0.0.1:9092", "wrong password")

    with spooling(kafka, tmp_path) as producer:
        producer.send("many", b"x").result(SOON)
    monkeypatch.setattr(Cluster, "metadata", refused)
    with spooling(kafka, tmp_path) as producer:
        never_seen = producer.send("t", b"y")
        assert isinstance(never_seen.exception(SOON), NotDelivered)
        sent = producer.send("many", b"y")
        producer.persist(SOON)
        with pytest.raises(NotDelivered, match="wrong password"):
            producer.close(0.1)
        assert isinstance(sent.exception(0), KeptInSpool)


def test_a_topic_is_remembered_although_the_program_goes_to_another_directory(
    kafka: FakeKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    with spooling(kafka, Path("spool")) as producer:
        monkeypatch.chdir(tmp_path / "there")
        producer.send("many", b"x").result(SOON)
    assert (tmp_path / "spool" / "topics.json").read_text() == '{"many": 4}'
    kafka.all_down()
    with spooling(kafka, tmp_path / "spool") as producer:
        producer.send("many", b"y")
        producer.persist(SOON)
        producer.close(0.0)


def test_a_disk_that_refuses_the_list_of_topics_is_asked_again(
    kafka: FakeKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.produce.spooling._WRITE_COUNTS_AGAIN", 0.05)
    blocked = tmp_path / "topics.new"
    blocked.mkdir()
    with spooling(kafka, tmp_path) as producer:
        producer.send("many", b"x").result(SOON)
        assert not (tmp_path / "topics.json").exists()
        blocked.rmdir()
        eventually(lambda: (tmp_path / "topics.json").exists())


def test_a_topic_that_does_not_exist_any_more_is_not_remembered(
    kafka: FakeKafka, admin: Admin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.produce.topics._UNKNOWN_PATIENCE", 0.1)
    with spooling(kafka, tmp_path) as producer:
        producer.send("many", b"x").result(SOON)
    admin.delete_topics("many")
    with spooling(kafka, tmp_path) as producer:
        refused = producer.send("many", b"x")
        assert refused.exception(SOON) is not None
        with pytest.raises(NotDelivered):
            producer.flush(SOON)
    assert (tmp_path / "topics.json").read_text() == "{}"


def test_metadata_is_trusted_for_the_time_that_was_set_only(kafka: FakeKafka, admin: Admin) -> None:
    """A topic that was looked up long ago, and whose first record is sent now."""
    with new(kafka, timeouts=Timeouts(metadata_age=0.2)) as producer:
        assert producer.partition_for("t", b"k0") == 0
        admin.add_partitions("t", 6)
        seen = producer._cluster
        eventually(lambda: seen.remembered(frozenset({"t"})) is None)
        assert producer.send("t", b"x", b"k0").result(SOON).partition == partition_of_key(b"k0", 6)
