"""kafka-python: `send` for each record."""

from __future__ import annotations

from typing import Any

from kafka import KafkaProducer

from bench.harness import Stopwatch
from bench.peers.produce import FLUSH_SECONDS, LINGER, Job, Sent


def _send(job: Job) -> Sent:
    producer = KafkaProducer(
        bootstrap_servers=job.bootstrap,
        acks="all" if job.acks == "all" else int(job.acks),
        enable_idempotence=False,
        compression_type=None if job.codec == "none" else job.codec,
        linger_ms=int(LINGER * 1000),
        batch_size=1 << 18,  # no worse than any other from 16 kB to 1 MB
    )
    try:
        send, topic = producer.send, job.topic
        for value in (warmup := job.warmup()):
            send(topic, value)
        producer.flush(FLUSH_SECONDS)
        watch = Stopwatch()
        for part in job.lists():
            for value in part:
                send(topic, value)
        producer.flush(FLUSH_SECONDS)
        return Sent(job.sent(), len(warmup), watch.stop())
    finally:
        producer.close()


VARIANTS = {"send": _send}
PACED: dict[str, Any] = {}
