"""Shared by the tests of the consumer on the fake cluster: names of partitions, and how to expel a member."""

from __future__ import annotations

from tests.waiting import eventually

from ottla.consume.consumer import Consumer
from ottla.errors import ErrorCode
from ottla.model import TopicPartition
from ottla.testing import FakeKafka

AT = TopicPartition("t", 0)
LONG = TopicPartition("long", 0)
MANY = [TopicPartition("many", number) for number in range(4)]


class Stop(Exception):
    """Raised by a program that fails."""


def lose(kafka: FakeKafka, consumer: Consumer) -> None:
    """Expel the member and wait until it has rejoined; its program has not polled since."""
    membership = consumer._subscription.membership
    assert membership is not None
    before = membership.member.generation
    kafka.fail("Heartbeat", ErrorCode.illegal_generation)
    eventually(lambda: membership.member.generation > before, "it is a member again")
