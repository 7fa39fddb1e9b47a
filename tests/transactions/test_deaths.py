"""Programs that are killed or interrupted, and brokers that die, during a transaction."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.waiting import eventually

from ottla.cluster import LocalCluster
from ottla.cluster.process import Life
from ottla.config import Timeouts
from ottla.errors import TransactionFailed
from ottla.net import Cluster
from ottla.net.targets import CoordinatorKind
from ottla.produce.producer import Producer
from ottla.produce.transaction import Transaction, end_transaction

from .conftest import NewProducer, NewTopic, fail, failing
from .reading import Log
from .test_prepare import PROGRAMS

pytestmark = pytest.mark.broker


@contextmanager
def hanging(bootstrap: str, tid: str, topic: str) -> Iterator[subprocess.Popen[str]]:
    """A program with an open transaction, whose records are acknowledged."""
    program = [sys.executable, str(PROGRAMS), "hang", bootstrap, tid, topic]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def test_after_kill_9_the_next_instance_aborts_what_was_open(
    kafka: LocalCluster, log: Log, topic: str, tid: str, new_producer: NewProducer
) -> None:
    with hanging(kafka.bootstrap, tid, topic) as process:
        process.kill()
        process.wait(30)
    assert len(log.everything(topic)) == 100
    producer = new_producer()
    with producer.transaction():
        producer.send(topic, b"next")
    assert log.committed(topic) == [b"next"]


def test_ctrl_c_aborts_at_once(kafka: LocalCluster, log: Log, topic: str, tid: str) -> None:
    with hanging(kafka.bootstrap, tid, topic) as process:
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in stderr.splitlines()[-1]
    assert len(log.everything(topic)) == 100
    assert log.committed(topic) == []


@pytest.fixture
def broken(kafka: LocalCluster) -> Iterator[LocalCluster]:
    """The brokers of the run, for a test that kills one; all run again when it ends."""
    try:
        yield kafka
    finally:
        kafka.restart(*(broker.id for broker in kafka.status().brokers if broker.life is Life.DEAD))


BROKERS = (1, 2, 3)
IMPATIENT = Timeouts(connect=1, request=1, total=2)


@contextmanager
def thawing(kafka: LocalCluster) -> Iterator[None]:
    """Resume frozen brokers after the block. They then process what was sent to them meanwhile."""
    try:
        yield
    finally:
        kafka.thaw(*BROKERS)


def freeze(kafka: LocalCluster, producer: Producer) -> None:
    """Freeze all brokers, and shorten the producer's timeouts."""
    producer._cluster.timeouts = IMPATIENT
    kafka.freeze(*BROKERS)


def when_they_answer(producer: Producer) -> Transaction:
    """The next transaction, once the brokers are awake."""
    producer._cluster.timeouts = Timeouts()
    return producer.transaction()


def test_a_commit_without_answer_is_said_so_and_comes_true_or_not(
    kafka: LocalCluster, log: Log, new_topic: NewTopic, new_producer: NewProducer
) -> None:
    topic = new_topic(3)
    producer = new_producer()
    with thawing(kafka), failing(TransactionFailed, "not known whether"), producer.transaction():
        producer.send_many(topic, [b"perhaps"] * 50)
        producer.flush(30)
        freeze(kafka, producer)
    with when_they_answer(producer):
        # The broker may process the first commit only now: it must not end this transaction.
        producer.send_many(topic, [b"surely"] * 50)
    assert log.committed(topic).count(b"surely") == 50
    assert log.committed(topic).count(b"perhaps") in (0, 50)


def test_an_unanswered_abort_neither_blocks_nor_hides_the_programs_error(
    kafka: LocalCluster, log: Log, topic: str, new_producer: NewProducer
) -> None:
    producer = new_producer()
    with thawing(kafka), failing(LookupError, "mine"), producer.transaction():
        producer.send(topic, b"never").result(30)
        freeze(kafka, producer)
        producer.send(topic, b"never, either")
        fail(LookupError("mine"))
    with when_they_answer(producer):
        producer.send(topic, b"next")
    assert log.committed(topic) == [b"next"]


def test_closing_within_a_transaction_respects_the_timeout(
    kafka: LocalCluster, log: Log, topic: str, new_producer: NewProducer
) -> None:
    producer, other = new_producer(), new_producer()
    with producer.transaction() as tx:
        producer.send(topic, b"never").result(30)
        with thawing(kafka):
            kafka.freeze(*BROKERS)
            started = time.monotonic()
            producer.close(1.0)
            assert time.monotonic() - started < 10
        tx.abort()
    with other.transaction():
        other.send(topic, b"next")
    assert log.committed(topic) == [b"next"]


def test_a_broker_that_dies_leaves_all_or_nothing_of_what_is_open_and_of_what_is_prepared(
    broken: LocalCluster, cluster: Cluster, log: Log, new_topic: NewTopic, tid: str, new_producer: NewProducer
) -> None:
    topic, other = new_topic(6), new_topic(3)
    preparing, producer = new_producer(), new_producer(transactional_id=f"{tid}-open")
    with preparing.transaction() as tx:
        preparing.send_many(other, [b"prepared"] * 50)
        token = tx.prepare()
    victim = cluster.coordinator(tid, CoordinatorKind.TRANSACTION).id
    assert victim in {cluster.leader(topic, partition).id for partition in range(6)}
    kill = threading.Thread(target=broken.kill, args=(victim,))
    kept: set[bytes] = set()
    failed: list[int] = []
    for number in range(4):
        values = [b"%d-%03d" % (number, index) for index in range(600)]
        try:
            with producer.transaction():
                for index, value in enumerate(values):
                    producer.send(topic, value, key=value)
                    if number == 1 and index == 100:
                        producer.flush(30)
                        kill.start()
            kept |= set(values)
        except TransactionFailed:
            failed.append(number)
    kill.join(30)
    assert failed in ([], [1])  # only while the broker died
    end_transaction(broken.bootstrap, token, commit=True)
    with Cluster(broken.bootstrap) as fresh:
        eventually(lambda: fresh.coordinator(tid, CoordinatorKind.TRANSACTION).id != victim, "another coordinator")
    with preparing.transaction():
        preparing.send(other, b"next")
    committed = log.committed(topic)
    assert len(committed) == len(set(committed))
    assert set(committed) == kept
    assert log.committed(other) == [b"next"] + [b"prepared"] * 50
