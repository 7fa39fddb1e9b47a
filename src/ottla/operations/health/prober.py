"""The end-to-end probe: a record through every broker each interval, written, acknowledged and read back.

Comes in: a cluster and an interval. Goes out: a `BrokerReport` for each broker, at any time, from any thread. Each
broker has a thread and a connection of its own, so one that is frozen delays no other, and one that does not answer
within the interval counts as failed then. Another thread sees to the topic. It must not retry: that would hide what is
measured.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Sequence
from types import TracebackType

from ottla.admin.nodes import registered_brokers
from ottla.config import check_seconds
from ottla.errors import BrokerError, ConnectFailed, ErrorCode, OttlaError
from ottla.model import TopicPartition
from ottla.net.attempts import headline
from ottla.net.cluster import Cluster
from ottla.net.connection import Connection
from ottla.net.deadline import Deadline
from ottla.operations.health import probe_topic
from ottla.operations.health.probe_records import probe_batch, probe_records
from ottla.operations.health.probe_tally import BrokerReport, ProbeTally
from ottla.operations.health.snapshot import PROBE_TOPIC
from ottla.wire import fetch, produce

_CHANNEL = "probe"
_ALL_REPLICAS = -1
_BY_NAME = 12
"""The version of Fetch that names topics: what another topic of this name has is no loss."""
_FETCH_BYTES = 1 << 20
_WAIT_MS = 100
_STEWARD_SECONDS = 5.0
_START_SECONDS = 15.0
_NEW_SECONDS = 5.0
_log = logging.getLogger(__name__)


class Prober:
    """Probes all brokers of a cluster, which stays open, from `start` to `stop`, or while a `with` block runs.

    It does so every second, unless `every` says otherwise.
    """

    def __init__(self, cluster: Cluster, *, every: float = 1.0, topic: str = PROBE_TOPIC) -> None:
        check_seconds("Prober", "every", every, lowest=0.05)
        self.every = every
        self.topic = topic
        self._cluster = cluster
        self._run = uuid.uuid4().bytes
        self._probes: dict[int, _BrokerProbe] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._steward = threading.Thread(target=self._care, name="ottla-probe-topic", daemon=True)

    def __enter__(self) -> Prober:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """See to the topic, then probe. Raises `BrokerError` if it cannot be created, and as `Cluster.call` does."""
        self._see_to_topic(Deadline.after(max(_START_SECONDS, self.every)))
        self._steward.start()

    def stop(self) -> None:
        """End all threads and close the connections of the probe. The topic stays, with ten minutes of records."""
        self._stopping.set()
        if self._steward.is_alive():
            self._steward.join()
        probes = list(self._probes.values())
        for probe in probes:
            probe.stop()
        self._cluster.leave(_CHANNEL)  # ends what a probe of a frozen broker waits for
        for probe in probes:
            probe.join()

    def reports(self) -> list[BrokerReport]:
        """Return what is known now of each broker, by its id."""
        with self._lock:
            probes = [self._probes[number] for number in sorted(self._probes)]
        return [probe.report() for probe in probes]

    def _care(self) -> None:
        while not self._stopping.wait(_STEWARD_SECONDS):
            try:
                self._see_to_topic(Deadline.after(_START_SECONDS))
            except OttlaError as error:
                _log.debug("the topic of the probe: %s", error)

    def _see_to_topic(self, deadline: Deadline) -> None:
        topic, up = probe_topic.ensure(self._cluster, topic=self.topic, deadline=deadline)
        try:
            registered = {*registered_brokers(self._cluster, deadline=deadline), *up}
        except OttlaError:  # old brokers, or not allowed: a broker that is gone for good stays in the report
            registered = {*self._probes, *up, *probe_topic.homes_of(topic)}
        homes = {number: home for number, home in probe_topic.homes_of(topic).items() if number in registered}
        with self._lock:
            gone = [self._probes.pop(number) for number in {*self._probes} - {*homes}]
            for number, partition in homes.items():
                if number in self._probes:
                    self._probes[number].partition = partition
                else:
                    self._probes[number] = self._new_probe(number, partition)
        for probe in gone:
            probe.stop()

    def _new_probe(self, number: int, partition: int) -> _BrokerProbe:
        probe = _BrokerProbe(self._cluster, number, partition, topic=self.topic, run=self._run, every=self.every)
        probe.start()
        return probe


class _BrokerProbe:
    """The probe of one broker, on a thread of its own."""

    def __init__(self, cluster: Cluster, broker: int, partition: int, *, topic: str, run: bytes, every: float) -> None:
        self.partition = partition
        self._cluster = cluster
        self._broker = broker
        self._topic = topic
        self._run = run
        self._every = every
        self._next_number = 0
        self._is_proven = False
        """Whether it has acknowledged a record."""
        self._started_at = time.monotonic()
        self._position: int | None = None
        self._tally = ProbeTally(broker)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"ottla-probe-{broker}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def join(self) -> None:
        self._thread.join()

    def report(self) -> BrokerReport:
        with self._lock:
            self._tally.partition = self.partition
            return self._tally.report()

    def _work(self) -> None:
        due = time.monotonic()
        while not self._stopping.is_set():
            self._round()
            due = max(due + self._every, time.monotonic())
            self._stopping.wait(due - time.monotonic())

    def _round(self) -> None:
        """Write a record and read it back, all within the interval."""
        number, self._next_number = self._next_number, self._next_number + 1
        deadline = Deadline.after(self._every)
        with self._lock:
            self._tally.sent(number, time.monotonic())
        try:
            connection = self._connection(deadline)
            offset = self._write(connection, number, deadline)
        except OttlaError as error:
            if not self._stopping.is_set():
                with self._lock:
                    if self._is_new(error):
                        self._tally.withdrawn(number)
                    else:
                        self._tally.write_failed(number, headline(error), time.time())
            return
        self._is_proven = True
        with self._lock:
            self._tally.acknowledged(number, offset, time.monotonic())
        try:
            self._read(connection, offset, deadline)
        except OttlaError as error:
            if not self._stopping.is_set():
                with self._lock:
                    self._tally.failed(headline(error), time.time())

    def _is_new(self, error: OttlaError) -> bool:
        """Whether the broker may not have heard of its new partition yet."""
        is_early = not self._is_proven and time.monotonic() - self._started_at < _NEW_SECONDS
        return is_early and isinstance(error, BrokerError) and error.row.refresh

    def _connection(self, deadline: Deadline) -> Connection:
        broker = self._cluster.known.brokers.get(self._broker)
        if broker is None:
            raise ConnectFailed(f"broker {self._broker}", "not among the brokers of the cluster at the moment")
        return self._cluster.connection(broker, channel=_CHANNEL, deadline=deadline)

    def _write(self, connection: Connection, number: int, deadline: Deadline) -> int:
        """Return the offset of the record."""
        partition = TopicPartition(self._topic, self.partition)
        version = connection.version(produce.API_KEY, highest=produce.HIGHEST_VERSION)
        batch = probe_batch(self._run, number, now_ms=int(time.time() * 1000))
        body = produce.produce_request(
            {partition: batch.parts()}, acks=_ALL_REPLICAS, timeout_ms=max(1, int(deadline.remaining() * 1000))
        )
        pending = connection.submit(produce.API_KEY, version, body, deadline=deadline)
        (result,) = produce.produce_response(pending.result())
        if result.error_code:
            raise BrokerError(result.error_code, f"writing to {partition}", result.message)
        return result.base_offset

    def _read(self, connection: Connection, offset: int, deadline: Deadline) -> None:
        """Read until the record at this offset has come. Raises the broker's error, or `RequestTimedOut`."""
        if self._position is None or self._position > offset:
            # At first; or the log is another one, or shorter than it was.
            self._position = offset
        while self._position <= offset:
            self._fetch(connection, deadline)
        with self._lock:
            self._tally.works()

    def _fetch(self, connection: Connection, deadline: Deadline) -> None:
        assert self._position is not None
        version = connection.version(fetch.API_KEY, highest=_BY_NAME)
        entry = fetch.FetchPartition(self._topic, self.partition, self._position, _FETCH_BYTES)
        body = fetch.fetch_request([entry], version=version, max_wait_ms=_WAIT_MS, min_bytes=1, max_bytes=_FETCH_BYTES)
        pending = connection.submit(fetch.API_KEY, version, body, deadline=deadline)
        answer = fetch.fetch_response(pending.result(), version=version)
        where = f"reading {self._topic}-{self.partition}"
        if answer.error_code:
            raise BrokerError(answer.error_code, where)
        (part,) = answer.partitions
        if part.error_code == ErrorCode.offset_out_of_range and part.log_start_offset > self._position:
            self._move_to(part.log_start_offset)  # retention was faster
            return
        if part.error_code:
            raise BrokerError(part.error_code, where)
        self._take(part.records)

    def _take(self, records: memoryview) -> None:
        for end, record in probe_records(records, self._run):
            at = time.monotonic()
            with self._lock:
                if record is not None and record.number is None:
                    self._tally.damaged()
                elif record is not None and record.number is not None:
                    self._tally.read(record.number, record.offset, at)
            self._move_to(end)

    def _move_to(self, offset: int) -> None:
        self._position = offset
        with self._lock:
            self._tally.read_up_to(offset)


def wait_for_rounds(prober: Prober, rounds: int, *, seconds: float) -> Sequence[BrokerReport]:
    """Wait until each broker has decided this many writes, at most `seconds`. Returns the reports."""
    deadline = Deadline.after(seconds)
    while True:
        reports = prober.reports()
        decided = [each.acknowledged + each.failed for each in reports]
        if (decided and min(decided) >= rounds) or deadline.expired():
            return reports
        time.sleep(0.02)
