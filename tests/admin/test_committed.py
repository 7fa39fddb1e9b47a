"""Committed offsets, read and written, on a fake broker with errors and on real ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import confluent_kafka
import pytest

from ottla.admin import Admin, Committed
from ottla.admin.committed import GROUP_MOVED_ON, commit, fetch_committed
from ottla.cluster import LocalCluster
from ottla.errors import BrokerError, DeadlineExceeded, ErrorCode, InputError
from ottla.model import GroupMember, Isolation, TopicPartition
from ottla.net import Cluster
from ottla.net.deadline import Deadline
from ottla.testing import FakeKafka

from .members import member

ME = GroupMember("billing")
C0, C1, C2 = (TopicPartition("clicks", number) for number in range(3))


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka(topics={"clicks": 3, "users": 1}, auto_create=None) as kafka:
        yield kafka


@pytest.fixture
def cluster(fake: FakeKafka) -> Iterator[Cluster]:
    with Cluster(fake.bootstrap) as opened:
        yield opened


def test_what_was_committed_is_read_back_with_epoch_and_metadata(cluster: Cluster) -> None:
    offsets = {C0: Committed(5, 3, "half way"), C2: Committed(7), TopicPartition("users", 0): Committed(0)}
    commit(cluster, ME, offsets)
    assert fetch_committed(cluster, ME, None) == offsets
    assert fetch_committed(cluster, GroupMember("another"), None) == {}


def test_partitions_without_a_commit_are_absent(cluster: Cluster) -> None:
    commit(cluster, ME, {C1: Committed(5)})
    assert fetch_committed(cluster, ME, [C0, C1]) == {C1: Committed(5)}
    assert fetch_committed(cluster, ME, [C0]) == {}


def test_no_partitions_need_no_request(fake: FakeKafka, cluster: Cluster) -> None:
    assert fetch_committed(cluster, ME, []) == {}
    commit(cluster, ME, {})
    assert not fake.requests


def test_a_moving_coordinator_and_an_open_transaction_are_waited_for(fake: FakeKafka, cluster: Cluster) -> None:
    commit(cluster, ME, {C0: Committed(5)})
    faults = [
        fake.fail("OffsetFetch", ErrorCode.not_coordinator, times=1),
        fake.fail("OffsetFetch", ErrorCode.unstable_offset_commit, times=2),
        fake.fail("OffsetCommit", ErrorCode.coordinator_load_in_progress, times=1),
    ]
    assert fetch_committed(cluster, ME, None) == {C0: Committed(5)}
    commit(cluster, ME, {C0: Committed(6)})
    assert [fault.hits for fault in faults] == [1, 2, 1]
    assert fetch_committed(cluster, ME, None) == {C0: Committed(6)}


@pytest.mark.parametrize("code", sorted(GROUP_MOVED_ON))
def test_a_member_that_lost_its_place_gets_an_error_that_says_what_to_do(
    fake: FakeKafka, cluster: Cluster, code: ErrorCode
) -> None:
    fault = fake.fail("OffsetCommit", code, topic="clicks", partition=1)
    with pytest.raises(BrokerError, match="committing the offset of clicks-1 for group billing") as caught:
        commit(cluster, ME, {C0: Committed(1), C1: Committed(1)})
    assert caught.value.code is code
    assert fault.hits == 1
    assert caught.value.row.advice


def test_an_error_that_stays_counts_before_one_that_passes(fake: FakeKafka, cluster: Cluster) -> None:
    fake.fail("OffsetCommit", ErrorCode.coordinator_load_in_progress, topic="clicks", partition=0)
    fake.fail("OffsetCommit", ErrorCode.offset_metadata_too_large, topic="clicks", partition=1)
    with pytest.raises(BrokerError) as caught:
        commit(cluster, ME, {C0: Committed(1), C1: Committed(1)})
    assert caught.value.code is ErrorCode.offset_metadata_too_large


def test_an_offset_below_zero_is_refused_before_anything_is_sent(fake: FakeKafka, cluster: Cluster) -> None:
    with pytest.raises(InputError, match="offset -1 of clicks-0"):
        commit(cluster, ME, {C0: Committed(-1)})
    assert not fake.requests


@pytest.fixture(scope="module")
def admin(kafka: LocalCluster) -> Iterator[Admin]:
    with Admin(kafka.bootstrap) as opened:
        opened.create_topic("committed", partitions=3, replicas=3)
        yield opened
        opened.delete_topics("committed")


T0, T1 = TopicPartition("committed", 0), TopicPartition("committed", 1)


@pytest.mark.broker
def test_confluent_reads_what_we_commit_and_we_what_it_commits(kafka: LocalCluster, admin: Admin) -> None:
    group = GroupMember("committed-both")
    commit(admin.cluster, group, {T0: Committed(5, 0, "ours"), T1: Committed(2)})
    consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group.group})
    partitions = [confluent_kafka.TopicPartition(*tp) for tp in (T0, T1)]
    # Not the metadata: confluent-kafka reads it beyond its end.
    assert [entry.offset for entry in consumer.committed(partitions, 30)] == [5, 2]
    theirs = confluent_kafka.TopicPartition(*T1, 9)
    consumer.commit(offsets=[theirs], asynchronous=False)
    consumer.close()
    assert fetch_committed(admin.cluster, group, [T1])[T1].offset == 9


@pytest.mark.broker
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_stranger_cannot_commit_for_a_group_with_members(kafka: LocalCluster, admin: Admin, protocol: str) -> None:
    group = f"committed-{protocol}"
    with member(kafka.bootstrap, group, "committed", protocol=protocol):
        for identity in (GroupMember(group), GroupMember(group, "a stranger", 1)):
            with pytest.raises(BrokerError, match="the group moved on") as caught:
                commit(admin.cluster, identity, {T0: Committed(1)})
            assert caught.value.code in GROUP_MOVED_ON
        assert fetch_committed(admin.cluster, GroupMember(group), None) == {}


@pytest.mark.broker
def test_offsets_of_an_open_transaction_are_waited_for_when_they_must_be_stable(
    kafka: LocalCluster, admin: Admin
) -> None:
    group = GroupMember("committed-open")
    commit(admin.cluster, group, {T0: Committed(1)})
    consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group.group})
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "committed-open"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.send_offsets_to_transaction(
        [confluent_kafka.TopicPartition(*T0, 8)], consumer.consumer_group_metadata(), 30
    )
    assert fetch_committed(admin.cluster, group, [T0])[T0].offset == 1
    stable = Isolation.READ_COMMITTED
    with pytest.raises(DeadlineExceeded, match="UNSTABLE_OFFSET_COMMIT"):
        fetch_committed(admin.cluster, group, [T0], isolation=stable, deadline=Deadline.after(0.5))
    commits = threading.Timer(0.3, producer.commit_transaction, [30])
    commits.start()
    assert fetch_committed(admin.cluster, group, [T0], isolation=stable)[T0].offset == 8
    commits.join()
    consumer.close()
