"""Admin against a fake cluster: retries, lost responses and moved leaders."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, cast

import pytest

from ottla.admin import EARLIEST, LATEST, Admin, NewTopic
from ottla.admin.offsets import wire_timestamp
from ottla.config import Retry
from ottla.errors import BrokerError, DeadlineExceeded, ErrorCode, InputError
from ottla.model import TopicPartition
from ottla.net import Cluster
from ottla.testing import FakeKafka
from ottla.testing.fake.faults import When


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka(brokers=3, topics={"t": 6}, auto_create=None) as fake:
        yield fake


@pytest.fixture
def admin(kafka: FakeKafka) -> Iterator[Admin]:
    with Admin(kafka.bootstrap, retry=Retry(initial=0.005, maximum=0.05)) as opened:
        yield opened


def test_a_topic_created_by_a_request_whose_answer_was_lost_is_ours(kafka: FakeKafka, admin: Admin) -> None:
    kafka.cut("CreateTopics", when=When.AFTER_HANDLING)
    admin.create_topic("new", partitions=2)
    assert kafka.topics["new"] == 2


def test_a_topic_that_was_there_before_is_an_error(kafka: FakeKafka, admin: Admin) -> None:
    with pytest.raises(BrokerError, match="creating topic t: TOPIC_ALREADY_EXISTS"):
        admin.create_topic("t")
    kafka.fail("CreateTopics", ErrorCode.not_controller)
    with pytest.raises(BrokerError, match="TOPIC_ALREADY_EXISTS"):
        admin.create_topic("t")


def test_a_deletion_whose_answer_was_lost_is_not_an_error(kafka: FakeKafka, admin: Admin) -> None:
    kafka.cut("DeleteTopics", when=When.AFTER_HANDLING)
    admin.delete_topics("t")
    assert "t" not in kafka.topics


def test_deleting_what_is_not_there_is_an_error_at_once(admin: Admin) -> None:
    with pytest.raises(BrokerError, match="deleting topic missing: UNKNOWN_TOPIC_OR_PARTITION"):
        admin.delete_topics(["missing"])


def test_several_topics_are_created_described_and_deleted(kafka: FakeKafka, admin: Admin) -> None:
    admin.create_topics([NewTopic(name="a", partitions=1), NewTopic(name="b", partitions=2)])
    assert admin.topic_names() == ["a", "b", "t"]
    described = admin.describe_topics(["b", "a"])
    assert [(topic.name, len(topic.partitions)) for topic in described] == [("a", 1), ("b", 2)]
    admin.delete_topics(["a", "b"])
    assert admin.topic_names() == ["t"]
    with pytest.raises(BrokerError, match="describing topic a: UNKNOWN"):
        admin.describe_topics("a")


@pytest.mark.parametrize("api", ["CreateTopics", "DeleteTopics"])
def test_topics_that_succeeded_are_not_asked_for_again_with_those_that_must_wait(
    kafka: FakeKafka, admin: Admin, api: str
) -> None:
    fault = kafka.fail(api, ErrorCode.throttling_quota_exceeded, topic="two")
    admin.create_topics([NewTopic(name=name) for name in ("one", "two", "three")])
    assert set(kafka.topics) == {"t", "one", "two", "three"}
    admin.delete_topics(["one", "two", "three"])
    assert set(kafka.topics) == {"t"}
    assert fault.hits == 1


def test_only_partitions_whose_leader_moved_are_asked_again(kafka: FakeKafka, admin: Admin) -> None:
    admin.list_offsets("t")
    before = len(kafka.requests)
    kafka.fail("ListOffsets", ErrorCode.not_leader_or_follower, topic="t", partition=3)
    offsets = admin.list_offsets("t", EARLIEST)
    assert {key: offset.offset for key, offset in offsets.items()} == {
        TopicPartition("t", index): 0 for index in range(6)
    }
    asked = [seen.partitions for seen in kafka.requests[before:] if seen.api == "ListOffsets"]
    assert len(asked) == 4  # three leaders, then one of them again
    assert asked[-1] == (TopicPartition("t", 3),)


def test_each_leader_gets_one_request(kafka: FakeKafka, admin: Admin) -> None:
    admin.list_offsets([TopicPartition("t", 1), TopicPartition("t", 4), TopicPartition("t", 4)], LATEST)
    asked = [seen for seen in kafka.requests if seen.api == "ListOffsets"]
    assert len({seen.broker for seen in asked}) == len(asked)


def test_the_name_of_a_topic_stands_for_its_partitions(kafka: FakeKafka, admin: Admin) -> None:
    kafka.create_topic("u", 2)
    assert list(admin.log_ranges(["u", TopicPartition("t", 4), TopicPartition("u", 1)])) == [
        TopicPartition("u", 0),
        TopicPartition("u", 1),
        TopicPartition("t", 4),
    ]
    with pytest.raises(InputError, match="4 is neither a TopicPartition nor a topic name"):
        admin.list_offsets([cast("str", 4)])


def test_many_topics_are_looked_up_by_one_question(kafka: FakeKafka, admin: Admin) -> None:
    names = [f"t{number}" for number in range(20)]
    for name in names:
        kafka.create_topic(name, 2)
    assert len(admin.list_offsets([TopicPartition(name, 1) for name in names])) == 20
    assert sum(seen.api == "Metadata" for seen in kafka.requests) == 1


def test_a_cut_connection_to_one_leader_is_made_good(kafka: FakeKafka, admin: Admin) -> None:
    kafka.cut("ListOffsets", times=2)
    assert len(admin.list_offsets("t")) == 6


def test_an_error_that_no_retry_cures_is_raised_at_once(kafka: FakeKafka, admin: Admin) -> None:
    kafka.fail("ListOffsets", ErrorCode.topic_authorization_failed, topic="t", partition=2)
    with pytest.raises(BrokerError, match="listing offsets of t-2: TOPIC_AUTHORIZATION_FAILED"):
        admin.list_offsets("t")


def test_the_timeout_covers_the_whole_call(kafka: FakeKafka, admin: Admin) -> None:
    kafka.fail("ListOffsets", ErrorCode.not_leader_or_follower, times=None)
    with pytest.raises(DeadlineExceeded, match=r"listing offsets of t-0, t-1, t-2 and 3 more did not succeed"):
        admin.list_offsets("t", timeout=0.3)


def test_a_cluster_that_was_handed_in_stays_open(kafka: FakeKafka) -> None:
    with Cluster(kafka.bootstrap) as cluster:
        with Admin(cluster) as admin:
            assert admin.topic_names() == ["t"]
        assert len(cluster.metadata().brokers) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"partitions": 0},
        {"partitions": -2},
        {"partitions": 1 << 31},
        {"partitions": "3"},
        {"replicas": 0},
        {"replicas": 40_000},
        {"assignments": []},
        {"assignments": [[1], []]},
    ],
)
def test_a_topic_that_cannot_be_is_refused_before_anything_is_sent(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match="topic x: "):
        NewTopic(name="x", **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "x" * 250, "x" * 40_000, "ä", 5, None])
def test_a_name_that_no_topic_can_have_is_refused_in_a_short_text(name: str) -> None:
    with pytest.raises(InputError, match="1 to 249 letters") as caught:
        NewTopic(name=name)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("at", [1.5, "latest", None, 1 << 63])
def test_what_is_no_time_is_refused(at: Any) -> None:
    with pytest.raises(InputError, match="is not an OffsetSpec, an aware datetime or milliseconds"):
        wire_timestamp(at)


def test_times_are_turned_into_milliseconds() -> None:
    assert wire_timestamp(datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)) == 1500
    assert wire_timestamp(datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))) == 0
    assert wire_timestamp(LATEST) == -1
    assert wire_timestamp(EARLIEST) == -2
    assert wire_timestamp(42) == 42
    with pytest.raises(InputError, match="no time zone"):
        wire_timestamp(datetime(2020, 1, 1))
    with pytest.raises(InputError, match="before 1970"):
        wire_timestamp(datetime(1969, 1, 1, tzinfo=UTC))
    with pytest.raises(InputError, match="EARLIEST"):
        wire_timestamp(-2)
