"""The same work by confluent-kafka (librdkafka), where it is installed: in the loops that Ottla runs in.

Only clusters without TLS and SASL: settings of security are not carried over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ottla.errors import NotDelivered, WireError
from ottla.model import OffsetRange
from ottla.operations.perf.consume import Portions, Reading
from ottla.operations.perf.produce import Done
from ottla.operations.perf.workload import Workload

if TYPE_CHECKING:
    from confluent_kafka import Message, Producer

PACKAGE = "confluent-kafka"
_QUEUED = 500_000
_AT_ONCE = 1000
_PATIENCE = 0.1
_SECONDS = 30.0


class ConfluentSending:
    """librdkafka's producer: one `produce` for each record, and a callback for the last one of each chunk."""

    def __init__(self, workload: Workload, bootstrap: str) -> None:
        from confluent_kafka import Producer

        self._producer: Producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": workload.acks,
                "log_level": 3,  # errors: warnings of a coordinator that starts would spoil the live line
                "enable.idempotence": workload.acks == "all",
                "compression.type": workload.codec,
                "linger.ms": workload.linger * 1000,
                "batch.size": workload.batch_bytes,
                "batch.num.messages": 100_000,
                "queue.buffering.max.messages": _QUEUED,
                "queue.buffering.max.kbytes": 1 << 20,
            }
        )
        self._over = threading.Event()
        self._server = threading.Thread(target=self._serve, name="ottla-perf-confluent", daemon=True)
        self._server.start()

    def _serve(self) -> None:
        """Serve callbacks, which the client does not do by itself."""
        while not self._over.is_set():
            self._producer.poll(0.05)

    def send(self, topic: str, values: list[bytes], done: Done) -> None:
        """Send values one by one."""

        def delivered(error: Any, _message: Any) -> None:
            done(None if error is None else NotDelivered(f"confluent-kafka: {error}"))

        produce = self._producer.produce
        for value in values[:-1]:
            try:
                produce(topic, value)
            except BufferError:
                self._wait(topic, value)
        try:
            produce(topic, values[-1], on_delivery=delivered)
        except BufferError:
            self._wait(topic, values[-1], on_delivery=delivered)

    def _wait(self, topic: str, value: bytes, **options: Any) -> None:
        while len(self._producer) > _QUEUED // 2 and not self._over.is_set():
            self._over.wait(0.001)
        self._producer.produce(topic, value, **options)

    def flush(self, timeout: float | None) -> None:
        """Wait for all acknowledgements. Raises `TimeoutError` if some are missing."""
        if left := self._producer.flush(120.0 if timeout is None else timeout):
            raise TimeoutError(f"{left} records are not acknowledged")

    def close(self) -> None:
        """End the thread that serves callbacks."""
        self._over.set()
        self._server.join()
        self._producer.purge()
        self._producer.flush(1.0)


def confluent_reading(bootstrap: str) -> Reading:
    """Return how librdkafka reads: a thousand messages at a time, with the value of each."""

    def read(ranges: Sequence[OffsetRange]) -> Portions:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"ottla-perf-{uuid4().hex}",  # it needs one, and joins none
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "fetch.queue.backoff.ms": 0,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        try:
            consumer.list_topics(timeout=_SECONDS)  # connects
            yield 0, 0
            consumer.assign([TopicPartition(unit.topic, unit.partition, unit.start) for unit in ranges])
            ended: set[tuple[str | None, int | None]] = set()
            left = sum(map(len, ranges))
            deadline = time.monotonic() + _SECONDS
            while len(ended) < len(ranges):
                # The call waits until it has as many, or for this long: it is not asked for more than there are.
                messages = consumer.consume(max(1, min(_AT_ONCE, left)), timeout=_PATIENCE)
                if not messages:
                    if time.monotonic() > deadline:
                        raise WireError(f"confluent-kafka: no record came within {_SECONDS:.0f} s")
                    continue
                deadline = time.monotonic() + _SECONDS
                # What each program does: look for errors, and take the values.
                if notices := [message for message in messages if message.error()]:
                    ended.update(map(_end, notices))
                    messages = [message for message in messages if not message.error()]
                if messages:
                    left -= len(messages)
                    yield len(messages), sum([len(message.value() or b"") for message in messages])
        finally:
            consumer.close()

    return read


def _end(notice: Message) -> tuple[str | None, int | None]:
    """Return the partition whose end was reached. Raises `WireError` if the notice is another one."""
    from confluent_kafka import KafkaError

    error = notice.error()
    if error is None or error.code() != KafkaError._PARTITION_EOF:
        raise WireError(f"confluent-kafka: {error}")
    return notice.topic(), notice.partition()
