"""A producer that counts: its tallies are those of the log it wrote, whatever happened on the way."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from tests.waiting import eventually

from ottla import Audit
from ottla.admin import Admin
from ottla.audit.compare import Judged, Verdict
from ottla.cluster import LocalCluster
from ottla.errors import ConfigError
from ottla.fetch.reader import Reader
from ottla.jobs import compare, tally
from ottla.produce.options import Batching, Spool
from ottla.produce.producer import Producer
from ottla.produce.transaction import end_transaction

pytestmark = pytest.mark.broker


def judged(kafka: LocalCluster, audit: str, topic: str, **settings: float) -> list[tuple[Judged, ...]]:
    """The buckets of a topic: what its producers counted, and what is in its log."""
    tally(topic, brokers=kafka.bootstrap, tier="log", audit_topic=audit)
    comparison = compare(audit=kafka.bootstrap, audit_topic=audit, topics=[topic], tiers=["made", "log"], **settings)  # type: ignore[arg-type]
    return [row.tiers for row in comparison.rows]


def create(kafka: LocalCluster, topic: str, **settings: str) -> str:
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic(topic, partitions=3, replicas=1, settings=settings)
    return topic


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_what_was_acknowledged_is_what_is_in_the_log(kafka: LocalCluster, compression: str) -> None:
    topic = create(kafka, f"made-{compression}")
    audit = Audit(tier="made", topic=f"audit-{topic}", service="shop", bucket_seconds=600)
    now = int(time.time() * 1000)
    table = pa.table(
        {
            "value": pa.array([b"%d" % number for number in range(20_000)], pa.binary()),
            "timestamp": pa.array([now - number * 200 for number in range(20_000)], pa.int64()),
        }
    )
    with Producer(kafka.bootstrap, audit=audit, compression=compression) as producer:
        producer.send_table(topic, table)
        for number in range(100):
            producer.send(topic, b"x", key=b"%d" % number, headers={"h": b"v"})
        producer.send_many(topic, [(None, b"y"), (b"z", None)])
        producer.flush()
        producer.send(topic, b"alone").result()
    rows = judged(kafka, audit.topic, topic)
    assert len(rows) >= 7
    for made, log in rows:
        assert str(made.verdict) == str(log.verdict) == "complete"
        assert (made.records, made.bytes, made.fingerprint) == (log.records, log.bytes, log.fingerprint)
    assert sum(made.records or 0 for made, _ in rows) == 20_103


def test_records_sent_by_their_callers_count_as_well(kafka: LocalCluster) -> None:
    topic = create(kafka, "made-alone")
    audit = Audit(tier="made", topic="audit-made-alone")
    with Producer(kafka.bootstrap, audit=audit, batching=Batching(linger=0)) as producer:
        for number in range(200):
            producer.send(topic, b"%d" % number).result()
    rows = judged(kafka, audit.topic, topic)
    assert {log.verdict for _, log in rows} == {Verdict.COMPLETE}
    assert sum(made.records or 0 for made, _ in rows) == 200


def test_only_committed_records_count(kafka: LocalCluster) -> None:
    topic = create(kafka, "made-once")
    audit = Audit(tier="made", topic="audit-made-once")
    with Producer(kafka.bootstrap, audit=audit, transactional_id="made-once") as producer:
        with producer.transaction():
            producer.send_many(topic, [b"%d" % number for number in range(30)])
        with producer.transaction() as transaction:
            producer.send_many(topic, [b"%d" % number for number in range(50)])
            producer.flush()
            transaction.abort()
        with producer.transaction():
            producer.send_many(topic, [b"%d" % number for number in range(5)])
    rows = judged(kafka, audit.topic, topic)
    assert {log.verdict for _, log in rows} == {Verdict.COMPLETE}
    assert sum(made.records or 0 for made, _ in rows) == 35


def test_a_prepared_transaction_is_unknown(kafka: LocalCluster) -> None:
    topic = create(kafka, "made-prepared")
    audit = Audit(tier="made", topic="audit-made-prepared")
    with Producer(kafka.bootstrap, audit=audit, transactional_id="made-prepared") as producer:
        with producer.transaction() as transaction:
            producer.send_many(topic, [b"a", b"b"])
            prepared = transaction.prepare()
        end_transaction(kafka.bootstrap, prepared, commit=True)
        with Reader(kafka.bootstrap, isolation="read_committed") as reader:
            eventually(lambda: reader.count(topic) == 2)
    rows = judged(kafka, audit.topic, topic)
    assert {made.verdict for made, _ in rows} == {Verdict.UNKNOWN}
    assert sum(log.records or 0 for _, log in rows) == 2


def test_a_broker_that_sets_the_time_sets_the_bucket(kafka: LocalCluster) -> None:
    topic = create(kafka, "made-append", **{"message.timestamp.type": "LogAppendTime"})
    audit = Audit(tier="made", topic="audit-made-append")
    with Producer(kafka.bootstrap, audit=audit) as producer:
        producer.send(topic, b"old", timestamp=1_000_000_000.0)
        producer.send(topic, b"new")
    tally(topic, brokers=kafka.bootstrap, tier="log", audit_topic=audit.topic)
    comparison = compare(audit=kafka.bootstrap, audit_topic=audit.topic, tiers=["made"])
    assert sum(row.tiers[0].records or 0 for row in comparison.rows) == 2
    assert all(row.start > 1_700_000_000 for row in comparison.rows)


def test_records_that_go_through_a_spool_count_once(kafka: LocalCluster, tmp_path: Path) -> None:
    topic = create(kafka, "made-spooled")
    audit = Audit(tier="made", topic="audit-made-spooled", publish_every=0.2)
    with Producer(kafka.bootstrap, audit=audit, spool=Spool(tmp_path / "spool")) as producer:
        producer.send_many(topic, [b"%d" % number for number in range(500)])
        producer.flush()
    rows = judged(kafka, audit.topic, topic)
    assert {log.verdict for _, log in rows} == {Verdict.COMPLETE}
    assert sum(made.records or 0 for made, _ in rows) == 500


def test_an_audit_topic_out_of_reach_holds_no_record_up_for_long(kafka: LocalCluster) -> None:
    topic = create(kafka, "made-alone-again")
    audit = Audit(tier="made", topic="audit-nowhere", bootstrap="127.0.0.1:1", wait_seconds=0.3)
    began = time.monotonic()
    with Producer(kafka.bootstrap, audit=audit) as producer:
        producer.send(topic, b"first").result(timeout=20)
        assert 0.2 < time.monotonic() - began < 15
        second = time.monotonic()
        producer.send(topic, b"second").result(timeout=20)
        assert time.monotonic() - second < 2
    assert time.monotonic() - began < 40


def test_a_wrong_audit_is_refused() -> None:
    with pytest.raises(ConfigError, match="audit must be an Audit"):
        Producer("localhost:1", audit="edge")  # type: ignore[arg-type]


_PRODUCING = """
import sys, time
from ottla import Audit, Producer
audit = Audit(tier="made", topic="audit-made-killed", publish_every=0.1, bucket_seconds=1)
with Producer(sys.argv[1], audit=audit) as producer:
    print("began", flush=True)
    number = 0
    while True:
        producer.send_many("made-killed", [b"%d" % n for n in range(number, number + 50)])
        number += 50
        if number % 1000 == 0:
            producer.send("made-killed", b"old", timestamp=time.time() - 3600 - number % 7000)
        time.sleep(0.01)
