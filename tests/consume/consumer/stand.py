"""What the tests of the consumer on the fake cluster share: names of partitions, and how a member is thrown out."""

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
    """Of a program that goes wrong."""


def lose(kafka: FakeKafka, consumer: Consumer) -> None:
    """The group throws the member out, and it has joined again; its program has not looked since."""
    membership = consumer._subscription.membership
    assert membership is not None
    before = membership.member.generation
    kafka.fail("Heartbeat", ErrorCode.illegal_generation)
    eventually(lambda: membership.member.generation > before, "it is a member again")
