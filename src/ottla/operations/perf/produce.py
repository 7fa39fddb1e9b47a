"""Measures producing: threads send records, flat out or at a rate, and the meter counts acknowledgements.

A `Workload` and a function that opens a `Sending` client come in, so that every client runs in the same loop. The clock
starts after the warm-up and stops with the last acknowledgement.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import TYPE_CHECKING, Protocol

from ottla.errors import NotDelivered, OttlaError
from ottla.operations.perf.meter import Measured, Meter
from ottla.operations.perf.pace import Pace
from ottla.operations.perf.running import IsStopped, Progress, nap, together
from ottla.operations.perf.workload import Workload

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.jobs.brokers import Brokers

LATENCY = "from handing records in, or from when they were due with a rate, to their acknowledgement"
CHUNK = 1000
_CHUNK_BYTES = 1 << 20
_INTERRUPT_SECONDS = 10.0
_NANO = 1_000_000_000

Done = Callable[[BaseException | None], None]


class Sending(Protocol):
    """A producer of any client. One thread uses it."""

    def send(self, topic: str, values: list[bytes], done: Done) -> None:
        """Send values, and call `done` once they are acknowledged, or with their error."""

    def flush(self, timeout: float | None) -> None:
        """Wait until everything is decided. Raises `TimeoutError`, and the error of records that were not delivered."""

    def close(self) -> None:
        """Close the connections."""


class OttlaSending:
    """Ottla's producer, with one of its three ways to send."""

    def __init__(self, workload: Workload, brokers: Brokers) -> None:
        from ottla.produce.options import Batching
        from ottla.produce.producer import Producer

        self._producer = Producer(
            brokers.bootstrap,
            security=brokers.resolved_security(),
            client_id="ottla-perf",
            timeouts=brokers.timeouts,
            retry=brokers.retry,
            acks="all" if workload.acks == "all" else 0 if workload.acks == "0" else 1,
            compression=workload.codec,
            batching=Batching(bytes=workload.batch_bytes, linger=workload.linger),
        )
        self._hand_in = getattr(self, f"_{workload.api}")
        self._tables: dict[int, pa.Table] = {}

    def send(self, topic: str, values: list[bytes], done: Done) -> None:
        """Send values by the chosen call."""
        self._hand_in(topic, values, done)

    def _send(self, topic: str, values: list[bytes], done: Done) -> None:
        send = self._producer.send
        for value in values:
            delivery = send(topic, value)
        delivery.add_done_callback(lambda delivery: done(delivery.exception(0)))

    def _send_many(self, topic: str, values: list[bytes], done: Done) -> None:
        delivery = self._producer.send_many(topic, values)
        delivery.add_done_callback(lambda delivery: done(delivery.exception(0)))

    def _send_table(self, topic: str, values: list[bytes], done: Done) -> None:
        import pyarrow as pa

        table = self._tables.get(id(values))
        if table is None:
            table = pa.table({"value": pa.array(values, pa.binary())})
            if len(values) >= CHUNK:  # whole chunks come again and again; parts of them do not
                self._tables[id(values)] = table
        delivery = self._producer.send_table(topic, table)
        delivery.add_done_callback(lambda delivery: done(delivery.exception(0)))

    def flush(self, timeout: float | None) -> None:
        """Wait for all acknowledgements."""
        self._producer.flush(timeout)

    def close(self) -> None:
        """Close without waiting for what is left."""
        try:
            self._producer.close(0.5)
        except (OttlaError, TimeoutError):
            pass  # `flush` has raised it, or the run was interrupted


