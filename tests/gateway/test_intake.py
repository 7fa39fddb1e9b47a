"""What all gateways share: records reach Kafka as they came, and what is lost is counted."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from tests.interop.clients import confluent_read
from tests.waiting import eventually

from ottla import Batching, Producer, Spool, TopicPartition
from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.errors import OttlaError, SpoolFull
from ottla.gateway.intake import Incoming, Intake
from ottla.produce.delivery import BulkDelivery
from ottla.testing import FakeKafka

pytestmark = pytest.mark.broker
_TIME = 1_700_000_000.123


def _topic(kafka: LocalCluster, name: str) -> str:
    topic = f"gateway-{name}-{os.getpid()}"
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic(topic, partitions=2, replicas=1)
    return topic


def test_records_of_every_shape_arrive_as_they_came(kafka: LocalCluster) -> None:
    topic = _topic(kafka, "shapes")
    plain = [Incoming(b"a"), Incoming(b"b", b"k"), Incoming(None, b"k")]
    rich = [
        Incoming(b"c", None, (("h", b"1"), ("h", None)), _TIME, 1),
        Incoming(b"d", b"", (), None, 1),
        Incoming(None, b"k", (("é", b""),), None, 1),
    ]
    with Producer(kafka.bootstrap) as producer, closing(Intake(producer, has_spool=False)) as intake:
        assert intake.send(topic, plain).result(30).records == 3
        (there,) = intake.send(topic, rich).result(30).ranges
        assert (there.partition, len(there)) == (1, 3)
        assert intake.send(topic, [*rich, Incoming(b"anywhere")]).result(30).records == 4
    last = confluent_read(kafka.bootstrap, TopicPartition(topic, 1), there.stop)[-3:]
    assert [record[:3] for record in last] == [(record.key, record.value, record.headers) for record in rich]
    assert last[0][3] == round(_TIME * 1000)


def test_what_cannot_be_delivered_is_counted_with_its_times(kafka: LocalCluster) -> None:
    lost: list[tuple[str, int, float, float, OttlaError]] = []
    with Producer(kafka.bootstrap) as producer:
        intake = Intake(producer, has_spool=False)
        intake.forget(
            "no-such-topic", [Incoming(b"x"), Incoming(b"y")], (1.0, 2.0), lost=lambda *args: lost.append(args)
        )
        eventually(lambda: lost, "the loss is counted")
        with pytest.raises(OttlaError):
            producer.flush(10)
    assert [(topic, count, first, last) for topic, count, first, last, _ in lost] == [("no-such-topic", 2, 1.0, 2.0)]


def test_one_write_to_the_disk_serves_all_who_wait(kafka: LocalCluster, tmp_path: Path) -> None:
    topic = _topic(kafka, "persisted")
    spool = Spool(tmp_path / "spool", write_ahead=True)
    calls = 0
    with (
        Producer(kafka.bootstrap, spool=spool, batching=Batching(linger=0.05)) as producer,
        closing(Intake(producer, has_spool=True)) as intake,
    ):
        persist = producer.persist_each

        def counted(deliveries: Sequence[BulkDelivery], timeout: float | None = None) -> list[OttlaError | None]:
            nonlocal calls
            calls += 1
            return persist(deliveries, timeout)

        producer.persist_each = counted  # type: ignore[method-assign]

        def one() -> None:
            intake.persisted(intake.send(topic, [Incoming(b"x")])).result(30)

        threads = [threading.Thread(target=one) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in threads)
        assert 1 <= calls < 20


def test_one_topic_that_is_not_known_keeps_nobody_else_from_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path / "spool", write_ahead=True)
    with (
        FakeKafka(topics={"t": 1}, auto_create=None) as broker,
        Producer(broker.bootstrap, spool=spool) as producer,
        closing(Intake(producer, has_spool=True)) as intake,
    ):
        producer.send("t", b"x").result(30)
        broker.all_down()
        stranger = intake.persisted(intake.send("typo34", [Incoming(b"x")]))
        for _ in range(20):
            intake.persisted(intake.send("t", [Incoming(b"x")])).result(30)
        assert not stranger.done()
        monkeypatch.setattr("ottla.gateway.intake._PERSIST_SECONDS", 0.01)
        with pytest.raises(OttlaError, match="typo34"):
            stranger.result(30)
        broker.all_up()
        with pytest.raises(OttlaError):
            producer.flush(30)


def test_clients_whose_records_share_a_batch_that_the_disk_refuses_are_all_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path / "spool", write_ahead=True, max_bytes=1 << 20)
    with (
        FakeKafka(topics={"t": 1}, auto_create=None) as broker,
        Producer(broker.bootstrap, spool=spool, compression="none", batching=Batching(linger=30.0)) as producer,
        closing(Intake(producer, has_spool=True)) as intake,
    ):
        intake.persisted(intake.send("t", [Incoming(b"x")])).result(30)
        broker.all_down()
        large = [Incoming(os.urandom(900_000))]
        intake.persisted(intake.send("t", large)).result(30)
        first, second = intake.send("t", [Incoming(os.urandom(100_000))]), intake.send("t", large)
        intake.persisted(first)
        persisted = [intake.persisted(first), intake.persisted(second)]
        for future, delivery in zip(persisted, (first, second), strict=True):
            future.result(30)
            error = delivery.exception(0)
            assert error is not None
            assert isinstance(error.cause, SpoolFull)
        broker.all_up()
        with pytest.raises(OttlaError, match="2 records"):
            producer.flush(30)
    assert len(broker.records("t", 0)) == 2


def test_what_is_known_of_a_delivery_can_be_asked_before_all_of_it_is(kafka: LocalCluster) -> None:
    topic = _topic(kafka, "known")
    with Producer(kafka.bootstrap, batching=Batching(linger=30.0)) as producer:
        delivery = Intake(producer, has_spool=False).send(
            topic, [Incoming(b"x", partition=0), Incoming(b"y", partition=9)]
        )
        eventually(lambda: list(delivery.decided()), "the record for a partition that is not there is refused")
        assert [(each.rows.tolist(), each.error is None) for each in delivery.decided()] == [([1], False)]
        assert not delivery.done
        with pytest.raises(OttlaError):
            producer.flush(30)
        assert sorted((each.rows.tolist(), each.error is None) for each in delivery.decided()) == [
            ([0], True),
            ([1], False),
        ]
