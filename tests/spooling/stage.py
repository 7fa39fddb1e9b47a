"""The other end of the strings: starts puppets, tells them what to do, kills them, and reads what is in the log.

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
    """What the puppet tried raised this."""

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
        """A new process."""
        strings = socket.socket(socket.AF_UNIX)
        strings.connect(self._address)
        return Puppet(strings, self.errors)


class Puppet:
    """A process with a producer; a context manager that kills it."""

    def __init__(self, strings: socket.socket, errors: Path) -> None:
        self._strings = strings
        self._errors = errors
        self._heard = b""
        self.pid: int = self.hear()

    def __enter__(self) -> Puppet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def ask(self, do: str, *, patience: float = 90.0, **given: Any) -> Any:
        """Has it do something and waits for what comes of it."""
        self.tell(do, **given)
        return self.hear(patience)

    def tell(self, do: str, **given: Any) -> None:
        """Has it do something."""
        self._strings.sendall(json.dumps({"do": do, **given}).encode() + b"\n")

    def hear(self, patience: float = 90.0) -> Any:
        """What came of it; raises `Refused` if it raised."""
        answer = json.loads(self._line(time.monotonic() + patience))
        if "error" in answer:
            raise Refused(answer["error"], answer["text"])
        return answer["ok"]

    def _line(self, deadline: float) -> bytes:
        while b"\n" not in self._heard:
            self._strings.settimeout(max(0.001, deadline - time.monotonic()))
            data = self._strings.recv(65536)
            assert data, f"the puppet died: {self._errors.read_text()[-4000:]}"
            self._heard += data
        line, _, self._heard = self._heard.partition(b"\n")
        return line

    def kill(self) -> None:
        """kill -9, and returns when it is gone."""
        if self._strings.fileno() < 0:
            return
        os.kill(self.pid, signal.SIGKILL)
        with self._strings:
            self._strings.settimeout(30)
            try:
                while self._strings.recv(65536):
                    pass
            except ConnectionResetError:
                pass  # it died with words unread

    def freeze(self) -> None:
        """SIGSTOP, and returns when it stands still."""
        os.kill(self.pid, signal.SIGSTOP)
        status = Path(f"/proc/{self.pid}/stat")
        while status.read_text().rpartition(") ")[2][0] != "T":
            time.sleep(0.001)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)


class Found(NamedTuple):
    """A record in the log."""

    partition: int
    offset: int
    key: str | None
    writer: str
    counter: int


def read_log(bootstrap: str, topic: str, *, seconds: float = 60.0) -> list[Found]:
    """Every record of every partition, ascending within each."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False, "check.crcs": True}
    )
    found: list[Found] = []
    deadline = time.monotonic() + seconds
    with closing(consumer):
        numbers = consumer.list_topics(topic, timeout=seconds).topics[topic].partitions
        places = [confluent_kafka.TopicPartition(topic, number, 0) for number in numbers]
        ends = {place.partition: consumer.get_watermark_offsets(place, timeout=seconds)[1] for place in places}
        left = {number for number, end in ends.items() if end > 0}
        consumer.assign([place for place in places if place.partition in left])
        while left:
            for message in consumer.consume(10_000, 0.2):
                assert message.error() is None, message.error()
                found.append(_found(message))
                if found[-1].offset >= ends[found[-1].partition] - 1:
                    left.discard(found[-1].partition)
            assert time.monotonic() < deadline, f"the partitions {left} of {topic} were not read in {seconds} s"
    return found


def _found(message: confluent_kafka.Message) -> Found:
    partition, offset, value = message.partition(), message.offset(), message.value()
    assert partition is not None
    assert offset is not None
    assert isinstance(value, bytes)
    writer, counter, _ = value.decode().split(":", 2)
    key = message.key()
    return Found(partition, offset, None if key is None else bytes(key).decode(), writer, int(counter))


def counters(log: Iterable[Found], writer: str) -> list[int]:
    """The numbers of a writer's records, as they lie in the log."""
    return [found.counter for found in log if found.writer == writer]


def doubles(log: Iterable[Found]) -> list[tuple[str, int]]:
    """Records that are in the log more than once."""
    return [record for record, times in Counter((f.writer, f.counter) for f in log).items() if times > 1]


def copied(spool: Path, name: str) -> Path:
    """The folder as it is at this moment, under another name beside it."""
    return Path(shutil.copytree(spool, spool.with_name(name)))
