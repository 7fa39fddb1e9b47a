"""Programs with a producer that are controlled over a socket, and may be killed at any moment.

One JSON object per line comes in, one per line goes out: the result, or the error. What must be known after a kill
(which records were persisted) is appended to a file, since an answer that was never read proves nothing. The programs
are forked from one that has imported everything, so that each costs only a fork.
"""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ottla.config import Timeouts
from ottla.errors import KeptInSpool, OttlaError
from ottla.events import Dropped, Event, SpoolDamaged
from ottla.events import SpoolFailed as SpoolFailedEvent
from ottla.events import SpoolFull as SpoolFullEvent
from ottla.events.values import fields_of
from ottla.produce import lane
from ottla.produce.delivery import Delivery
from ottla.produce.options import Batching, Buffering, Spool, WhenFull
from ottla.produce.producer import Producer
from ottla.wire.warm import warm

_NOTED = (SpoolDamaged, SpoolFailedEvent, SpoolFullEvent, Dropped)
_KEYS = 4


def value_of(writer: str, counter: int, size: int) -> bytes:
    """The value of a writer's record with this number."""
    return f"{writer}:{counter}:".encode().ljust(size, b".")


class Puppet:
    """The commands, one method each."""

    def __init__(self) -> None:
        self._producer: Producer | None = None
        self._deliveries: list[Delivery] = []
        self._events: list[dict[str, Any]] = []
        self._fdatasync = Failing("fdatasync")
        self._rename = Failing("rename")

    def open(
        self, *, bootstrap: str, spool: dict[str, Any], buffer: int = 64 << 20, wait: float = 60.0, **more: Any
    ) -> int:
        """Create the producer. `more` are options of `Batching`, and `timeout` in seconds for requests."""
        timeout = more.pop("timeout", 5.0)
        lane.CHECK_AFTER = more.pop("check_after", lane.CHECK_AFTER)
        if "when_full" in spool:
            spool["when_full"] = WhenFull[spool["when_full"]]
        self._producer = Producer(
            bootstrap,
            spool=Spool(**spool),
            buffering=Buffering(bytes=buffer, wait=wait),
            batching=Batching(**more),
            timeouts=Timeouts(connect=timeout, request=timeout),
            events=[self._note],
        )
        return os.getpid()

    def send(
        self,
        *,
        topic: str,
        writer: str,
        start: int,
        count: int,
        key: str | None = None,
        size: int = 0,
        partition: int | None = None,
        batches: bool = False,
    ) -> int:
        """Send numbered records. With `batches` each is its own batch, on disk if there is write-ahead."""
        for number in range(start, start + count):
            value = value_of(writer, number, size)
            self._deliveries.append(self.producer.send(topic, value, key, partition=partition))
            if batches:
                self.producer.persist(30)
        return count

    def send_until_refused(self, *, topic: str, writer: str, most: int, size: int) -> tuple[int, str]:
        """Send numbered records until a send raises. Returns how many were accepted, and the error."""
        for number in range(most):
            try:
                self._deliveries.append(self.producer.send(topic, value_of(writer, number, size)))
            except OttlaError as error:
                return number, f"{type(error).__name__}: {error}"
        return most, ""

    @property
    def producer(self) -> Producer:
        """The open producer."""
        assert self._producer is not None
        return self._producer

    def persist(self, *, timeout: float = 30.0) -> float:
        """Persist. Returns how long it took."""
        started = time.monotonic()
        self.producer.persist(timeout)
        return time.monotonic() - started

    def flush(self, *, timeout: float = 60.0) -> None:
        """Wait for everything."""
        self.producer.flush(timeout)

    def close(self, *, timeout: float | None = None) -> None:
        """Close the producer."""
        self.producer.close(timeout)

    def outcomes(self) -> dict[str, int]:
        """The outcomes of the records that were sent."""
        return Counter(map(_outcome, self._deliveries))

    def events(self) -> list[dict[str, Any]]:
        """The events about the spool."""
        return self._events

    def offsets(self, *, timeout: float = 30.0) -> list[tuple[int, int]]:
        """Partition and offset of each record that was sent."""
        return [(sent.partition, sent.offset) for sent in (delivery.result(timeout) for delivery in self._deliveries)]

    def memory(self) -> int:
        """The peak resident memory in bytes."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def storm(self, *, topic: str, life: int, threads: int, notes: str) -> None:
        """Start threads that send forever; another one persists now and then and notes what can no longer be lost."""
        storm = Storm(self.producer, topic, life=life, threads=threads)
        storm.begin(notes)

    def fail_fdatasync(self, *, times: int, then_limit: int | None = None) -> None:
        """Make the next `times` calls fail. From then on no file may be longer than `then_limit`."""
        self._fdatasync.failing = times
        self._fdatasync.failed = lambda: None if then_limit is None else self.limit_files(size=then_limit)

    def fdatasyncs(self) -> int:
        """The number of calls, failed ones included."""
        return self._fdatasync.calls

    def fail_renames(self, *, times: int) -> None:
        """Make the next `times` calls fail."""
        self._rename.failing = times

    def limit_files(self, *, size: int | None) -> None:
        """Limit the size of files: what is written beyond it is cut short and then refused."""
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard if size is None else size, hard))

    def _note(self, event: Event) -> None:
        if isinstance(event, _NOTED):
            self._events.append({"kind": event.kind, **fields_of(event)})


def _outcome(delivery: Delivery) -> str:
    if not delivery.done:
        return "open"
    error = delivery.exception(0)
    return "delivered" if error is None else "kept" if isinstance(error, KeptInSpool) else "failed"


class Failing:
    """Replaces a function of `os`: counts its calls, and fails on demand like a disk."""

    def __init__(self, name: str) -> None:
        self.calls = 0
        self.failing = 0
        self.failed: Callable[[], None] = lambda: None
        self._real: Callable[..., None] = getattr(os, name)
        setattr(os, name, self)

    def __call__(self, *arguments: Any) -> None:
        self.calls += 1
        if self.failing:
            self.failing -= 1
            self.failed()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._real(*arguments)


class Storm:
    """Threads that send numbered records, keyed and unkeyed, until the process ends."""

    def __init__(self, producer: Producer, topic: str, *, life: int, threads: int) -> None:
        self._producer = producer
        self._topic = topic
        self._life = life
        self._sent = [0] * threads

    def begin(self, notes: str) -> None:
        """Start the threads."""
        for number in range(len(self._sent)):
            threading.Thread(target=self._send, args=(number,), daemon=True).start()
        threading.Thread(target=self._persist, args=(notes,), daemon=True).start()

    def _send(self, thread: int) -> None:
        chance = random.Random(self._life * 100 + thread)
        while True:
            for _ in range(chance.randrange(1, 60)):
                number = self._sent[thread]
                key = None if number % 3 == 0 else f"{thread}-{number % _KEYS}"
                value = value_of(f"{self._life}.{thread}", number, chance.randrange(20, 300))
                self._producer.send(self._topic, value, key)
                self._sent[thread] = number + 1
            time.sleep(chance.random() * 0.004)

    def _persist(self, notes: str) -> None:
        chance = random.Random(self._life)
        while True:
            sent = list(self._sent)
            self._producer.persist(60)
            # One write, so that a killed process leaves the whole line or nothing.
            with Path(notes).open("ab", buffering=0) as file:
                file.write(json.dumps({"life": self._life, "persisted": sent}).encode() + b"\n")
            time.sleep(chance.random() * 0.05)


def serve(address: str) -> None:
    """Fork a puppet for each connection, until standard input ends."""
    warm()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps the children
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        os.write(1, b"ready\n")
        while listener.fileno() in select.select([listener.fileno(), 0], [], [])[0]:
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    listener.close()
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    obey(connection)
                    return


def obey(connection: socket.socket) -> None:
    """Execute one command after the other, until the other end disconnects."""
    puppet = Puppet()
    with connection.makefile("rw", encoding="utf-8") as file:

        def answer(message: dict[str, Any]) -> None:
            file.write(json.dumps(message) + "\n")
            file.flush()

        answer({"ok": os.getpid()})
        for line in file:
            command = json.loads(line)
            try:
                answer({"ok": getattr(puppet, command.pop("do"))(**command)})
            except (OttlaError, TimeoutError) as error:
                answer({"error": type(error).__name__, "text": str(error)})


if __name__ == "__main__":
    serve(sys.argv[1])
