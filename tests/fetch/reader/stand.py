"""Shared by the reader's tests against the fake cluster: quick options, and changes to topics."""

from __future__ import annotations

from tests.fetch.logs import fill

from ottla.config import Timeouts
from ottla.fetch.options import Fetching
from ottla.model import TopicPartition
from ottla.testing import FakeKafka

SHORT = Timeouts(connect=0.5, request=0.5, total=0.6)
SMALL = Fetching(memory_bytes=1 << 16, request_bytes=1 << 10, max_wait=0.1)
MANY = {number: list(range(500)) for number in range(4)}


def cut_off(kafka: FakeKafka, offset: int, topic: str = "t") -> None:
    """Delete the records before the offset, as retention does."""
    with kafka._dispatcher.changed:
        kafka._partition(topic, 0).log.delete_before(offset)


def recreate(kafka: FakeKafka, topic: str = "t", *, records: int = 0) -> None:
    """Replace the topic by another one of the same name that has its records from the start."""
    kafka.create_topic("anew", 1)
    fill(kafka, records // 10, at=TopicPartition("anew", 0))
    with kafka._dispatcher.changed:
        topics = kafka._dispatcher.state.topics
        topics[topic] = topics.pop("anew")
        topics[topic].name = topic
        kafka._dispatcher.changed.notify_all()
