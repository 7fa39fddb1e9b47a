"""No client at all: one encoded batch of 1 MB sent again and again, five requests in flight. What nobody can beat.

For latency: a batch of one record, sent and answered before the next one is due.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from bench.harness import Stopwatch, paced
from bench.peers.produce import BATCH_BYTES, Job, Sent, values
from ottla.errors import BrokerError
from ottla.model import TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.connection import Connection, Pending
from ottla.net.deadline import Deadline
from ottla.wire.columns import from_list
from ottla.wire.encode import BatchLimits, NewBatch, encode
from ottla.wire.produce import API_KEY, HIGHEST_VERSION, produce_request, produce_response

_IN_FLIGHT = 5
_SECONDS = 30.0
_ACKS = {"all": -1, "1": 1}


def _same_batch(job: Job) -> Sent:
    batch = _batch(job, values(job.payload))
    body = _body(job, batch)
    count = batch.header.count
    times = -(-job.records // count)
    with _leader(job) as connection:
        _send(connection, body, times=1)
        watch = Stopwatch()
        _send(connection, body, times=times)
        return Sent(count * times, count, watch.stop())


def _send(connection: Connection, body: list[bytes | memoryview], *, times: int) -> None:
    flying: deque[Pending] = deque()
    for _ in range(times):
        if len(flying) == _IN_FLIGHT:
            _check(flying.popleft())
        flying.append(_submit(connection, body))
    while flying:
        _check(flying.popleft())


def _submit(connection: Connection, body: list[bytes | memoryview]) -> Pending:
    version = connection.version(API_KEY, highest=HIGHEST_VERSION)
    return connection.submit(API_KEY, version, body, deadline=Deadline.after(_SECONDS))


def _check(pending: Pending) -> None:
    (answer,) = produce_response(pending.result())
    if answer.error_code:
        raise BrokerError(answer.error_code, "Produce", answer.message)


def _latency(job: Job) -> list[float]:
    body = _body(job, _batch(job, values(job.payload)[:1]))
    seconds: list[float] = []

    def send() -> None:
        began = time.perf_counter()
        _check(_submit(connection, body))
        seconds.append(time.perf_counter() - began)

    with _leader(job) as connection:
        paced(job.records, 1000, send)
    return seconds


def _batch(job: Job, content: list[bytes]) -> NewBatch:
    limits = BatchLimits(max_bytes=BATCH_BYTES)
    return next(encode(from_list(content), now_ms=time.time_ns() // 1_000_000, codec=job.codec, limits=limits))


def _body(job: Job, batch: NewBatch) -> list[bytes | memoryview]:
    parts = {TopicPartition(job.topic, 0): batch.parts()}
    return produce_request(parts, acks=_ACKS[job.acks], timeout_ms=int(_SECONDS * 1000))


@contextmanager
def _leader(job: Job) -> Iterator[Connection]:
    with Cluster(job.bootstrap) as cluster:
        yield cluster.connection(cluster.leader(job.topic, 0))


VARIANTS = {"same batch": _same_batch}
PACED = {"one record": _latency}
