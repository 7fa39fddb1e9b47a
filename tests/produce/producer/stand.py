"""What the producer tests against the fake cluster share: quick options, and a look at what arrived."""

from __future__ import annotations

from typing import Any

from ottla import Batching, Producer
from ottla.config import Retry, Timeouts
from ottla.errors import ErrorCode
from ottla.testing import FakeKafka

SOON = 20.0
QUICK = Retry(initial=0.01, maximum=0.05)
TIMES = Timeouts(connect=2.0, request=5.0, total=10.0)


def new(kafka: FakeKafka, **options: Any) -> Producer:
    """A producer with short timeouts."""
    given: dict[str, Any] = {"retry": QUICK, "timeouts": TIMES, "batching": Batching(linger=0.001), **options}
    return Producer(kafka.bootstrap, **given)


def values(kafka: FakeKafka, topic: str = "t", partition: int = 0) -> list[bytes | None]:
    """The values in the log."""
    return [record.value for record in kafka.records(topic, partition)]


def stuck(kafka: FakeKafka) -> None:
    """Make the broker refuse every batch for the moment."""
    kafka.fail("Produce", ErrorCode.not_enough_replicas, times=None)
