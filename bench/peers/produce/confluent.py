"""confluent-kafka (librdkafka): `produce` for each record, `produce_batch` for lists of a thousand."""

from __future__ import annotations

import threading
import time
from typing import Any

from confluent_kafka import KafkaException, Producer

from bench.harness import Stopwatch, paced
from bench.peers.produce import BATCH_BYTES, CHUNK, FLUSH_SECONDS, LINGER, Job, Sent, values

_MOST_QUEUED = 500_000


def _producer(job: Job, **settings: Any) -> Producer:
    return Producer(
        {
            "bootstrap.servers": job.bootstrap,
            "acks": job.acks,
            "compression.type": job.codec,
            "linger.ms": LINGER * 1000,
            "batch.size": BATCH_BYTES,
            "batch.num.messages": 100_000,
            "queue.buffering.max.messages": _MOST_QUEUED,
            "queue.buffering.max.kbytes": 1 << 20,
        }
        | settings
    )


def _produce(job: Job) -> Sent:
    """No callback, which is its fastest use; `poll` once for every thousand, and whenever the queue is full."""
    producer = _producer(job)
    produce, poll, topic = producer.produce, producer.poll, job.topic
    for value in (warmup := job.warmup()):
        produce(topic, value)
    _flush(producer)
    watch = Stopwatch()
    for part in job.lists():
        poll(0)
        for value in part:
            try:
                produce(topic, value)
            except BufferError:
                _wait_for_room(producer)
                produce(topic, value)
    _flush(producer)
    return Sent(job.sent(), len(warmup), watch.stop())


def _produce_on_delivery(job: Job) -> Sent:
    """The same with a callback that learns of each record whether it arrived: what `send` of ours tells, too."""
    producer = _producer(job)
    produce, poll, topic = producer.produce, producer.poll, job.topic
    failed = []

    def delivered(error: Any, _message: Any) -> None:
        if error is not None:
            failed.append(error)

    for value in (warmup := job.warmup()):
        produce(topic, value, on_delivery=delivered)
    _flush(producer)
    watch = Stopwatch()
    for part in job.lists():
        poll(0)
        for value in part:
            try:
                produce(topic, value, on_delivery=delivered)
            except BufferError:
                _wait_for_room(producer)
                produce(topic, value, on_delivery=delivered)
    _flush(producer)
    if failed:
        raise KafkaException(failed[0])
    return Sent(job.sent(), len(warmup), watch.stop())


def _produce_batch(job: Job) -> Sent:
    """Lists of dictionaries made beforehand, to a partition that is named: its cheapest call for each record."""
    lists = [[{"value": value} for value in part] for part in job.lists(CHUNK)][
        : len(values(job.payload)) // CHUNK or 1
    ]
    producer = _producer(job)
    warmup = [{"value": value} for value in job.warmup()]
    producer.produce_batch(job.topic, warmup, partition=0)
    _flush(producer)
    watch = Stopwatch()
    for i in range(job.sent() // CHUNK):
        producer.poll(0)
        if len(producer) > _MOST_QUEUED - CHUNK:
            _wait_for_room(producer)
        if producer.produce_batch(job.topic, lists[i % len(lists)], partition=0) != CHUNK:
            raise AssertionError("produce_batch took only a part of a list")
    _flush(producer)
    return Sent(job.sent(), len(warmup), watch.stop())


def _wait_for_room(producer: Producer) -> None:
    while len(producer) > _MOST_QUEUED - 10 * CHUNK:
        producer.poll(0.01)


def _flush(producer: Producer) -> None:
    if left := producer.flush(FLUSH_SECONDS):
        raise AssertionError(f"{left} records were not delivered")


def _latency(job: Job) -> list[float]:
    """A thread that does nothing else serves the callbacks."""
    producer = _producer(job, **{"linger.ms": 0, "socket.nagle.disable": True})
    (value, *_) = values(job.payload)
    seconds: list[float] = []
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            producer.poll(0.1)

    def send() -> None:
        began = time.perf_counter()

        def delivered(error: Any, _message: Any) -> None:
            seconds.append(time.perf_counter() - began)
            if error is not None:
                raise KafkaException(error)

        producer.produce(job.topic, value, on_delivery=delivered)

    server = threading.Thread(target=serve)
    server.start()
    try:
        paced(job.records, 1000, send)
        _flush(producer)
    finally:
        over.set()
        server.join()
    return seconds


VARIANTS = {"produce": _produce, "produce, on_delivery": _produce_on_delivery, "produce_batch": _produce_batch}
PACED = {"produce": _latency}
