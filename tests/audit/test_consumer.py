"""A consumer that counts: what its program is done with, no more and no less."""

from __future__ import annotations

import pytest
from tests.audit import pipeline
from tests.audit.pipeline import BEGIN, Item
from tests.waiting import eventually

from ottla import Audit, Consumer
from ottla.cluster import LocalCluster
from ottla.errors import ConfigError
from ottla.jobs import Comparison, compare, tally
from ottla.model import TopicPartition

pytestmark = pytest.mark.broker


def items(count: int) -> list[Item]:
    return [Item(n % 4, b"k%d" % n, b"v%d" % n, (BEGIN + n * 3000 // count) * 1000) for n in range(count)]


def compared(kafka: LocalCluster, topic: str) -> Comparison:
    tally(topic, brokers=kafka.bootstrap, tier="log", audit_topic=f"audit-{topic}")
    return compare(audit=kafka.bootstrap, audit_topic=f"audit-{topic}", tiers=["log", "shop"])


def counted(kafka: LocalCluster, topic: str) -> int:
    return sum(row.tiers[1].records or 0 for row in compared(kafka, topic).rows)


@pytest.mark.parametrize("columns", [None, ("offset",)])
def test_what_was_polled_is_what_is_in_the_log(kafka: LocalCluster, columns: tuple[str, ...] | None) -> None:
    topic = f"consumed-{'all' if columns is None else 'few'}"
    pipeline.write(kafka.bootstrap, topic, [items(5000)])
    audit = Audit(tier="shop", topic=f"audit-{topic}")
    options = {} if columns is None else {"columns": columns}
    with Consumer(kafka.bootstrap, audit=audit, **options) as consumer:  # type: ignore[arg-type]
        consumer.assign([TopicPartition(topic, number) for number in range(4)])
        got = 0
        while got < 5000:
            batch = consumer.poll(1.0)
            got += 0 if batch is None else batch.num_rows
    rows = compared(kafka, topic).rows
    assert {str(row.verdict) for row in rows} == {"complete"}
    assert sum(row.tiers[1].records or 0 for row in rows) == 5000


def test_records_that_the_program_did_not_get_are_not_counted(kafka: LocalCluster) -> None:
    topic = "consumed-half"
    pipeline.write(kafka.bootstrap, topic, [items(1000)])
    with Consumer(kafka.bootstrap, audit=Audit(tier="shop", topic=f"audit-{topic}")) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        for number, _ in enumerate(consumer.records(), 1):
            if number == 100:
                consumer.seek(TopicPartition(topic, 0), 200)
            if number == 130:
                consumer.stop()
    assert counted(kafka, topic) == 130


def test_records_that_were_being_processed_when_the_program_failed_are_not_counted(kafka: LocalCluster) -> None:
    topic = "consumed-not"
    pipeline.write(kafka.bootstrap, topic, [items(1000)])

    def work() -> None:
        with Consumer(kafka.bootstrap, audit=Audit(tier="shop", topic=f"audit-{topic}")) as consumer:
            consumer.assign([TopicPartition(topic, number) for number in range(2)])
            first = None
            while first is None:
                first = consumer.poll(1.0)
            second = None
            while second is None:
                second = consumer.poll(1.0)
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert counted(kafka, topic) == 250


def test_a_record_that_is_read_twice_counts_twice(kafka: LocalCluster) -> None:
    topic = "consumed-twice"
    pipeline.write(kafka.bootstrap, topic, [items(400)])
    for _ in range(2):
        with Consumer(kafka.bootstrap, audit=Audit(tier="shop", topic=f"audit-{topic}")) as consumer:
            consumer.assign([TopicPartition(topic, number) for number in range(4)])
            total = [0]

            def all_read(consumer: Consumer = consumer, total: list[int] = total) -> bool:
                batch = consumer.poll(1.0)
                total[0] += 0 if batch is None else batch.num_rows
                return total[0] >= 400

            eventually(all_read)
    verdicts = {str(row.worst) for row in compared(kafka, topic).rows}
    assert verdicts == {"duplicated 80"}


def test_a_wrong_audit_is_refused() -> None:
    with pytest.raises(ConfigError, match="audit must be an Audit"):
        Consumer("localhost:1", audit={"tier": "x"})  # type: ignore[arg-type]
