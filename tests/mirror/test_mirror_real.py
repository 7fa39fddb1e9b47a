"""Topics of every kind, mirrored between real brokers: a foreign reader sees the same on both sides."""

from __future__ import annotations

import os
import pickle
import threading
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import confluent_kafka
import pytest
from tests.fetch.compacting import COMPACTION, compact
from tests.interop.clients import confluent_write
from tests.interop.samples import CODECS, UNUSUAL, Sent
from tests.mirror.copies import assert_equal, link_of, new_topic, seen, tp
from tests.waiting import eventually

from ottla import Producer, Reader
from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.engines.fleet import jobs as fleet_jobs
from ottla.engines.fleet.store import open_store
from ottla.errors import Fenced, InputError, MirrorError, OffsetsLost, RecordTooLarge
from ottla.events import Event, MirrorFaultAccepted, MirrorTookOver
from ottla.jobs.brokers import Brokers
from ottla.jobs.mirror_audit import LinkAudit, count_target
from ottla.jobs.mirror_guards import refuse_conflicts
from ottla.jobs.mirror_kind import MirrorKind
from ottla.jobs.mirror_report import MirrorReport
from ottla.jobs.mirrors import Mirroring, MirrorRange, mirror
from ottla.mirror import journal
from ottla.mirror.lane import Phase
from ottla.mirror.rules import Action, Policy
from ottla.mirror.terms import OffsetMap
from ottla.mirror.topics import TopicPlan

pytestmark = pytest.mark.broker


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_is_passed_on_as_it_is(kafka: LocalCluster, codec: str) -> None:
    topic = new_topic(kafka.bootstrap, codec, partitions=2)
    for partition in range(2):
        confluent_write(kafka.bootstrap, tp(topic, partition), codec, UNUSUAL)
    report = mirror(link_of(kafka.bootstrap, topic))
    assert report.records == 2 * len(UNUSUAL) == assert_equal(kafka.bootstrap, topic, partitions=2)
    assert all(partition.passed_on == partition.batches > 0 for partition in report.partitions)
    with Reader(kafka.bootstrap) as reader:
        profile = reader.profile(f"copy.{topic}")
    assert {name for partition in profile for name in partition.codecs} <= {codec}


def test_a_second_run_writes_only_what_is_new(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "twice")
    link = link_of(kafka.bootstrap, topic)
    confluent_write(kafka.bootstrap, tp(topic), "zstd", UNUSUAL)
    assert mirror(link).records == len(UNUSUAL)
    assert mirror(link).records == 0
    confluent_write(kafka.bootstrap, tp(topic), "lz4", UNUSUAL[:50])
    assert mirror(link).records == 50
    assert assert_equal(kafka.bootstrap, topic) == len(UNUSUAL) + 50


def test_only_committed_records_arrive_and_open_transactions_wait(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "transactions")
    link = link_of(kafka.bootstrap, topic)
    with Producer(kafka.bootstrap, transactional_id=f"{topic}-a") as producer:
        for number in range(30):
            try:
                with producer.transaction():
                    for record in range(5):
                        producer.send(topic, b"%d-%d" % (number, record), b"k")
                    if number % 3 == 0:
                        raise ValueError("abort this one")
            except ValueError:
                pass
        producer_open = confluent_kafka.Producer(
            {"bootstrap.servers": kafka.bootstrap, "transactional.id": f"{topic}-open"}
        )
        producer_open.init_transactions(30)
        producer_open.begin_transaction()
        producer_open.produce(topic, b"still open")
        producer_open.flush(30)
        with producer.transaction():
            producer.send(topic, b"behind the open one")
        assert mirror(link).records == 100
        assert assert_equal(kafka.bootstrap, topic) == 100
        producer_open.commit_transaction(30)
    assert mirror(link).records == 2
    assert assert_equal(kafka.bootstrap, topic) == 102


