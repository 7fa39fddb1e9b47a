"""Topics are counted from their logs: once, however often and by however many, whatever happens in between."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest
from tests.audit import pipeline
from tests.audit.pipeline import BEGIN, BUCKET, Item

from ottla.admin import Admin
from ottla.audit.compare import Verdict
from ottla.cluster import LocalCluster
from ottla.consume.consumer import Consumer
from ottla.errors import BrokerError, ConfigError, InputError
from ottla.fetch.reader import Reader
from ottla.jobs import Brokers, compare, find_differences, tallies, tally
from ottla.jobs.audit_notes import read_notes
from ottla.model import TopicPartition
from ottla.produce.producer import Producer
from ottla.tally.publishing import ensure_topic, publish
from ottla.tally.values import RangeTally

pytestmark = pytest.mark.broker


def totals(kafka: LocalCluster, audit: str, tier: str) -> dict[int, tuple[int, str | None]]:
    """What a tier has in each bucket."""
    comparison = compare(audit=kafka.bootstrap, audit_topic=audit, tiers=[tier])
    return {row.start: (row.tiers[0].records or 0, row.tiers[0].fingerprint) for row in comparison.rows}


def records(count: int, *, partition: int = 0, first: int = 0, spread: int = 3000) -> list[Item]:
    return [
        Item(partition, b"k%d" % number, b"v%d" % number, (BEGIN + number * spread // max(1, count)) * 1000)
        for number in range(first, first + count)
    ]


@pytest.fixture(autouse=True)
def _small_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tallies, "CELL_RECORDS", 1000)


def test_a_group_that_has_committed_nothing_is_an_error(kafka: LocalCluster) -> None:
    pipeline.write(kafka.bootstrap, "tally-nobody", [records(10)])
    with pytest.raises(InputError, match="group nosuch has committed nothing of topic tally-nobody"):
        tally("tally-nobody", brokers=kafka.bootstrap, tier="x", audit_topic="audit-nobody", group="nosuch")


def test_tiers_that_stopped_counting_are_named(kafka: LocalCluster) -> None:
    pipeline.write(kafka.bootstrap, "tally-silent", [records(10)])
    where = {"brokers": kafka.bootstrap, "audit_topic": "audit-silent", "names": {"tally-silent": "x"}}
    for tier in ("edge", "hq"):
        tally("tally-silent", tier=tier, **where)  # type: ignore[arg-type]
    pair = {"audit": kafka.bootstrap, "audit_topic": "audit-silent", "tiers": ["edge", "hq"]}
    assert not compare(**pair).silent  # type: ignore[arg-type]
    later = compare(**pair, now=time.time() + 3600)  # type: ignore[arg-type]
    assert not later.has_faults
    assert [text.partition(" was last counted")[0] for text in later.silent] == ["tier edge", "tier hq"]
    past = datetime.fromtimestamp(time.time() - 60, UTC)
    assert not compare(**pair, now=time.time() + 3600, stop=past).silent  # type: ignore[arg-type]


def test_a_topic_that_grows_is_counted_once_however_often_it_is_counted(kafka: LocalCluster) -> None:
    pipeline.write(kafka.bootstrap, "tally-grows", [records(2500), records(700, partition=1)])
    first = tally("tally-grows", brokers=kafka.bootstrap, tier="edge", audit_topic="audit-grows")
    assert first.records == 3200
    again = tally("tally-grows", brokers=kafka.bootstrap, tier="edge", audit_topic="audit-grows")
    assert (again.records, again.refreshed) == (0, 4)
    pipeline.write(kafka.bootstrap, "tally-grows", [records(300, first=2500)], create=False)
    third = tally("tally-grows", brokers=kafka.bootstrap, tier="edge", audit_topic="audit-grows")
    assert third.records == 800  # the last cell again, and what is new
    with Reader(kafka.bootstrap) as reader:
        whole = reader.fingerprint("tally-grows")
    counted = totals(kafka, "audit-grows", "edge")
    assert sum(count for count, _ in counted.values()) == whole.count == 3500
    assert sum(int(total or "0", 16) for _, total in counted.values()) % (1 << 128) == whole.total


def test_two_writers_at_once_leave_one_count(kafka: LocalCluster) -> None:
    pipeline.write(kafka.bootstrap, "tally-two", [records(2500)])
    tally("tally-two", brokers=kafka.bootstrap, tier="edge", audit_topic="audit-two")
    pipeline.write(kafka.bootstrap, "tally-two", [records(100, first=2500)], create=False)
    # One that planned before the other was done, and publishes after it.
    late = tallies.count_log(
        ["tally-two"],
        Brokers(bootstrap=kafka.bootstrap),
        tallies.TallyRequest(tier="edge"),
        run=lambda job, ranges: map(job, ranges),
        cell=1000,
    )
    pipeline.write(kafka.bootstrap, "tally-two", [records(100, first=2600)], create=False)
    tally("tally-two", brokers=kafka.bootstrap, tier="edge", audit_topic="audit-two")
    with Brokers(bootstrap=kafka.bootstrap).cluster() as cluster:
        publish(cluster, late, topic="audit-two")
    assert sum(count for count, _ in totals(kafka, "audit-two", "edge").values()) == 2700


def test_headers_say_how_many_and_the_payload_says_when(kafka: LocalCluster) -> None:
    stamps = [BEGIN + 600 * number for number in range(4)]
    items = [
        Item(0, None, json.dumps({"meta": {"at": stamps[number % 4]}}).encode(), (BEGIN + 86_400) * 1000)
        for number in range(400)
    ]
    pipeline.write(kafka.bootstrap, "tally-ways", [items])
    tally("tally-ways", brokers=kafka.bootstrap, tier="headers", audit_topic="audit-ways", headers_only=True)
    assert totals(kafka, "audit-ways", "headers") == {BEGIN + 86_400: (400, None)}
    tally("tally-ways", brokers=kafka.bootstrap, tier="payload", audit_topic="audit-ways", time="json:meta.at")
    assert {start: count for start, (count, _) in totals(kafka, "audit-ways", "payload").items()} == dict.fromkeys(
        stamps, 100
    )
    # A tally with fingerprints takes the place of one without.
    tally("tally-ways", brokers=kafka.bootstrap, tier="headers", audit_topic="audit-ways")
    assert totals(kafka, "audit-ways", "headers")[BEGIN + 86_400][1] is not None


def test_a_group_is_a_tier_that_has_what_it_committed(kafka: LocalCluster) -> None:
    pipeline.write(kafka.bootstrap, "tally-group", [records(100), records(50, partition=1)])
    with Consumer(kafka.bootstrap, group="tally-group", topics=["tally-group"], commit_every=None) as consumer:
        got = 0
        while got < 150:
            batch = consumer.poll(1.0)
            got += 0 if batch is None else batch.num_rows
        consumer.commit({TopicPartition("tally-group", 0): 70})
    options = {"brokers": kafka.bootstrap, "audit_topic": "audit-group", "tier": "billing", "group": "tally-group"}
    assert tally("tally-group", **options).records == 70  # type: ignore[arg-type]
    with Consumer(kafka.bootstrap, group="tally-group") as consumer:
        consumer.commit({TopicPartition("tally-group", 0): 100, TopicPartition("tally-group", 1): 50})
    assert tally("tally-group", **options).records == 150  # type: ignore[arg-type]
    tally("tally-group", brokers=kafka.bootstrap, tier="log", audit_topic="audit-group")
    comparison = compare(audit=kafka.bootstrap, audit_topic="audit-group", tiers=["log", "billing"])
    assert {str(row.verdict) for row in comparison.rows} == {"complete"}


def test_a_tally_may_begin_at_a_time(kafka: LocalCluster) -> None:
    pipeline.write(kafka.bootstrap, "tally-since", [records(3000)])
    start = datetime.fromtimestamp(BEGIN + 1200, UTC)
    tally("tally-since", brokers=kafka.bootstrap, tier="edge", audit_topic="audit-since", start=start)
    counted = totals(kafka, "audit-since", "edge")
    assert min(counted) == BEGIN + 1200
    rows = compare(audit=kafka.bootstrap, audit_topic="audit-since", tiers=["edge"]).rows
    assert {row.verdict for row in rows} == {Verdict.COMPLETE}


def test_records_that_were_deleted_before_they_were_counted_are_unknown_and_not_missing(kafka: LocalCluster) -> None:
    pipeline.write(kafka.bootstrap, "tally-cut-left", [records(1500)])
    pipeline.write(kafka.bootstrap, "tally-cut-right", [records(1500)])
    names = {"tally-cut-left": "cut", "tally-cut-right": "cut"}
    tally("tally-cut-left", brokers=kafka.bootstrap, tier="left", audit_topic="audit-cut", names=names)
    _delete_before(kafka, "tally-cut-right", 700)
    tally("tally-cut-right", brokers=kafka.bootstrap, tier="right", audit_topic="audit-cut", names=names)
    rows = compare(audit=kafka.bootstrap, audit_topic="audit-cut", tiers=["left", "right"]).rows
    verdicts = {row.start: row.verdict for row in rows}
    assert verdicts[BEGIN] is Verdict.UNKNOWN
    assert verdicts[BEGIN + 4 * BUCKET] is Verdict.COMPLETE
    assert Verdict.MISSING not in verdicts.values()


def _delete_before(kafka: LocalCluster, topic: str, offset: int) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        future.result(30)


def test_a_topic_that_was_created_again_is_counted_anew_beside_the_old_one(kafka: LocalCluster) -> None:
    pipeline.write(kafka.bootstrap, "tally-again", [records(50)])
    tally("tally-again", brokers=kafka.bootstrap, tier="edge", audit_topic="audit-again")
    with Admin(kafka.bootstrap) as admin:
        admin.delete_topics(["tally-again"])
    pipeline.write(kafka.bootstrap, "tally-again", [records(20)])
    assert tally("tally-again", brokers=kafka.bootstrap, tier="edge", audit_topic="audit-again").records == 20
    assert sum(count for count, _ in totals(kafka, "audit-again", "edge").values()) == 70


def test_what_is_wrong_is_said_before_anything_is_counted(kafka: LocalCluster) -> None:
    boot = kafka.bootstrap
    pipeline.write(boot, "tally-wrong", [records(10)])
    with pytest.raises(BrokerError, match="tally-nowhere"):
        tally("tally-nowhere", brokers=boot, tier="edge", audit_topic="audit-wrong")
    with pytest.raises(ConfigError, match="bucket of 0"):
        tally("tally-wrong", brokers=boot, tier="edge", bucket_seconds=0)
    with pytest.raises(ConfigError, match="tier"):
        tally("tally-wrong", brokers=boot, tier="a b")
    with pytest.raises(ConfigError, match="event time"):
        tally("tally-wrong", brokers=boot, tier="edge", time="yaml:x")
    with pytest.raises(ConfigError, match="headers alone"):
        tally("tally-wrong", brokers=boot, tier="edge", time="json:x", headers_only=True)
    with pytest.raises(ConfigError, match=r"cleanup.policy=delete: an audit topic must be compacted"):
        tally("tally-wrong", brokers=boot, tier="edge", audit_topic="tally-wrong")
    with pytest.raises(InputError, match="no audit topic audit-nowhere"):
        compare(audit=boot, audit_topic="audit-nowhere")
    tally("tally-wrong", brokers=boot, tier="edge", audit_topic="audit-wrong")
    with pytest.raises(ConfigError, match="in buckets of 600 s, and 60 s were asked for"):
        tally("tally-wrong", brokers=boot, tier="edge", audit_topic="audit-wrong", bucket_seconds=60)
    with pytest.raises(ConfigError, match="by the time record, and json:at was asked for: use the same, or another"):
        tally("tally-wrong", brokers=boot, tier="edge", audit_topic="audit-wrong", time="json:at")
    with pytest.raises(InputError, match="no tallies of topic other"):
        compare(audit=boot, audit_topic="audit-wrong", topics=["other"])
    with Producer(boot) as producer:
        producer.send("audit-wrong", b"not a tally", key=b"x")
    assert compare(audit=boot, audit_topic="audit-wrong").unreadable == 1


def test_a_topic_that_cannot_be_compared_does_not_hide_the_others(kafka: LocalCluster) -> None:
    for name in ("tally-fine", "tally-odd"):
        pipeline.write(kafka.bootstrap, name, [records(10)])
        tally(name, brokers=kafka.bootstrap, tier="edge", audit_topic="audit-odd")
    tally("tally-fine", brokers=kafka.bootstrap, tier="hq", audit_topic="audit-odd")
    with pytest.raises(ConfigError, match="in buckets of 600 s, and 60 s were asked for"):
        tally("tally-odd", brokers=kafka.bootstrap, tier="edge", audit_topic="audit-odd", bucket_seconds=60)
    tally("tally-odd", brokers=kafka.bootstrap, tier="hq", audit_topic="audit-odd", bucket_seconds=60)
    comparison = compare(audit=kafka.bootstrap, audit_topic="audit-odd", tiers=["edge", "hq"])
    assert {(row.topic, str(row.verdict)) for row in comparison.rows} == {("tally-fine", "complete")}
    (problem,) = comparison.problems
    assert problem.startswith("topic tally-odd was counted in buckets of different length: edge 600 s, hq 60 s; ")


def test_the_audit_topic_is_created_compacted(kafka: LocalCluster) -> None:
    with Brokers(bootstrap=kafka.bootstrap).cluster() as cluster:
        ensure_topic(cluster, "audit-created")
        ensure_topic(cluster, "audit-created")
    with Admin(kafka.bootstrap) as admin:
        settings = admin.settings(["audit-created"])["audit-created"]
    assert settings["cleanup.policy"].value == "compact,delete"


def test_times_of_the_target_brokers_are_noticed_and_whole_partitions_compared(kafka: LocalCluster) -> None:
    pipeline.write(kafka.bootstrap, "append-left", [records(500)])
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic(
            "append-right", partitions=4, replicas=1, settings={"message.timestamp.type": "LogAppendTime"}
        )
    pipeline.write(kafka.bootstrap, "append-right", [records(500)[:-1]], create=False)
    notices: list[str] = []
    (difference,) = find_differences(
        "append-left", left=kafka.bootstrap, right=kafka.bootstrap, right_topic="append-right", notice=notices.append
    )
    assert (str(difference.verdict), difference.partition, difference.offset) == ("missing", 0, 499)
    assert notices == ["the right side has the times of its brokers: whole partitions are compared"]


def test_topics_with_other_partitions_are_compared_as_wholes(kafka: LocalCluster) -> None:
    pipeline.write(kafka.bootstrap, "more-left", [records(500)])
    items = [Item(number % 7, item.key, item.value, item.time) for number, item in enumerate(records(500))]
    pipeline.write(kafka.bootstrap, "more-right", [[*items[:100], *items[101:], items[7]]], partitions=7)
    notices: list[str] = []
    found = list(
        find_differences(
            "more-left", left=kafka.bootstrap, right=kafka.bootstrap, right_topic="more-right", notice=notices.append
        )
    )
    assert {(str(one.verdict), one.side, one.key) for one in found} == {
        ("missing", "left", b"k100"),
        ("duplicated", "right", b"k7"),
    }
    assert "4 and 7 partitions" in notices[0]


def test_a_window_limits_what_is_compared(kafka: LocalCluster) -> None:
    pipeline.write(kafka.bootstrap, "window-left", [records(600)])
    pipeline.write(kafka.bootstrap, "window-right", [records(600)[10:590]])
    start, stop = (datetime.fromtimestamp(BEGIN + seconds, UTC) for seconds in (20, 2980))
    found = find_differences(
        "window-left",
        left=kafka.bootstrap,
        right=kafka.bootstrap,
        right_topic="window-right",
        start=start,
        stop=stop,
    )
    assert [one.offset for one in found] == [4, 5, 6, 7, 8, 9, 590, 591, 592, 593, 594, 595]


_COUNTING = """
import sys
from ottla.jobs import tallies
tallies.CELL_RECORDS = 500
while True:
    tallies.tally("tally-kills", brokers=sys.argv[1], tier="edge", audit_topic="audit-kills", workers=2)
    print("counted", flush=True)
