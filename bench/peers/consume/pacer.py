"""The process that sends for the latency figures, the same for every peer: a thousand records a second, one at a time.

`python -m bench.peers.consume.pacer BOOTSTRAP TOPIC RECORDS`; each value begins with the time of its sending.
"""

from __future__ import annotations

import sys
from typing import Any

from confluent_kafka import KafkaException, Producer

from bench.harness import paced
from bench.peers.consume import WAIT_SECONDS, stamped

_PER_SECOND = 1000
_BYTES = 100


def main(bootstrap: str, topic: str, records: int) -> None:
    """Send all; an error ends the process."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": 1, "linger.ms": 0, "socket.nagle.disable": True})
    producer.list_topics(topic, WAIT_SECONDS)  # connects
    failed: list[Any] = []

    def delivered(error: Any, _message: Any) -> None:
        if error is not None:
            failed.append(error)

    def send() -> None:
        producer.produce(topic, stamped(_BYTES), partition=0, on_delivery=delivered)
        producer.poll(0)

    paced(records, _PER_SECOND, send)
    left = producer.flush(WAIT_SECONDS)
    if failed or left:
        raise KafkaException(failed[0]) if failed else AssertionError(f"{left} records were not delivered")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