"""


def test_killed_at_random_moments_the_tallies_are_right_or_unknown(kafka: LocalCluster) -> None:
    """Producers are killed; each bucket of theirs equals the log, or says that it does not know."""
    chance = random.Random(3)
    topic = create(kafka, "made-killed")
    with Producer(kafka.bootstrap, audit=Audit(tier="made", topic="audit-made-killed", bucket_seconds=1)) as producer:
        producer.send(topic, b"long ago", timestamp=time.time() - 86_400)
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", _PRODUCING, kafka.bootstrap], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.5 + chance.random() * 1.5)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    later = time.time() + 3600
    tally(topic, brokers=kafka.bootstrap, tier="log", audit_topic="audit-made-killed", bucket_seconds=1)
    comparison = compare(audit=kafka.bootstrap, audit_topic="audit-made-killed", tiers=["made", "log"], now=later)
    pairs = [row.tiers for row in comparison.rows]
    verdicts = [(made.verdict, log.verdict, made.records, log.records) for made, log in pairs]
    assert sum(log or 0 for *_, log in verdicts) > 500
    for made, log, counted, there in verdicts:
        assert made is Verdict.UNKNOWN or (log in (Verdict.COMPLETE, Verdict.UNKNOWN) and counted == there), verdicts
    assert any(made is Verdict.COMPLETE for made, *_ in verdicts)
    assert any(made is Verdict.UNKNOWN for made, *_ in verdicts)


def test_tallies_are_published_while_the_producer_runs(kafka: LocalCluster) -> None:
    topic = create(kafka, "made-running")
    audit = Audit(tier="made", topic="audit-made-running", publish_every=0.1)
    with Producer(kafka.bootstrap, audit=audit) as producer:
        producer.send_many(topic, [b"x"] * 100)
        producer.flush()

        def published() -> bool:
            rows = compare(audit=kafka.bootstrap, audit_topic=audit.topic, tiers=["made"]).rows
            return sum(row.tiers[0].records or 0 for row in rows) == 100

        eventually(published)
    with Reader(kafka.bootstrap) as reader:
        values = [value for batch in reader.read(audit.topic) for value in batch.column("value").to_pylist()]
    fields = json.loads(values[-1])
    assert (fields["kind"], fields["tier"], fields["role"]) == ("session", "made", "producer")
