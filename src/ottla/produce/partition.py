"""The low-level producer: sends batches to one partition on one broker, and reads answers when the program asks.

Values, tables or finished batches come in, and each leaves at once as one request. Answers are read in order, with a
timeout. No metadata, no retries, no buffering, no thread: errors are raised, and the program decides what to do about
them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType

import pyarrow as pa

from ottla.config import PLAINTEXT, Address, Security, Timeouts, parse_bootstrap
from ottla.errors import BrokerError, ConfigError, InputError, WireError
from ottla.model import OffsetRange, TopicPartition
from ottla.net.connection import Connection, Pending
from ottla.net.deadline import Deadline
from ottla.net.exposure import accepted
from ottla.produce import records as checks
from ottla.produce.options import Acks, Settings
from ottla.wire import produce as wire
from ottla.wire.batch import Codec
from ottla.wire.columns import Item, from_list
from ottla.wire.encode import BatchLimits, NewBatch, encode

_MOST = BatchLimits(max_bytes=(1 << 31) - 100)
"""One batch takes all rows of a call; the protocol's limit is a 31-bit length."""


@dataclass(frozen=True, slots=True)
class PartitionAnswer:
    """A broker's answer to one request. `range` has the offsets of its records, None if it was refused."""

    number: int
    records: int
    range: OffsetRange | None
    error: BrokerError | None
    timestamp: float | None
    """The broker's append time, if the topic is configured so."""


class PartitionProducer:
    """Sends to one partition. The broker must be its leader. Constructing it connects nothing; `with` does."""

    def __init__(
        self,
        broker: str | Address,
        at: TopicPartition | tuple[str, int],
        *,
        acks: Acks = "all",
        compression: str | Codec = Codec.NONE,
        level: int | None = None,
        security: Security = PLAINTEXT,
        timeouts: Timeouts | None = None,
        client_id: str = "ottla-partition-producer",
    ) -> None:
        """Check the settings: `broker` leads `at`; `acks`, `compression` and `level` are those of `TopicSettings`.

        Raises `ConfigError` for invalid settings or several brokers, `InputError` for a wrong topic or partition.
        """
        addresses = parse_bootstrap([broker])
        if len(addresses) != 1:
            raise ConfigError(f"a PartitionProducer talks to one broker, got {broker!r}")
        self.address = addresses[0]
        self.at = TopicPartition(*at)
        checks.topic(self.at.topic)
        checks.partition(self.at.partition)
        self._settings = Settings(acks=acks, compression=compression, level=level)
        self._security = accepted(security)
        self._timeouts = timeouts or Timeouts()
        self._client_id = client_id
        self._connection: Connection | None = None
        self._waiting: deque[tuple[int, int, Pending]] = deque()
        self._sent = 0

    def __enter__(self) -> PartitionProducer:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def waiting(self) -> int:
        """Requests whose answer was not read yet."""
        return len(self._waiting)

    def send(self, rows: Iterable[Item] | pa.Table | pa.RecordBatch | NewBatch) -> int:
        """Send `rows` as one batch and return its number.

        `read` returns the answer, except with acks=0, when there is none.
        Raises `InputError` for wrong rows and an empty batch, and a network error if the request cannot be sent.
        """
        batch = rows if isinstance(rows, NewBatch) else self._encoded(rows)
        connection = self._open()
        seconds = self._timeouts.request
        body = wire.produce_request(
            {self.at: batch.parts()}, acks=self._settings.acks_code, timeout_ms=int(seconds * 800)
        )
        version = connection.version(wire.API_KEY, highest=wire.HIGHEST_VERSION)
        deadline = Deadline.after(seconds)
        self._sent += 1
        if self._settings.acks_code == 0:
            connection.post(wire.API_KEY, version, body, deadline=deadline)
        else:
            pending = connection.submit(wire.API_KEY, version, body, deadline=deadline)
            self._waiting.append((self._sent, batch.header.count, pending))
        return self._sent

    def read(self, timeout: float) -> PartitionAnswer | None:
        """The answer to the oldest unanswered request; None if it does not come within `timeout` seconds.

        Raises `InputError` if no answer is due, and `ConnectionLost` or `RequestTimedOut` if it will never come.
        """
        if not self._waiting:
            raise InputError("no answer is due: every request was answered")
        number, records, pending = self._waiting[0]
        limit = Deadline.after(timeout)
        while not pending.done:
            if limit.expired():
                return None
            self._open().pump(limit)
        self._waiting.popleft()
        return self._parse_answer(number, records, pending.result())

    def close(self) -> None:
        """Close the connection. Answers that were not read are lost."""
        connection, self._connection = self._connection, None
        self._waiting.clear()
        if connection is not None:
            connection.close()

    def _open(self) -> Connection:
        """The connection, opened on first use. Raises a network error if that fails."""
        if self._connection is None:
            deadline = Deadline.after(self._timeouts.connect)
            self._connection = Connection.open(
                self.address, security=self._security, client_id=self._client_id, deadline=deadline
            )
        return self._connection

    def _encoded(self, rows: Iterable[Item] | pa.Table | pa.RecordBatch) -> NewBatch:
        """Encode rows as one batch, however large. Raises `InputError`."""
        if isinstance(rows, pa.Table | pa.RecordBatch):
            checks.column_names(self.at.topic, rows.schema)
            columns, _ = checks.columns(rows)
        else:
            columns = from_list(rows)
        if columns.count == 0:
            raise InputError("a batch must have at least one record")
        settings = self._settings
        now_ms = int(time.time() * 1000)
        return next(encode(columns, now_ms=now_ms, codec=settings.codec, level=settings.level, limits=_MOST))

    def _parse_answer(self, number: int, records: int, body: memoryview) -> PartitionAnswer:
        """Parse a broker's answer. Raises `WireError` if it is for another partition."""
        answers = wire.produce_response(body)
        if len(answers) != 1 or (answers[0].topic, answers[0].partition) != self.at:
            raise WireError(f"{self.address} answered for partitions other than {self.at}")
        answer = answers[0]
        if answer.error_code:
            error = BrokerError(answer.error_code, f"{self.at} at {self.address}", answer.message)
            return PartitionAnswer(number, records, None, error, None)
        offsets = OffsetRange(*self.at, answer.base_offset, answer.base_offset + records)
        time_ms = answer.append_time
        return PartitionAnswer(number, records, offsets, None, time_ms / 1000 if time_ms >= 0 else None)
