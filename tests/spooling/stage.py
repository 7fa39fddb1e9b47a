"""Controls puppets: starts them, sends them commands, kills them, and reads what is in the log.

The reader is confluent-kafka, which shares no code with what is tested.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import confluent_kafka

_PROGRAM = Path(__file__).with_name("puppet.py")


class Refused(Exception):
    """What the puppet tried raised this error."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Nursery:
    """A process that has imported everything and forks puppets; a context manager."""

    def __init__(self, folder: Path) -> None:
        self.errors = folder / "errors"
        self._address = str(folder / "strings")
        with self.errors.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, str(_PROGRAM), self._address],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", self.errors.read_text()

    def __enter__(self) -> Nursery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process:
            self._process.communicate(timeout=30)

    def puppet(self) -> Puppet:
        """Start a new process."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._address)
        return Puppet(connection, self.errors)


class Puppet:
    """A process with a producer; a context manager that kills it."""

    def __init__(self, connection: socket.socket, errors: Path) -> None:
        self._socket = connection
        self._errors = errors
        self._received = b""
        self.pid: int = self.read_result()

    def __enter__(self) -> Puppet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def ask(self, do: str, *, patience: float = 90.0, **arguments: Any) -> Any:
        """Run a command and wait for its result. Raises `Refused` if it raised."""
        self.start(do, **arguments)
        return self.read_result(patience)

    def start(self, do: str, **arguments: Any) -> None:
        """Start a command without waiting."""
        self._socket.sendall(json.dumps({"do": do, **arguments}).encode() + b"\n")

    def read_result(self, patience: float = 90.0) -> Any:
        """The result of the command. Raises `Refused` if it raised."""
        answer = json.loads(self._line(time.monotonic() + patience))
        if "error" in answer:
            raise Refused(answer["error"], answer["text"])
        return answer["ok"]

    def _line(self, deadline: float) -> bytes:
        while b"\n" not in self._received:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            data = self._socket.recv(65536)
            assert data, f"the puppet died: {self._errors.read_text()[-4000:]}"
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return line

    def kill(self) -> None:
        """Kill it with SIGKILL, and wait until it is gone."""
        if self._socket.fileno() < 0:
            return
        os.kill(self.pid, signal.SIGKILL)
        with self._socket:
            self._socket.settimeout(30)
            try:
                while self._socket.recv(65536):
                    pass
            except ConnectionResetError:
                pass  # it died with commands unread

    def freeze(self) -> None:
        """Send SIGSTOP, and wait until it has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        status = Path(f"/proc/{self.pid}/stat")
        while status.read_text().rpartition(") ")[2][0] != "T":
            time.sleep(0.001)

    def thaw(self) -> None:
        """Send SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)


class LogRecord(NamedTuple):
    """A record in the log."""

    partition: int
    offset: int
    key: str | None
    writer: str
    counter: int


def read_log(bootstrap: str, topic: str, *, seconds: float = 60.0) -> list[LogRecord]:
    """Every record of every partition, ascending within each."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False, "check.crcs": True}
    )
    records: list[LogRecord] = []
    deadline = time.monotonic() + seconds
    with closing(consumer):
        numbers = consumer.list_topics(topic, timeout=seconds).topics[topic].partitions
        partitions = [confluent_kafka.TopicPartition(topic, number, 0) for number in numbers]
        ends = {
            partition.partition: consumer.get_watermark_offsets(partition, timeout=seconds)[1]
            for partition in partitions
        }
        unread = {number for number, end in ends.items() if end > 0}
        consumer.assign([partition for partition in partitions if partition.partition in unread])
        while unread:
            for message in consumer.consume(10_000, 0.2):
                assert message.error() is None, message.error()
                records.append(_log_record(message))
                if records[-1].offset >= ends[records[-1].partition] - 1:
                    unread.discard(records[-1].partition)
            assert time.monotonic() < deadline, f"the partitions {unread} of {topic} were not read in {seconds} s"
    return records


def _log_record(message: confluent_kafka.Message) -> LogRecord:
    partition, offset, value = message.partition(), message.offset(), message.value()
    assert partition is not None
    assert offset is not None
    assert isinstance(value, bytes)
    writer, counter, _ = value.decode().split(":", 2)
    key = message.key()
    return LogRecord(partition, offset, None if key is None else bytes(key).decode(), writer, int(counter))


def counters(log: Iterable[LogRecord], writer: str) -> list[int]:
    """The numbers of a writer's records, in log order."""
    return [record.counter for record in log if record.writer == writer]


def doubles(log: Iterable[LogRecord]) -> list[tuple[str, int]]:
    """Records that are in the log more than once."""
    return [record for record, times in Counter((entry.writer, entry.counter) for entry in log).items() if times > 1]


def copied(spool: Path, name: str) -> Path:
    """Copy the directory in its current state to another name beside it."""
    return Path(shutil.copytree(spool, spool.with_name(name)))
