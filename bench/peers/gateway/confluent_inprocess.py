"""The lines of a body without HTTP: parsed and sent by confluent-kafka in one process, in groups of a body's size."""

from __future__ import annotations

import json
import sys
import time

import confluent_kafka


def main() -> None:
    """Write groups of lines for some seconds; print the records per second."""
    bootstrap, topic, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    body = sys.stdin.buffer.read()
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
    records, began = 0, 0.0
    warm_until = time.monotonic() + 1.0
    while True:
        now = time.monotonic()
        if not began and now > warm_until:
            producer.flush()
            records, began = 0, time.monotonic()
        if began and now > began + seconds:
            break
        for line in body.splitlines():
            json.loads(line)  # a gateway checks what it takes
            while True:
                try:
                    producer.produce(topic, line)
                    break
                except BufferError:
                    producer.poll(0.01)
            records += 1
        producer.poll(0)
    producer.flush()
    print(json.dumps({"records_per_second": records / (time.monotonic() - began)}))


if __name__ == "__main__":
    main()
