"""Workers of a fleet for tests, as programs of their own, and the lines in which they tell what they did.

A topic whose values are its offsets comes in. `python -m tests.engines.fleet.crew JOB` is one worker; it appends a line
for each unit when that is handled, and another one with what the store made of it.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tests.waiting import eventually

from ottla.config import Retry, Timeouts
from ottla.engines.fleet.fleet import Fleet
from ottla.engines.fleet.planning import Units
from ottla.engines.fleet.unit import Unit
from ottla.engines.fleet.units import Charter
from ottla.events.values import Event, fields_of
from ottla.model import OffsetRange
from ottla.produce.options import Batching
from ottla.produce.producer import Producer

ROOT = Path(__file__).parents[3]
QUICK = Retry(initial=0.01, maximum=0.2)
TIMES = Timeouts(connect=3.0, request=5.0, total=20.0)
SHORT = Charter(lease_seconds=1.0)
_AT_ONCE = 60_000
_HOST = "127.0.0.1"


# Topics whose records tell their place


def write(bootstrap: str, topic: str, count: int, *, partitions: int = 1, first: int = 0) -> None:
    """Send `count` records to each partition. The value of each is its offset, if the first record gets `first`."""
    with Producer(bootstrap, batching=Batching(bytes=64_000, linger=0.05)) as producer:
        for begin in range(first, first + count, _AT_ONCE):
            numbers = np.arange(begin, min(begin + _AT_ONCE, first + count))
            for partition in range(partitions):
                values = pc.cast(pc.cast(pa.array(numbers), pa.string()), pa.binary())
                where = pa.array(np.full(len(numbers), partition, np.int32))
                producer.send_table(topic, pa.table({"value": values, "partition": where}))
        producer.flush(60)


class Handled(NamedTuple):
    """What a worker has read of a unit, and what became of it."""

    range: OffsetRange
    attempt: int
    fence: int
    pid: int
    first: int
    last: int
    records: int
    total: int
    """The sum of the values."""
    ending: str = ""
    """Empty if the worker did not live to tell."""

    @property
    def is_whole(self) -> bool:
        """Whether each record of the range was there once; a log without gaps."""
        start, stop = self.range.start, self.range.stop
        expected = (start, stop - 1, stop - start, (start + stop - 1) * (stop - start) // 2)
        return (self.first, self.last, self.records, self.total) == expected


def handle(unit: Unit) -> Handled:
    """Reads all of a unit."""
    first, last, count, total = -1, -1, 0, 0
    for batch in unit.read(("offset", "value")):
        offsets = batch.column("offset")
        first = offsets[0].as_py() if first < 0 else first
        last = offsets[-1].as_py()
        count += len(batch)
        total += pc.sum(pc.cast(pc.cast(batch.column("value"), pa.string()), pa.int64())).as_py()
    return Handled(unit.range, unit.attempt, unit.fence, os.getpid(), first, last, count, total)


def new_fleet(bootstrap: str, group: str, store: str, **options: Any) -> Fleet:
    """With short times."""
    given: dict[str, Any] = {"start": "earliest", "charter": SHORT, "retry": QUICK, "timeouts": TIMES} | options
    return Fleet(bootstrap, group=group, store=store, **given)


# Lines


def read_lines(path: Path) -> list[Handled]:
    """What all workers have handled, in the order in which they were ready."""
    handled: list[Handled] = []
    newest: dict[tuple[OffsetRange, int, int], int] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        fields = json.loads(line)
        unit = OffsetRange(*fields.pop("range"))
        key = (unit, fields["fence"], fields["pid"])
        if "ending" not in fields:
            newest[key] = len(handled)
            handled.append(Handled(unit, **fields))
        elif key in newest:
            handled[newest[key]] = handled[newest[key]]._replace(ending=fields["ending"])
    return handled


def missing(handled: list[Handled], ends: dict[tuple[str, int], int]) -> list[OffsetRange]:
    """Return the ranges that no worker has handled, of partitions from offset 0 to their ends."""
    holes = []
    for (topic, partition), end in ends.items():
        position = 0
        for unit in sorted(
            entry.range for entry in handled if entry.range.topic == topic and entry.range.partition == partition
        ):
            if unit.start > position:
                holes.append(OffsetRange(topic, partition, position, unit.start))
            position = max(position, unit.stop)
        if position < end:
            holes.append(OffsetRange(topic, partition, position, end))
    return holes


def repeated(handled: list[Handled]) -> list[list[Handled]]:
    """Units that were handled more than once, each with its attempts in the order of their leases."""
    by_unit: dict[OffsetRange, list[Handled]] = {}
    for entry in sorted(handled, key=lambda entry: entry.fence):
        by_unit.setdefault(entry.range, []).append(entry)
    return [attempts for attempts in by_unit.values() if len(attempts) > 1]


def out_of_order(handled: list[Handled]) -> list[Handled]:
    """Units that were accepted and handled after one that lies behind them."""
    furthest: dict[tuple[str, int], int] = {}
    wrong = []
    for entry in handled:
        if entry.ending != "done":
            continue
        partition = (entry.range.topic, entry.range.partition)
        if entry.range.start < furthest.get(partition, 0):
            wrong.append(entry)
        furthest[partition] = max(furthest.get(partition, 0), entry.range.stop)
    return wrong


# One worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The settings of a worker."""

    bootstrap: str
    group: str
    store: str
    path: str
    topics: tuple[str, ...] = ()
    ordered: bool = False
    lease_seconds: float = 2.0
    unit_records: int = 5000
    backlog: int = 40
    work_seconds: float = 0.0
    """Of each unit, beyond reading it."""
    freezes: bool = False
    """Whether it stops its own process after handling its first unit, before reporting it."""
    until_end: bool = False


