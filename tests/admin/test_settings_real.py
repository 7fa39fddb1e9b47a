"""Settings, partitions and sizes of topics on three real brokers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import confluent_kafka
import confluent_kafka.admin as confluent_admin
import pytest

from ottla.admin import Admin, Apply, NewTopic, SettingSource, SettingType
from ottla.cluster import LocalCluster
from ottla.errors import BrokerError, ErrorCode, InputError
from ottla.model import OffsetRange, TopicPartition

from .members import fill

pytestmark = pytest.mark.broker

NAME = "admin-settings"
T0 = TopicPartition(NAME, 0)


@pytest.fixture(scope="module")
def admin(kafka: LocalCluster) -> Iterator[Admin]:
    with Admin(kafka.bootstrap) as opened:
        yield opened


@pytest.fixture
def topic(admin: Admin) -> Iterator[str]:
    admin.create_topic(NAME, partitions=2, replicas=3, settings={"retention.ms": "3600000"})
    yield NAME
    admin.delete_topics(NAME)


def test_topics_that_were_deleted_meanwhile_keep_nobody_from_the_settings_of_others(admin: Admin, topic: str) -> None:
    assert admin.visible_settings([topic, "admin-settings-gone"]) == admin.settings(topic)
    assert admin.visible_settings(["admin-settings-gone"]) == {}
    with pytest.raises(BrokerError) as caught:
        admin.settings([topic, "admin-settings-gone"])
    assert caught.value.code is ErrorCode.unknown_topic_or_partition


def test_a_topic_that_one_broker_still_lists_is_asked_for_again(
    admin: Admin, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: its deletion was an error where another broker had not heard of it yet."""
    found = admin.cluster.metadata(None)
    listings: list[Any] = []
    stale = replace(found, topics={**found.topics, "admin-settings-gone": found.topics[topic]})

    def listed(*_: Any, **__: Any) -> Any:
        listings.append(found if listings else stale)
        return listings[-1]

    monkeypatch.setattr(admin.cluster, "metadata", listed)
    assert admin.visible_settings([topic, "admin-settings-gone"]).keys() == {topic}
    assert listings == [stale, found]


def test_settings_tell_value_source_type_and_what_they_would_be_otherwise(admin: Admin, topic: str) -> None:
    settings = admin.settings(topic)[topic]
    assert list(settings) == sorted(settings)
    assert len(settings) > 20
    own = settings["retention.ms"]
    assert (own.value, own.source, own.type) == ("3600000", SettingSource.TOPIC, SettingType.LONG)
    assert not own.is_default
    other = settings["max.message.bytes"]
    assert other.is_default
    assert other.source is SettingSource.DEFAULT
    assert other.value == other.inherited == other.default
    assert other.documentation
    assert not other.sensitive


def test_altered_settings_are_everywhere_when_the_call_returns(kafka: LocalCluster, admin: Admin, topic: str) -> None:
    changes = {"retention.ms": None, "cleanup.policy": "compact, delete", "min.cleanable.dirty.ratio": "0.30"}
    admin.alter_settings(topic, changes)
    for address in kafka.bootstrap.split(","):
        theirs = _described_by(address, topic)
        assert theirs["retention.ms"] == "604800000"
        assert theirs["cleanup.policy"] == "compact,delete"
        assert float(theirs["min.cleanable.dirty.ratio"]) == 0.3
    after = admin.settings(topic)[topic]
    assert after["retention.ms"].is_default
    assert after["cleanup.policy"].source is SettingSource.TOPIC


def _described_by(address: str, topic: str) -> dict[str, str]:
    resource = confluent_admin.ConfigResource("topic", topic)  # type: ignore[attr-defined]
    client = confluent_admin.AdminClient({"bootstrap.servers": address})
    configs = client.describe_configs([resource])[resource].result(30)
    return {name: entry.value for name, entry in configs.items()}


def test_a_check_changes_nothing(admin: Admin, topic: str) -> None:
    admin.alter_settings(topic, {"retention.ms": "5"}, apply=Apply.CHECK)
    admin.add_partitions(topic, 5, apply=Apply.CHECK)
    would_be = admin.check_topic(NewTopic(name="admin-checked", replicas=3, settings={"retention.ms": "7"}))
    assert would_be["retention.ms"].value == "7"
    assert "cleanup.policy" in would_be
    assert admin.settings(topic)[topic]["retention.ms"].value == "3600000"
    assert len(admin.describe_topics(topic)[0].partitions) == 2
    assert "admin-checked" not in admin.topic_names()


@pytest.mark.parametrize("apply", Apply)
def test_a_wrong_value_is_refused_in_the_brokers_words(admin: Admin, topic: str, apply: Apply) -> None:
    with pytest.raises(BrokerError, match=r"altering settings of topic admin-settings: INVALID_CONFIG.*soon"):
        admin.alter_settings(topic, {"retention.ms": "soon"}, apply=apply)
    with pytest.raises(BrokerError, match=r"no\.such"):
        admin.alter_settings(topic, {"no.such": "1"}, apply=apply)


@pytest.mark.usefixtures("hasty_about_unknown_topics")
def test_settings_of_a_missing_topic_are_an_error(admin: Admin) -> None:
    with pytest.raises(BrokerError, match="admin-missing: UNKNOWN_TOPIC_OR_PARTITION"):
        admin.settings("admin-missing")


def test_new_partitions_can_be_written_to_at_once(kafka: LocalCluster, admin: Admin, topic: str) -> None:
    admin.add_partitions(topic, 6)
    assert len(admin.describe_topics(topic)[0].partitions) == 6
    failed: list[object] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap, "retries": 0})
    for partition in range(6):
        producer.produce(topic, b"x", partition=partition, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(20) == 0
    assert failed == [None] * 6


def test_partitions_can_only_grow(admin: Admin, topic: str) -> None:
    with pytest.raises(BrokerError, match="adding partitions to topic admin-settings: INVALID_PARTITIONS") as caught:
        admin.add_partitions(topic, 1)
    assert caught.value.code is ErrorCode.invalid_partitions
    with pytest.raises(InputError, match="0 partitions; 1 to"):
        admin.add_partitions(topic, 0)


def test_ranges_and_sizes_follow_what_is_written(kafka: LocalCluster, admin: Admin, topic: str) -> None:
    fill(kafka.bootstrap, topic, {0: 50})
    assert admin.log_ranges(topic) == {
        T0: OffsetRange(NAME, 0, 0, 50),
        TopicPartition(NAME, 1): OffsetRange(NAME, 1, 0, 0),
    }
    sizes = admin.replica_sizes(topic)
    assert not sizes.away
    assert [copy.broker for copy in sizes.copies[T0]] == [1, 2, 3]
    largest = sizes.largest(T0)
    assert largest is not None
    assert largest > 300
    assert sizes.together(T0) <= 3 * largest
    assert sizes.largest(TopicPartition(NAME, 1)) == 0
    assert sizes.largest(TopicPartition(NAME, 7)) is None
