"""Merging metadata responses, and the cache of them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.errors import ConnectFailed, ErrorCode
from ottla.net.directory import Directory
from ottla.net.metadata import Broker, Metadata, Partition, Topic, from_response, merge
from ottla.net.targets import CoordinatorKind
from ottla.wire import messages

IDS = [uuid.UUID(int=1), uuid.UUID(int=2)]

partitions = st.builds(Partition, index=st.just(0), leader=st.integers(-1, 3), leader_epoch=st.integers(-1, 5))
topics = st.builds(
    lambda name, id_, parts: Topic(
        name, id_, tuple(Partition(i, p.leader, p.leader_epoch) for i, p in enumerate(parts))
    ),
    st.sampled_from("abc"),
    st.sampled_from(IDS),
    st.lists(partitions, max_size=3),
)
looks = st.lists(topics, max_size=3).map(lambda metadata: Metadata("c", 1, topics=named(metadata)))


def named(metadata: list[Topic]) -> Mapping[str, Topic]:
    return MappingProxyType({topic.name: topic for topic in metadata})


@settings(deadline=None)
@given(st.lists(looks, min_size=1, max_size=8))
def test_leader_epochs_of_a_topic_never_go_back(answers: list[Metadata]) -> None:
    known = Metadata()
    for answer in answers:
        before = known
        known = merge(known, answer, asked=set(answer.topics))
        for name, topic in answer.topics.items():
            old = before.topics.get(name)
            for partition in topic.partitions:
                now = known.topics[name].partition(partition.index)
                assert now is not None
                was = None if old is None or old.id != topic.id else old.partition(partition.index)
                if was is not None and partition.leader_epoch >= 0:
                    assert now.leader_epoch == max(was.leader_epoch, partition.leader_epoch)
                else:
                    assert now == partition


@settings(deadline=None)
@given(looks, looks)
def test_topics_that_were_not_asked_for_stay_and_asking_for_all_forgets_the_rest(old: Metadata, new: Metadata) -> None:
    some = merge(old, new, asked=set(new.topics))
    assert set(some.topics) == set(old.topics) | set(new.topics)
    for name in set(old.topics) - set(new.topics):
        assert some.topics[name] == old.topics[name]
    assert set(merge(old, new, asked=None).topics) == set(new.topics)


@settings(deadline=None)
@given(looks)
def test_the_same_answer_twice_changes_nothing(answer: Metadata) -> None:
    once = merge(Metadata(), answer, asked=None)
    assert merge(once, answer, asked=None) == once


def test_a_recreated_topic_starts_over() -> None:
    old = Metadata(topics=named([Topic("t", IDS[0], (Partition(0, 1, 9),))]))
    new = Metadata(topics=named([Topic("t", IDS[1], (Partition(0, 2, 0),))]))
    assert merge(old, new, asked=["t"]).topics["t"].partitions == (Partition(0, 2, 0),)


@pytest.mark.parametrize("version", range(14))
def test_every_version_of_the_answer_is_understood(version: int) -> None:
    response = messages.compose(
        messages.response_type(3, version),
        {
            "throttle_time": 0,
            "brokers": [{"node_id": 7, "host": "h", "port": 9, "rack": None}],
            "cluster_id": "c",
            "controller_id": 7,
            "cluster_authorized_operations": 0,
            "error_code": ErrorCode.none,
            "topics": [
                {
                    "error_code": ErrorCode.none,
                    "name": "t",
                    "topic_id": IDS[0],
                    "is_internal": False,
                    "topic_authorized_operations": 0,
                    "partitions": [_row(1), _row(0)],
                }
            ],
        },
    )
    metadata = from_response(response)
    assert metadata.brokers == {7: Broker(7, "h", 9)}
    assert [p.index for p in metadata.topics["t"].partitions] == [0, 1]
    assert metadata.topics["t"].partitions[0].leader_epoch == (3 if version >= 7 else -1)
    assert metadata.topics["t"].id == (IDS[0] if version >= 10 else None)


def _row(index: int) -> dict[str, object]:
    return {
        "error_code": ErrorCode.none,
        "partition_index": index,
        "leader_id": 7,
        "leader_epoch": 3,
        "replica_nodes": (7,),
        "isr_nodes": (7,),
        "offline_replicas": (),
    }


def test_a_partition_is_found_by_index_also_when_some_are_missing() -> None:
    topic = Topic("t", None, (Partition(0, 1), Partition(2, 1)))
    assert topic.partition(2) == Partition(2, 1)
    assert topic.partition(1) is None


def test_another_cluster_behind_an_address_is_an_error_that_names_both() -> None:
    directory = Directory(age=10)
    directory.learn(Metadata("one"), asked=(), source="a:1")
    with pytest.raises(ConnectFailed, match="b:2: belongs to cluster two, but this client is connected to cluster one"):
        directory.learn(Metadata("two"), asked=(), source="b:2")


def test_what_is_old_or_in_doubt_is_not_given_out() -> None:
    look = Metadata("c", 1, {1: Broker(1, "h", 1)}, named([Topic("t", None, (Partition(0, 1),))]))
    directory = Directory(age=1000)
    assert not directory.brokers_are_fresh()
    directory.learn(look, asked=["t"], source="a:1")
    assert directory.brokers_are_fresh()
    assert directory.fresh_topic("t") is not None
    directory.doubt_led_by(2)
    assert directory.fresh_topic("t") is not None
    assert not directory.brokers_are_fresh()
    directory.doubt_led_by(1)
    assert directory.fresh_topic("t") is None
    assert directory.known.topics["t"].partition(0) is not None

    short = Directory(age=1e-9)
    short.learn(look, asked=["t"], source="a:1")
    assert short.fresh_topic("t") is None
    assert not short.brokers_are_fresh()


def test_coordinators_are_remembered_by_kind_and_key() -> None:
    directory = Directory(age=10)
    broker = Broker(1, "h", 1)
    directory.coordinates(CoordinatorKind.GROUP, "g", broker=broker)
    assert directory.coordinator(CoordinatorKind.GROUP, "g") == broker
    assert directory.coordinator(CoordinatorKind.TRANSACTION, "g") is None
    directory.coordinates(CoordinatorKind.GROUP, "g", broker=None)
    assert directory.coordinator(CoordinatorKind.GROUP, "g") is None