def test_a_compacted_topic_is_mirrored_without_its_gaps(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "compacted", settings=COMPACTION)
    compact(kafka, tp(topic), 600, is_there=lambda: _count(kafka.bootstrap, topic))
    with Admin(kafka.bootstrap) as admin:  # it stays as it is from now on
        admin.alter_settings(topic, {"cleanup.policy": "delete"})
    link = link_of(kafka.bootstrap, topic)
    report = mirror(link)
    assert report.partitions[0].recoded.get("gaps", 0) > 0
    assert assert_equal(kafka.bootstrap, topic) == report.records
    _assert_map_is_exact(kafka, link.name, topic)
    assert mirror(link).records == 0


def test_append_times_of_the_source_are_kept(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "append", settings={"message.timestamp.type": "LogAppendTime"})
    confluent_write(kafka.bootstrap, tp(topic), "zstd", [Sent(b"k", b"v", (), 1000 + n) for n in range(50)])
    report = mirror(link_of(kafka.bootstrap, topic))
    assert report.partitions[0].recoded == {"append_time": report.partitions[0].batches}
    assert assert_equal(kafka.bootstrap, topic) == 50
    assert all(time_ms > 1_600_000_000_000 for *_, time_ms in seen(kafka.bootstrap, f"copy.{topic}"))


def test_times_in_the_future_that_the_source_takes_are_taken_by_the_target(kafka: LocalCluster) -> None:
    allowed = {"message.timestamp.after.max.ms": str(1 << 60)}
    topic = new_topic(kafka.bootstrap, "future", settings=allowed)
    later = int(time.time() * 1000) + 86_400_000
    confluent_write(kafka.bootstrap, tp(topic), "none", [Sent(b"k", b"v", (), later)])
    mirror(link_of(kafka.bootstrap, topic))
    assert assert_equal(kafka.bootstrap, topic) == 1


def test_a_target_with_another_codec_and_a_smaller_limit(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "smaller")
    with Admin(kafka.bootstrap) as admin:
        settings = {"compression.type": "lz4", "max.message.bytes": "20000"}
        admin.create_topic(f"copy.{topic}", replicas=1, settings=settings)
    records = [Sent(b"%d" % n, bytes([n % 251]) * 1000, (), 1000 + n) for n in range(200)]
    confluent_write(kafka.bootstrap, tp(topic), "none", records)
    report = mirror(link_of(kafka.bootstrap, topic))
    assert sum(report.partitions[0].recoded.values()) == report.partitions[0].batches >= 10
    assert assert_equal(kafka.bootstrap, topic) == 200


def test_a_record_that_the_target_cannot_take_stops_its_partition_and_no_other(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "oversize", partitions=2, settings={"max.message.bytes": str(30 << 20)})
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic(f"copy.{topic}", partitions=2, replicas=1, settings={"max.message.bytes": "100000"})
    with Producer(kafka.bootstrap, max_record_bytes=25 << 20) as producer:
        producer.send(topic, b"small", partition=0)
        producer.send(topic, b"x" * (20 << 20), partition=0)
        producer.send(topic, b"the other", partition=1)
    link = link_of(kafka.bootstrap, topic, follow_settings=False)
    with pytest.raises(RecordTooLarge, match=r"offset 1 of .*takes 20,971,\d+ bytes"):
        mirror(link)
    assert [value for _, value, *_ in seen(kafka.bootstrap, f"copy.{topic}", 0)] == [b"small"]
    assert [value for _, value, *_ in seen(kafka.bootstrap, f"copy.{topic}", 1)] == [b"the other"]
    with Admin(kafka.bootstrap) as admin:
        admin.alter_settings(f"copy.{topic}", {"max.message.bytes": str(30 << 20)})
    assert mirror(link).records == 1
    assert assert_equal(kafka.bootstrap, topic, partitions=2) == 3


