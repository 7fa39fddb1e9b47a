"""Group members of another client: confluent-kafka consumers that poll in a thread while a block runs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import confluent_kafka

SECONDS = 60.0


@contextlib.contextmanager
def member(bootstrap: str, group: str, topic: str, *, protocol: str, client: str = "app") -> Iterator[threading.Event]:
    """A member that has partitions when the block begins, and has left the group when it ends."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "client.id": client,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    joined, done = threading.Event(), threading.Event()

    def poll() -> None:
        with contextlib.closing(confluent_kafka.Consumer(settings)) as consumer:
            consumer.subscribe([topic], on_assign=lambda _, partitions: joined.set())
            while not done.is_set():
                consumer.poll(0.05)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        assert joined.wait(SECONDS), f"no partitions of {topic} for {group}"
        yield joined
    finally:
        done.set()
        thread.join()


def fill(bootstrap: str, topic: str, counts: dict[int, int], *, first_ms: int | None = None) -> None:
    """Send this many records to each partition, a second apart. Old ones need a topic with long retention."""
    first_ms = int(time.time() * 1000) if first_ms is None else first_ms
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for partition, count in counts.items():
        for number in range(count):
            producer.produce(topic, b"x", partition=partition, timestamp=first_ms + 1000 * number)
    assert producer.flush(SECONDS) == 0
