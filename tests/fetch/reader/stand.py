"""What the tests of the reader against the fake cluster share: options that hurry, and what happens to topics."""

from __future__ import annotations

from ottla.config import Timeouts
from ottla.fetch.options import Fetching
from ottla.testing import FakeKafka

SHORT = Timeouts(connect=0.5, request=0.5, total=0.6)
SMALL = Fetching(memory_bytes=1 << 16, request_bytes=1 << 10, max_wait=0.1)
MANY = {number: list(range(500)) for number in range(4)}


def cut_off(kafka: FakeKafka, offset: int, topic: str = "t") -> None:
    """Retention takes what lies before the offset."""
    with kafka._dispatcher.changed:
        kafka._partition(topic, 0).log.delete_before(offset)


def recreate(kafka: FakeKafka, topic: str = "t") -> None:
    """Another topic of the same name."""
    with kafka._dispatcher.changed:
        del kafka._dispatcher.state.topics[topic]
    kafka.create_topic(topic, 1)