def work(job: Job) -> None:
    """Handles units until SIGTERM."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(process)d %(message)s")
    out = os.open(job.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    fleet = new_fleet(
        job.bootstrap,
        job.group,
        job.store,
        topics=job.topics,
        charter=Charter(ordered=job.ordered, lease_seconds=job.lease_seconds, max_attempts=20),
        units=Units(records=job.unit_records, backlog=job.backlog),
        events=[_event_teller(job.path)],
    )
    signal.signal(signal.SIGTERM, lambda *_: fleet.stop())
    chance = random.Random()
    freezes = job.freezes
    with fleet:
        for unit in fleet.units(until_end=job.until_end):
            try:
                with unit:
                    handled = handle(unit)
                    time.sleep(job.work_seconds * (0.5 + chance.random()))
                    _tell(out, {**handled._asdict(), "range": _words(unit.range)}, "ending")
                    if freezes:
                        freezes = False
                        os.kill(os.getpid(), signal.SIGSTOP)
            except Exception as error:
                print(f"{unit}: {error!r}", file=sys.stderr)
            if unit.ending is not None:
                _tell(
                    out,
                    {"range": _words(unit.range), "fence": unit.fence, "pid": os.getpid(), "ending": unit.ending.value},
                )


def _words(unit: OffsetRange) -> list[str | int]:
    return [unit.topic, unit.partition, unit.start, unit.stop]


def _tell(out: int, fields: dict[str, Any], *without: str) -> None:
    line = json.dumps({name: value for name, value in fields.items() if name not in without})
    os.write(out, line.encode() + b"\n")


def _event_teller(path: str) -> Callable[[Event], None]:
    out = os.open(f"{path}.events", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    kinds = ("UnitReclaimed", "PlannerChanged", "StoreDown", "StoreUp", "StoreWentBack", "PositionMisplaced")

    def tell(event: Event) -> None:
        kind = type(event).__name__
        if kind in kinds:
            _tell(out, {"event": kind, "pid": os.getpid(), **fields_of(event)})

    return tell


def read_events(path: Path) -> list[dict[str, Any]]:
    """Read the events of the workers."""
    events = Path(f"{path}.events")
    return [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []


# Many workers


class Worker:
    """A process."""

    def __init__(self, job: Job) -> None:
        self.job = job
        command = [sys.executable, "-m", "tests.engines.fleet.crew", json.dumps(asdict(job))]
        with open(f"{job.path}.log", "ab") as log:
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        self.pid = self._process.pid

    @property
    def is_alive(self) -> bool:
        """Or frozen."""
        return self._process.poll() is None

    @property
    def is_frozen(self) -> bool:
        """Whether it was stopped by a signal."""
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"

    def signal(self, number: signal.Signals) -> None:
        """To this process alone."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """With SIGKILL."""
        self._process.kill()
        self._process.wait(10)

    def stop(self) -> int:
        """With SIGTERM, on which it gives back what it has; its exit code."""
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        return self._process.wait(30)


class Cable:
    """Between a worker and a server. It can be cut, and mended."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listener = socket.create_server((_HOST, 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._is_cut = False
        self._ends: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, name=f"cable-{self.port}", daemon=True)]

    def __enter__(self) -> Cable:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)

    def cut(self) -> None:
        """Every connection ends, and no new one gets through."""
        with self._lock:
            self._is_cut = True
            for end in self._ends:
                _shut(end)

    def mend(self) -> None:
        """New connections get through."""
        with self._lock:
            self._is_cut = False

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection((_HOST, self._server_port), timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._lock:
                self._ends |= {client, server}
                if self._is_cut:
                    _shut(client)
                    _shut(server)
            self._threads.append(threading.Thread(target=self._serve, args=(client, server), daemon=True))
            self._threads[-1].start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        homeward = threading.Thread(target=_pump, args=(server, client), daemon=True)
        homeward.start()
        _pump(client, server)
        homeward.join()
        with self._lock:
            self._ends -= {client, server}
        client.close()
        server.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65_536):
            target.sendall(data)
    except OSError:
        pass
    _shut(target)
    _shut(source)


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


def pid_of(holder: str) -> int:
    """The process that has a lease."""
    return int(holder.partition("/")[0].rsplit("-", 2)[1])


def settled(look: Callable[[], Any], ends: dict[tuple[str, int], int], *, seconds: float = 60.0) -> None:
    """Wait until everything below these ends is done."""

    def left() -> Iterator[str]:
        states = {tuple(state.partition): state for state in look().partitions}
        for partition, end in ends.items():
            state = states.get(partition)
            if state is None or state.done < end:
                yield f"{partition} {state}"

    eventually(lambda: next(left(), None) is None, lambda: f"done: {list(left())}", seconds=seconds)


if __name__ == "__main__":
    fields = json.loads(sys.argv[1])
    work(Job(**fields | {"topics": tuple(fields["topics"])}))
