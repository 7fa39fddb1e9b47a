"""A load from two looks at a cluster: rates, stored sizes, retention, and what cannot be known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.errors import InputError
from ottla.jobs.brokers import Brokers
from ottla.model import OffsetRange, TopicPartition
from ottla.operations.capacity.measure import Look, look, observed
from ottla.operations.perf.produce import OttlaSending, Producing
from ottla.operations.perf.workload import Workload

_CLICKS, _USERS = TopicPartition("clicks", 0), TopicPartition("users", 0)
_FIRST = Look(
    at=100.0,
    logs={_CLICKS: OffsetRange("clicks", 0, 0, 1000), _USERS: OffsetRange("users", 0, 500, 600)},
    sizes={_CLICKS: 100_000, _USERS: 20_000},
    replicas={"clicks": 3, "users": 2},
    retention={"clicks": 86400.0, "users": 3 * 86400.0},
    compacted=frozenset({"users"}),
    brokers=5,
    groups=2,
)


def _later(clicks: OffsetRange, users: OffsetRange, sizes: dict[TopicPartition, int]) -> Look:
    return replace(_FIRST, at=110.0, logs={_CLICKS: clicks, _USERS: users}, sizes=sizes)


def test_rates_come_from_ends_and_sizes() -> None:
    after = _later(
        OffsetRange("clicks", 0, 0, 3000), OffsetRange("users", 0, 550, 600), {_CLICKS: 300_000, _USERS: 10_000}
    )
    found = observed(_FIRST, after)
    assert found.load.records_per_second == 200.0
    assert found.load.stored_record_bytes == 100.0
    assert found.load.bytes_per_second == 20_000.0
    assert (found.load.retention, found.load.replication, found.load.groups) == (86400.0, 3, 2)
    assert (found.load.topics, found.brokers, found.stored_bytes, found.notes) == (1, 5, 310_000, ())
    assert observed(_FIRST, after, groups=7).load.groups == 7


def test_where_retention_removed_records_the_mean_size_counts() -> None:
    # 400 records were added and 500 removed: the log has shrunk although it was written to.
    after = _later(
        OffsetRange("clicks", 0, 500, 1400), OffsetRange("users", 0, 500, 600), {_CLICKS: 90_000, _USERS: 20_000}
    )
    assert observed(_FIRST, after).load.bytes_per_second == 400 * 100 / 10


def test_retention_is_weighted_by_what_is_written() -> None:
    after = _later(
        OffsetRange("clicks", 0, 0, 2000), OffsetRange("users", 0, 500, 1100), {_CLICKS: 200_000, _USERS: 120_000}
    )
    # 100 kB and 100 kB in ten seconds, kept for one and for three days.
    found = observed(_FIRST, after)
    assert found.load.retention == pytest.approx(2 * 86400)
    assert found.notes == ("topic users is compacted: it is planned as if everything were kept for its retention",)


def test_what_cannot_be_known_is_said() -> None:
    after = _later(OffsetRange("clicks", 0, 0, 3000), OffsetRange("users", 0, 0, 10), {_CLICKS: 300_000})
    after = replace(after, retention={}, away={4: "no answer"})
    notes = "; ".join(observed(_FIRST, after).notes)
    assert "1 logs went back" in notes
    assert "brokers 4 did not report" in notes
    assert "clicks has no retention by time" in notes
    with pytest.raises(InputError, match="no records were written in 10 s"):
        observed(_FIRST, replace(_FIRST, at=110.0))
    with pytest.raises(InputError, match="same moment"):
        observed(_FIRST, _FIRST)


@pytest.mark.broker
def test_the_load_of_real_brokers(kafka: LocalCluster) -> None:
    topic = "capacity-measured"
    brokers = Brokers(bootstrap=kafka.bootstrap)
    work = Workload(topics=(topic,), records=1000, record_bytes=500, warmup=0.0)
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic(topic, partitions=3, replicas=2, settings={"retention.ms": "7200000"})
        before = look(admin, now=0.0, topics=[topic])
        Producing(work, lambda: OttlaSending(work, brokers)).run()
        after = look(admin, now=4.0, topics=[topic])
    found = observed(before, after, groups=1)
    assert found.load.records_per_second == 250.0
    assert 500 < found.load.stored_record_bytes < 600
    assert (found.load.replication, found.load.retention, found.brokers) == (2, 7200.0, 3)


@pytest.mark.broker
def test_a_topic_that_is_deleted_during_a_look_is_left_out(
    kafka: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Admin(kafka.bootstrap) as admin:
        for name in ("capacity-stays", "capacity-goes"):
            admin.create_topic(name, replicas=1)
        listed = Admin.describe_topics

        def deleting(self: Admin, *arguments: Any, **options: Any) -> Any:
            topics = listed(self, *arguments, **options)
            admin.delete_topics("capacity-goes")
            return topics

        monkeypatch.setattr(Admin, "describe_topics", deleting)
        seen = look(admin, now=0.0, topics=["capacity-stays", "capacity-goes"])
    assert {at.topic for at in seen.logs} == seen.retention.keys() == {"capacity-stays"}