"""


def test_killed_at_random_moments_the_counts_are_right(kafka: LocalCluster) -> None:
    """The topic grows while counting programs are killed; whatever they left adds up to what is in the topic."""
    chance = random.Random(7)
    pipeline.write(kafka.bootstrap, "tally-kills", [records(3000)])
    written = 3000
    for kill in range(4):
        process = subprocess.Popen([sys.executable, "-c", _COUNTING, kafka.bootstrap], stdout=subprocess.PIPE)
        assert process.stdout is not None
        if kill % 2:
            process.stdout.readline()
        pipeline.write(kafka.bootstrap, "tally-kills", [records(700, first=written)], create=False)
        written += 700
        time.sleep(chance.random() * 0.5)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        _check_known(kafka)
    tally("tally-kills", brokers=kafka.bootstrap, tier="edge", audit_topic="audit-kills")
    counted = totals(kafka, "audit-kills", "edge")
    with Reader(kafka.bootstrap) as reader:
        whole = reader.fingerprint("tally-kills")
    assert sum(count for count, _ in counted.values()) == written == whole.count
    assert sum(int(total or "0", 16) for _, total in counted.values()) % (1 << 128) == whole.total


def _check_known(kafka: LocalCluster) -> None:
    """Every range that was published has as many records as it has offsets."""
    try:
        notes = read_notes(Brokers(bootstrap=kafka.bootstrap), "audit-kills")
    except InputError:
        return  # killed before it could create the topic
    for note in notes.tallies.values():
        assert isinstance(note, RangeTally)
        assert note.records == note.stop - note.start