class Producing:
    """One run of one client. `progress` may be read while it runs."""

    def __init__(self, workload: Workload, open_client: Callable[[], Sending], *, client: str = "ottla") -> None:
        self.progress = Progress(seconds=workload.seconds, records=workload.records)
        self._workload = workload
        self._open = open_client
        self._client = client
        size = min(CHUNK, max(1, _CHUNK_BYTES // workload.record_bytes))
        pool = workload.pool()
        self._chunks = [pool[at : at + size] for at in range(0, len(pool) - size + 1, size)] or [pool]
        self._lock = threading.Lock()
        self._sent = 0
        self._error: BaseException | None = None

    def run(self, is_stopped: IsStopped = lambda: False) -> Measured:
        """Warm up, measure, and return what was measured. Raises the first error of a thread or of a record.

        Once `is_stopped` returns True it sends no more, waits shortly, and returns what was measured so far.
        """
        work = self._workload
        clients = [self._open() for _ in range(work.threads)]
        try:
            if work.warmup:
                self.progress.phase = "warming up"
                self._round(clients, Meter(time.monotonic()), records=None, seconds=work.warmup, is_stopped=is_stopped)
            self._sent = 0
            meter = Meter(time.monotonic(), cpu=time.process_time())
            self.progress.phase, self.progress.meter = "producing", meter
            self._round(clients, meter, records=work.records, seconds=work.seconds, is_stopped=is_stopped)
            cpu = time.process_time()
        finally:
            for client in clients:
                client.close()
        meter.fail(max(0, self._sent - meter.records))
        return meter.measured(self._client, cpu=cpu, is_interrupted=is_stopped())

    def _round(
        self,
        clients: list[Sending],
        meter: Meter,
        *,
        records: int | None,
        seconds: float | None,
        is_stopped: IsStopped,
    ) -> None:
        count = len(clients)
        shares = [None if records is None else records // count + (at < records % count) for at in range(count)]
        parts = [
            _Part(self, client, meter, limit=share, seconds=seconds, number=number).run
            for number, (client, share) in enumerate(zip(clients, shares, strict=True))
            if share != 0
        ]
        together(parts, name="produce", is_stopped=is_stopped)
        if self._error is not None:
            raise self._error if isinstance(self._error, OttlaError) else NotDelivered(str(self._error))

    def hand_in(self, client: Sending, meter: Meter, topic: str, values: list[bytes], pace: _Due | None) -> None:
        """Send values and have their acknowledgement counted."""
        work = self._workload
        began = time.monotonic_ns()
        with self._lock:
            self._sent += len(values)

        def done(error: BaseException | None) -> None:
            if error is not None:
                self._error = self._error or error
                return
            now = time.monotonic_ns()
            latencies = now - began if pace is None else now - pace.pace.intended(pace.first, pace.first + len(values))
            meter.add(now / _NANO, len(values), len(values) * work.record_bytes, latencies=latencies)

        client.send(topic, values, done)

    def chunks(self, number: int) -> Iterator[list[bytes]]:
        """Yield lists of values, for ever; threads start at different ones."""
        start = number % len(self._chunks)
        return cycle(self._chunks[start:] + self._chunks[:start])

    @property
    def workload(self) -> Workload:
        """What is run."""
        return self._workload

    @property
    def has_failed(self) -> bool:
        """Whether a record was not delivered."""
        return self._error is not None


class _Due:
    """Which record of a pace the next values begin with."""

    __slots__ = ("first", "pace")

    def __init__(self, pace: Pace, first: int) -> None:
        self.pace = pace
        self.first = first


class _Part:
    """What one thread does in one round."""

    def __init__(
        self, run: Producing, client: Sending, meter: Meter, *, limit: int | None, seconds: float | None, number: int
    ) -> None:
        self._run = run
        self._client = client
        self._meter = meter
        self._limit = limit
        self._seconds = seconds
        self._number = number

    def run(self, is_stopped: IsStopped) -> None:
        """Send until the end of the round, then wait for acknowledgements."""
        self._send(is_stopped)
        self._run.progress.phase = "waiting for acknowledgements"
        try:
            self._client.flush(_INTERRUPT_SECONDS if is_stopped() else None)
        except TimeoutError:
            pass  # interrupted: what is undecided counts as failed

    def _send(self, is_stopped: IsStopped) -> None:
        work, began, sent = self._run.workload, time.monotonic(), 0
        pace = None if work.rate is None else Pace(work.rate / work.threads, began)
        topics = cycle(work.topics)
        for chunk in self._run.chunks(self._number):
            while True:
                now = time.monotonic()
                is_over = self._seconds is not None and now >= began + self._seconds
                if is_over or is_stopped() or self._run.has_failed or sent == self._limit:
                    return
                due = len(chunk) if pace is None else pace.due(now) - sent
                if due > 0:
                    break
                assert pace is not None
                nap(pace.wait(sent, now))
            count = min(due, len(chunk), len(chunk) if self._limit is None else self._limit - sent)
            values = chunk if count == len(chunk) else chunk[:count]
            self._run.hand_in(
                self._client, self._meter, next(topics), values, None if pace is None else _Due(pace, sent)
            )
            sent += count
