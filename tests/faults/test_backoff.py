"""Errors that do not go away: every client waits between two attempts."""

from __future__ import annotations

import time

import pytest
from tests.waiting import eventually

from ottla import Consumer, GroupOptions, Producer, Protocol, Reader, Retry, Timeouts
from ottla.errors import ErrorCode, OttlaError
from ottla.testing import FakeKafka

WAIT = 0.1
RETRY = Retry(initial=WAIT, maximum=WAIT, jitter=0.0)
BEGINNING = 10
"""Attempts without a wait: the first ones in each partition, and one at another leader."""


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.not_leader_or_follower,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.unknown_producer_id,
        ErrorCode.not_enough_replicas,
    ],
    ids=lambda code: code.name,
)
def test_a_producer_is_calm(code: ErrorCode) -> None:
    """Found: a broker that named itself as the leader was asked 1,500 times in a second."""
    with FakeKafka(topics={"t": 1}) as kafka, Producer(kafka.bootstrap, retry=RETRY) as producer:
        producer.send("t", b"0").result(30)
        fault = kafka.fail("Produce", int(code), times=1_000_000)
        started = time.monotonic()
        delivery = producer.send("t", b"1")
        eventually(lambda: fault.hits >= BEGINNING + 5)
        assert fault.hits <= BEGINNING + (time.monotonic() - started) / WAIT
        kafka.clear_faults()
        assert delivery.result(30).offset == 1


@pytest.mark.parametrize(
    "code", [ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch], ids=lambda code: code.name
)
def test_a_reader_is_calm_and_gives_up(code: ErrorCode) -> None:
    """Found: the same, and a bounded read never ended."""
    with FakeKafka(topics={"t": 1}) as kafka:
        with Producer(kafka.bootstrap) as producer:
            producer.send("t", b"0").result(30)
        fault = kafka.fail("Fetch", int(code), times=1_000_000)
        started = time.monotonic()
        reader = Reader(kafka.bootstrap, retry=RETRY, timeouts=Timeouts(total=2.0))
        with reader, pytest.raises(OttlaError, match=code.name.upper()):
            list(reader.read("t"))
        assert 3 <= fault.hits <= BEGINNING + (time.monotonic() - started) / WAIT


@pytest.mark.parametrize(
    ("api", "code"),
    [
        ("JoinGroup", ErrorCode.member_id_required),
        ("JoinGroup", ErrorCode.illegal_generation),
        ("JoinGroup", ErrorCode.rebalance_in_progress),
        ("SyncGroup", ErrorCode.illegal_generation),
        ("SyncGroup", ErrorCode.rebalance_in_progress),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_member_is_calm(api: str, code: ErrorCode) -> None:
    """Found: a coordinator was asked 3,900 times in a second."""
    options = GroupOptions(protocol=Protocol.CLASSIC)
    with (
        FakeKafka(topics={"t": 1}) as kafka,
        Consumer(kafka.bootstrap, group="g", topics="t", options=options, retry=RETRY) as consumer,
    ):
        fault = kafka.fail(api, int(code), times=1_000_000)
        started = time.monotonic()
        eventually(lambda: consumer.poll(0.01) or fault.hits >= BEGINNING + 5)
        assert fault.hits <= BEGINNING + (time.monotonic() - started) / WAIT
        kafka.clear_faults()
        eventually(lambda: consumer.poll(0.01) or consumer.assignment)