def test_partitions_and_settings_follow_the_source(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "grown", partitions=2, settings={"retention.ms": "86400000"})
    link = link_of(kafka.bootstrap, topic)
    confluent_write(kafka.bootstrap, tp(topic), "none", UNUSUAL[:10])
    mirror(link)
    with Admin(kafka.bootstrap) as admin:
        copied = admin.settings(f"copy.{topic}")[f"copy.{topic}"]
        assert copied["retention.ms"].value == "86400000"
        assert copied["compression.type"].value == "producer"
        admin.add_partitions(topic, 4)
        admin.alter_settings(topic, {"retention.ms": "172800000", "cleanup.policy": "compact"})
    confluent_write(kafka.bootstrap, tp(topic, 3), "none", UNUSUAL[10:20])
    mirror(link)
    assert assert_equal(kafka.bootstrap, topic, partitions=4) == 20
    with Admin(kafka.bootstrap) as admin:
        copied = admin.settings(f"copy.{topic}")[f"copy.{topic}"]
        assert (copied["retention.ms"].value, copied["cleanup.policy"].value) == ("172800000", "compact")


def test_a_foreign_writer_is_noticed_and_stops_the_link_or_is_reported(
    kafka: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(kafka.bootstrap, "foreign")
    link = link_of(kafka.bootstrap, topic)
    confluent_write(kafka.bootstrap, tp(topic), "none", UNUSUAL[:10])
    mirror(link)
    confluent_write(kafka.bootstrap, tp(f"copy.{topic}"), "none", UNUSUAL[:3])
    confluent_write(kafka.bootstrap, tp(topic), "none", UNUSUAL[10:20])
    with pytest.raises(MirrorError, match="another producer has written to the target: 3 records") as stopped:
        mirror(link)
    assert stopped.value.fault == "foreign_writer"
    told: list[Event] = []
    rules = Policy(on_foreign="continue", patience=20.0)  # type: ignore[arg-type]  # as users write it
    assert mirror(link_of(kafka.bootstrap, topic, rules=rules), events=[told.append]).records == 10
    assert [event.fault for event in told if isinstance(event, MirrorFaultAccepted)] == ["foreign_writer"]
    (warning,) = (text for *_, text in caplog.record_tuples if "accepted" in text)
    assert warning.startswith(f"link {link.name}: {topic}-0: accepted: ")
    assert "another producer has written to the target: 3 records" in warning
    _assert_map_is_exact(kafka, link.name, topic)


def test_a_target_that_has_records_already_is_not_written(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "taken")
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic(f"copy.{topic}", replicas=1)
    confluent_write(kafka.bootstrap, tp(f"copy.{topic}"), "none", UNUSUAL[:3])
    confluent_write(kafka.bootstrap, tp(topic), "none", UNUSUAL[:10])
    with pytest.raises(MirrorError, match="already has records that this link did not write"):
        mirror(link_of(kafka.bootstrap, topic))
    assert len(seen(kafka.bootstrap, f"copy.{topic}")) == 3


def test_a_source_topic_that_was_created_again_is_noticed(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "again")
    link = link_of(kafka.bootstrap, topic)
    confluent_write(kafka.bootstrap, tp(topic), "none", UNUSUAL[:10])
    mirror(link)
    with Admin(kafka.bootstrap) as admin:
        admin.delete_topics(topic)
        admin.create_topic(topic, replicas=1)
    confluent_write(kafka.bootstrap, tp(topic), "none", UNUSUAL[:20])
    with pytest.raises(MirrorError, match="the source topic was deleted and created again"):
        mirror(link)
    rules = Policy(on_lost="continue", patience=20.0)  # type: ignore[arg-type]
    assert mirror(link_of(kafka.bootstrap, topic, rules=rules)).records == 20
    copied = seen(kafka.bootstrap, f"copy.{topic}")
    assert copied[10:] == seen(kafka.bootstrap, topic)


def test_a_source_topic_that_is_created_again_while_a_mirror_runs_is_mirrored_once(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "replaced-while-running")
    link = link_of(kafka.bootstrap, topic, rules=Policy(on_lost=Action.CONTINUE))
    stopped = threading.Event()
    thread = threading.Thread(target=lambda: mirror(link, follow=True, is_stopped=stopped.is_set))
    thread.start()
    with Admin(kafka.bootstrap) as admin:
        for name, count in (("old", 20), ("new", 30)):
            with Producer(kafka.bootstrap) as producer:
                producer.send_many(topic, [b"%s %d" % (name.encode(), number) for number in range(count)])
            if name == "old":
                eventually(lambda: _exists_with(kafka.bootstrap, f"copy.{topic}", 20), "the first topic is mirrored")
                admin.delete_topics(topic)
                admin.create_topic(topic, partitions=1, replicas=1)
        eventually(lambda: _exists_with(kafka.bootstrap, f"copy.{topic}", 50), "the second one is, too", seconds=60)
    stopped.set()
    thread.join(30)
    assert mirror(link).records == 0, "a later run knows which topic was mirrored"
    assert _count(kafka.bootstrap, f"copy.{topic}") == 50


def test_a_target_topic_that_was_created_again_is_noticed(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "target-again")
    link = link_of(kafka.bootstrap, topic)
    confluent_write(kafka.bootstrap, tp(topic), "none", UNUSUAL[:10])
    mirror(link)
    with Admin(kafka.bootstrap) as admin:
        admin.delete_topics(f"copy.{topic}")
    with pytest.raises(MirrorError, match="the target topic was deleted and created again"):
        mirror(link)
    rules = Policy(on_target_lost="continue", patience=20.0)  # type: ignore[arg-type]
    assert mirror(link_of(kafka.bootstrap, topic, rules=rules)).records == 10
    assert assert_equal(kafka.bootstrap, topic) == 10


def test_a_target_topic_that_is_created_again_under_a_running_mirror_is_noticed_with_the_next_batch(
    kafka: LocalCluster,
) -> None:
    topic = new_topic(kafka.bootstrap, "target-replaced-while-running")
    stopped = threading.Event()
    with Mirroring(link_of(kafka.bootstrap, topic)) as mirroring, Admin(kafka.bootstrap) as admin:
        thread = threading.Thread(target=lambda: mirroring.run(follow=True, is_stopped=stopped.is_set))
        thread.start()
        with Producer(kafka.bootstrap) as producer:
            producer.send_many(topic, [b"x"] * 20)
            producer.flush()
            eventually(lambda: _exists_with(kafka.bootstrap, f"copy.{topic}", 20), "the first copy")
            admin.delete_topics(f"copy.{topic}")
            admin.create_topic(f"copy.{topic}", partitions=1, replicas=1)
            producer.send(topic, b"y")
        eventually(lambda: "created again" in str(mirroring.lanes()[0].error), "the fault is named", seconds=10)
        stopped.set()
        thread.join(30)


def test_a_target_topic_that_is_created_again_under_a_running_mirror_has_every_record_once(
    kafka: LocalCluster,
) -> None:
    topic = new_topic(kafka.bootstrap, "target-replaced-and-accepted")
    stopped = threading.Event()
    rules = Policy(on_target_lost="continue", patience=20.0)  # type: ignore[arg-type]
    with Mirroring(link_of(kafka.bootstrap, topic, rules=rules)) as mirroring, Admin(kafka.bootstrap) as admin:
        thread = threading.Thread(target=lambda: mirroring.run(follow=True, is_stopped=stopped.is_set))
        thread.start()
        with Producer(kafka.bootstrap) as producer:
            producer.send_many(topic, [b"x"] * 20)
            producer.flush()
            eventually(lambda: _exists_with(kafka.bootstrap, f"copy.{topic}", 20), "the first copy")
            admin.delete_topics(f"copy.{topic}")
            admin.create_topic(f"copy.{topic}", partitions=1, replicas=1)
            producer.send(topic, b"y")
        eventually(lambda: _exists_with(kafka.bootstrap, f"copy.{topic}", 21), "all of it is mirrored again")
        stopped.set()
        thread.join(30)
    assert assert_equal(kafka.bootstrap, topic) == 21


def test_a_target_topic_that_was_deleted_keeps_no_other_from_being_counted(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "counted")
    with Producer(kafka.bootstrap) as producer:
        producer.send_many(topic, [b"x"] * 5)
    audit = LinkAudit(tier="hub", topic="mirror-counted-audit")
    report = count_target(audit, Brokers(bootstrap=kafka.bootstrap), [topic, f"{topic}-deleted"])
    assert report is not None
    assert report.records == 5
    assert count_target(audit, Brokers(bootstrap=kafka.bootstrap), [f"{topic}-deleted"]) is None


def test_retention_that_overtakes_the_mirror_is_noticed(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "overtaken")
    link = link_of(kafka.bootstrap, topic)
    confluent_write(kafka.bootstrap, tp(topic), "none", UNUSUAL[:10])
    mirror(link)
    confluent_write(kafka.bootstrap, tp(topic), "none", UNUSUAL[10:30])
    _delete_before(kafka.bootstrap, topic, 20)
    with pytest.raises(OffsetsLost, match=r"offsets \[10, 20\) are lost"):
        mirror(link)
    rules = Policy(on_lost="continue", patience=20.0)  # type: ignore[arg-type]
    assert mirror(link_of(kafka.bootstrap, topic, rules=rules)).records == 10
    assert seen(kafka.bootstrap, f"copy.{topic}")[10:] == seen(kafka.bootstrap, topic)
    _assert_map_is_exact(kafka, link.name, topic)


def test_a_second_mirror_is_refused_or_takes_over_and_then_the_first_one_stops(
    kafka: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.jobs.mirrors._RETRY_SECONDS", 0.5)
    topic = new_topic(kafka.bootstrap, "two")
    link = link_of(kafka.bootstrap, topic)
    begun = threading.Event()
    reports: list[MirrorReport] = []
    with Mirroring(link, events=[lambda event: begun.set() if isinstance(event, MirrorTookOver) else None]) as first:
        thread = threading.Thread(target=lambda: reports.append(first.run(follow=True)))
        thread.start()
        assert begun.wait(30)
        confluent_write(kafka.bootstrap, tp(topic), "none", UNUSUAL[:10])
        eventually(lambda: _count(kafka.bootstrap, f"copy.{topic}") == 10, "the first has mirrored")
        with pytest.raises(MirrorError, match=rf"is being mirrored by process {os.getpid()} on"):
            mirror(link)
        mirror(link, take_over=True)
        confluent_write(kafka.bootstrap, tp(topic), "none", UNUSUAL[10:20])
        eventually(lambda: first.lanes()[0].phase is Phase.FAILED, "the first one is shut out")
        assert isinstance(first.lanes()[0].error, Fenced)
        assert mirror(link, take_over=True).records == 10
        assert assert_equal(kafka.bootstrap, topic) == 20
        thread.join(90)
        assert not thread.is_alive(), "it ends by itself, since nothing is left to it"
    assert "has taken over" in str(reports[0].partitions[0].error)


def test_following_mirrors_what_comes_until_it_is_stopped(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "followed", partitions=2)
    stopped = threading.Event()
    with Mirroring(link_of(kafka.bootstrap, topic)) as mirroring:
        thread = threading.Thread(target=lambda: mirroring.run(follow=True, is_stopped=stopped.is_set))
        thread.start()
        with Producer(kafka.bootstrap) as producer:
            for number in range(50):
                producer.send(topic, b"%d" % number, b"%d" % number).result(30)
        eventually(lambda: _count(kafka.bootstrap, f"copy.{topic}") == 50, "everything has arrived")
        stopped.set()
        thread.join(30)
        assert not thread.is_alive()
    assert assert_equal(kafka.bootstrap, topic, partitions=2) == 50


def test_topics_and_partitions_that_are_new_are_followed(kafka: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.jobs.mirrors._REFRESH_SECONDS", 0.2)
    first = new_topic(kafka.bootstrap, "new")
    later = f"{first}-later"
    stopped = threading.Event()
    with Mirroring(link_of(kafka.bootstrap, f"{first}*", name=first, isolated=later)) as mirroring:
        thread = threading.Thread(target=lambda: mirroring.run(follow=True, is_stopped=stopped.is_set))
        thread.start()
        with Admin(kafka.bootstrap) as admin:
            eventually(lambda: f"copy.{first}" in admin.topic_names(), "the copy exists")
            admin.add_partitions(first, 2)
            admin.create_topic(later, replicas=1)
        confluent_write(kafka.bootstrap, tp(first, 1), "none", UNUSUAL[:10])
        confluent_write(kafka.bootstrap, tp(later), "none", UNUSUAL[:10])
        for copy in (f"copy.{first}", f"copy.{later}"):
            eventually(partial(_exists_with, kafka.bootstrap, copy, 10), f"{copy} has everything")
        stopped.set()
        thread.join(30)
        assert not thread.is_alive()
    assert assert_equal(kafka.bootstrap, first, partitions=2) + assert_equal(kafka.bootstrap, later) == 20


def test_a_mirror_that_follows_waits_for_a_topic_that_does_not_exist_yet(
    kafka: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.jobs.mirrors._REFRESH_SECONDS", 0.2)
    monkeypatch.setattr("ottla.jobs.mirrors._RETRY_SECONDS", 0.2)
    later = f"mirror-not-yet-{os.getpid()}"
    stopped = threading.Event()
    with Mirroring(link_of(kafka.bootstrap, f"{later}*", name=later, start="latest")) as mirroring:
        thread = threading.Thread(target=lambda: mirroring.run(follow=True, is_stopped=stopped.is_set))
        thread.start()
        eventually(lambda: mirroring.journal.note("holder"), "it runs")
        with Admin(kafka.bootstrap) as admin:
            admin.create_topic(later, replicas=1)
        confluent_write(kafka.bootstrap, tp(later), "none", UNUSUAL[:10])
        eventually(partial(_exists_with, kafka.bootstrap, f"copy.{later}", 10), "all of the new topic is mirrored")
        stopped.set()
        thread.join(30)
        assert not thread.is_alive()


def test_where_a_partition_begins_is_decided_once(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "begins")
    confluent_write(kafka.bootstrap, tp(topic), "none", UNUSUAL[:10])
    with Mirroring(link_of(kafka.bootstrap, topic, start="latest")) as mirroring:
        plans = mirroring.prepare()
        assert [(unit.start, unit.stop) for unit in mirroring.ranges(plans)] == [(10, 10)]
        confluent_write(kafka.bootstrap, tp(topic), "none", UNUSUAL[10:15])
        assert [(unit.start, unit.stop) for unit in mirroring.ranges(plans)] == [(10, 15)]


def test_a_partition_without_a_term_begins_where_its_topic_began_though_the_mirror_was_killed(
    kafka: LocalCluster,
) -> None:
    topic = new_topic(kafka.bootstrap, "killed-early", partitions=2)
    for partition in (0, 1):
        confluent_write(kafka.bootstrap, tp(topic, partition), "none", UNUSUAL[:10])
    link = link_of(kafka.bootstrap, topic, start="latest")
    with Mirroring(link) as mirroring:  # it gets no further than the first term of one partition
        first, _ = mirroring.ranges(mirroring.prepare())
        mirroring.run_range(first, lambda: False)
    for partition in (0, 1):
        confluent_write(kafka.bootstrap, tp(topic, partition), "none", UNUSUAL[10:15])
    assert mirror(link).records == 10, "what came since, and no history"
    with Admin(kafka.bootstrap) as admin:
        admin.add_partitions(topic, 3)
    confluent_write(kafka.bootstrap, tp(topic, 2), "none", UNUSUAL[:3])
    assert mirror(link).records == 3, "a partition that came later is mirrored from its first record"


def test_a_circle_and_a_copy_of_another_link_are_refused_and_nothing_is_written(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "circle")
    confluent_write(kafka.bootstrap, tp(topic), "none", UNUSUAL[:5])
    link = link_of(kafka.bootstrap, topic)
    mirror(link)
    back = replace(link, name=f"back-{topic}", topics=(f"copy.{topic}",), rename="{topic}")
    with pytest.raises(InputError, match="into itself"):
        mirror(back)
    other = replace(link, name=f"other-{topic}")
    with pytest.raises(InputError, match=rf"which is the copy of link {link.name}"):
        mirror(other)
    with Mirroring(link) as mirroring:
        plans = [TopicPlan(f"copy.{topic}", topic, 1, 1)]
        with pytest.raises(InputError, match="in a circle"):
            refuse_conflicts(replace(link, name="c"), plans, source=mirroring.source, target=mirroring.target)
    assert assert_equal(kafka.bootstrap, topic) == 5


def test_a_circle_of_several_links_is_refused_as_far_as_journals_know(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "far-circle")
    confluent_write(kafka.bootstrap, tp(topic), "none", UNUSUAL[:5])
    first = link_of(kafka.bootstrap, topic, name=f"first-{topic}")
    second = link_of(kafka.bootstrap, f"copy.{topic}", name=f"second-{topic}")
    for link in (first, second):
        mirror(link)
    third = f"copy.copy.{topic}"
    with Mirroring(replace(first, name=f"third-{topic}", topics=(third,))) as mirroring:
        source = mirroring.source
        (writer,) = [each for each in journal.writers(source, topic=first.journal) if each.target_topic == third]
        assert [origin.topic for origin in writer.origins] == [topic], "the second link knows what the first one does"
        plans = [TopicPlan(third, topic, 1, 1)]
        with pytest.raises(InputError, match=f"in a circle: records of topic {third} come from {topic} at the target"):
            refuse_conflicts(mirroring.link, plans, source=source, target=mirroring.target)


def test_origins_are_followed_over_clusters() -> None:
    here = [
        journal.Writer("one", "east", "t", "a", frozenset({journal.Origin("west", "t")})),
        journal.Writer("two", "hub", "a", "b"),
        journal.Writer("other", "south", "x", "y"),
    ]
    assert journal.origins_of("b", "hub", here) == {("hub", "a"), ("east", "t"), ("west", "t")}
    assert journal.origins_of("b", None, here) == {("hub", "a")}, "which cluster this is is not known"
    assert not journal.origins_of("z", "hub", here)
    round_about = [journal.Writer("one", "hub", "a", "b"), journal.Writer("two", "hub", "b", "a")]
    assert journal.origins_of("a", "hub", round_about) == {("hub", "a"), ("hub", "b")}


def test_a_link_that_is_given_another_source_says_so(kafka: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = new_topic(kafka.bootstrap, "other-source")
    confluent_write(kafka.bootstrap, tp(topic), "none", UNUSUAL[:5])
    link = link_of(kafka.bootstrap, topic)
    mirror(link)
    monkeypatch.setattr("ottla.jobs.mirror_guards.cluster_id", lambda _: "another")
    with pytest.raises(InputError, match="the source is another cluster, another: choose another name for the link"):
        mirror(link)
    assert mirror(replace(link, rules=Policy(on_lost=Action.CONTINUE))).records == 0


def test_the_job_runs_on_other_engines_and_continues_where_another_stopped(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "engines", partitions=2)
    link = link_of(kafka.bootstrap, topic)
    for partition in range(2):
        confluent_write(kafka.bootstrap, tp(topic, partition), "zstd", UNUSUAL[:50])

    def pickled(job: Any, ranges: Any) -> Any:
        """An engine in another process would get the job like this."""
        for unit in ranges:
            yield pickle.loads(pickle.dumps(job))(unit)

    assert mirror(link, engine=pickled).records == 100
    confluent_write(kafka.bootstrap, tp(topic), "zstd", UNUSUAL[50:60])
    assert mirror(link, engine=pickled).records == 10
    confluent_write(kafka.bootstrap, tp(topic, 1), "zstd", UNUSUAL[50:55])
    assert mirror(link).records == 5
    assert assert_equal(kafka.bootstrap, topic, partitions=2) == 115


def test_a_fleet_mirrors_with_links_of_its_own(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "fleet", partitions=2)
    link = link_of(kafka.bootstrap, topic)
    for partition in range(2):
        confluent_write(kafka.bootstrap, tp(topic, partition), "zstd", UNUSUAL[:50])
    kind = MirrorKind([link])

    def by_fleet(job: Any, ranges: Any) -> Any:
        return fleet_jobs.run(job, ranges, kind=kind, store=store, threads=2)

    with closing(open_store("memory://", topic)) as store:
        report = mirror(link, engine=by_fleet)
    assert report.records == 100 == assert_equal(kafka.bootstrap, topic, partitions=2)
    row = kind.job_row(MirrorRange(link))
    with pytest.raises(InputError, match="this node has no link"):
        MirrorKind([]).job(row)
    with pytest.raises(InputError, match="has other clusters, names"):
        MirrorKind([replace(link, rename="other.{topic}")]).job(row)


def test_a_link_into_itself_is_refused(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "itself")
    link = link_of(kafka.bootstrap, topic)
    with pytest.raises(InputError, match="into itself"):
        mirror(replace(link, rename="{topic}"))


def test_a_pattern_does_not_match_the_mirrors_own_topics(kafka: LocalCluster) -> None:
    first = new_topic(kafka.bootstrap, "pattern")
    link = link_of(kafka.bootstrap, f"*{first}*", name=f"pattern-{first}")
    confluent_write(kafka.bootstrap, tp(first), "none", UNUSUAL[:5])
    assert mirror(link).records == 5
    report = mirror(link)
    assert [partition.source.topic for partition in report.partitions] == [first]


def _assert_map_is_exact(kafka: LocalCluster, link: str, topic: str) -> None:
    """Every source offset leads to the same record in the copy, and back."""
    source = _values(kafka.bootstrap, topic)
    target = _values(kafka.bootstrap, f"copy.{topic}")
    with Mirroring(link_of(kafka.bootstrap, topic, name=link)) as mirroring:
        entries = mirroring.journal.all_entries()[tp(f"copy.{topic}")]
    offsets = OffsetMap(entry.term for entry in entries)
    assert source
    for offset, value in source.items():
        place = offsets.target_of(offset)
        assert place is not None, offset
        assert target[place] == value
        assert offsets.source_of(place) == offset


def _count(bootstrap: str, topic: str) -> int:
    with Reader(bootstrap) as reader:
        return reader.count(topic)


def _exists_with(bootstrap: str, topic: str, count: int) -> bool:
    with Admin(bootstrap) as admin:
        if topic not in admin.topic_names():
            return False
    return _count(bootstrap, topic) == count


def _values(bootstrap: str, topic: str) -> dict[int, bytes]:
    with Reader(bootstrap, isolation="read_committed") as reader:
        return {
            offset: value
            for batch in reader.read(topic, columns=("offset", "value"))
            for offset, value in zip(*(batch.column(name).to_pylist() for name in ("offset", "value")), strict=True)
        }


def _delete_before(bootstrap: str, topic: str, offset: int) -> None:
    import confluent_kafka.admin

    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
    place = confluent_kafka.TopicPartition(topic, 0, offset)
    for done in admin.delete_records([place]).values():
        done.result(30)
