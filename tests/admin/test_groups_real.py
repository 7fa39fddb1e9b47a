"""Groups on three real brokers, with members of confluent-kafka in both protocols."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.admin import Admin, Committed, PartitionLag
from ottla.cluster import LocalCluster
from ottla.errors import BrokerError, ErrorCode
from ottla.model import TopicPartition

from .members import fill, member

pytestmark = pytest.mark.broker

TOPIC = "admin-groups"
T0, T1, T2 = (TopicPartition(TOPIC, number) for number in range(3))
PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])


@pytest.fixture(scope="module")
def admin(kafka: LocalCluster) -> Iterator[Admin]:
    with Admin(kafka.bootstrap) as opened:
        opened.create_topic(TOPIC, partitions=3, replicas=3)
        fill(kafka.bootstrap, TOPIC, {0: 10, 1: 20})
        yield opened
        opened.delete_topics(TOPIC)


@PROTOCOLS
def test_a_group_is_listed_and_described_with_its_members(kafka: LocalCluster, admin: Admin, protocol: str) -> None:
    name = f"groups-described-{protocol}"
    with member(kafka.bootstrap, name, TOPIC, protocol=protocol, client="app-1"):
        listed = {group.name: group for group in admin.groups.list_groups()}
        assert listed[name].type == protocol
        assert listed[name].state == "Stable"
        assert listed[name].protocol_type == "consumer"
        assert listed[name].coordinator in (1, 2, 3)
        group = admin.groups.describe(name)
        assert (group.name, group.type, group.state) == (name, protocol, "Stable")
        assert group.assignor == {"classic": "range", "consumer": "uniform"}[protocol]
        [described] = group.members
        assert described.client_id == "app-1"
        assert described.host == "/127.0.0.1"
        assert described.subscribed == (TOPIC,)
        assert described.assigned == (T0, T1, T2)
        assert (described.epoch is None) is (protocol == "classic")
    assert admin.groups.describe(name).members == ()


@PROTOCOLS
def test_offsets_and_group_are_safe_while_it_has_members(kafka: LocalCluster, admin: Admin, protocol: str) -> None:
    name = f"groups-used-{protocol}"
    with member(kafka.bootstrap, name, TOPIC, protocol=protocol, client="app-1"):
        refusal = rf"group {name} is in use.*1 member: app-1 on 127\.0\.0\.1"
        with pytest.raises(BrokerError, match=refusal) as caught:
            admin.groups.set_offsets(name, {T0: 1})
        assert caught.value.code is ErrorCode.non_empty_group
        with pytest.raises(BrokerError, match=refusal):
            admin.groups.delete(name)
        with pytest.raises(BrokerError, match=r"deleting the offset of .*GROUP_SUBSCRIBED_TO_TOPIC"):
            admin.groups.delete_offsets(name, [T0])
        assert admin.groups.committed(name) == {}
    admin.groups.set_offsets(name, {T0: 1})
    assert admin.groups.committed(name) == {T0: Committed(1)}
    admin.groups.delete(name)
    with pytest.raises(BrokerError, match=f"describing group {name}: GROUP_ID_NOT_FOUND"):
        admin.groups.describe(name)


def test_lag_covers_every_partition_of_the_topics_it_reads(admin: Admin) -> None:
    admin.groups.set_offsets("groups-lag", {T0: 4, T1: Committed(20, 0, "noted")})
    assert admin.groups.lag("groups-lag") == [
        PartitionLag(T0, Committed(4), 0, 10),
        PartitionLag(T1, Committed(20, 0, "noted"), 0, 20),
        PartitionLag(T2, None, 0, 0),
    ]
    assert [partition.lag for partition in admin.groups.lag("groups-lag")] == [6, 0, None]
    assert admin.groups.lag("groups-unknown") == []


@PROTOCOLS
def test_what_a_member_was_given_counts_for_the_lag_before_it_commits(
    kafka: LocalCluster, admin: Admin, protocol: str
) -> None:
    name = f"groups-new-{protocol}"
    with member(kafka.bootstrap, name, TOPIC, protocol=protocol):
        assert admin.groups.lag(name) == [
            PartitionLag(T0, None, 0, 10),
            PartitionLag(T1, None, 0, 20),
            PartitionLag(T2, None, 0, 0),
        ]


def test_offsets_of_single_partitions_are_forgotten(admin: Admin) -> None:
    admin.groups.set_offsets("groups-forget", {T0: 4, T1: 5})
    admin.groups.delete_offsets("groups-forget", [T0])
    assert admin.groups.committed("groups-forget") == {T1: Committed(5)}


@pytest.mark.usefixtures("hasty_about_unknown_topics")
def test_what_does_not_exist_is_said(admin: Admin) -> None:
    for ask in (admin.groups.describe, admin.groups.delete):
        with pytest.raises(BrokerError, match=r"groups-missing: GROUP_ID_NOT_FOUND.*(\n.*)?no group has this name"):
            ask("groups-missing")
    with pytest.raises(BrokerError, match="committing the offset of groups-missing-0 for group g"):
        admin.groups.set_offsets("g", {TopicPartition("groups-missing", 0): 1})
    with pytest.raises(BrokerError, match="GROUP_ID_NOT_FOUND"):
        admin.groups.delete_offsets("groups-missing", [T0])
