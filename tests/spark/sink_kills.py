"""Kills a query that writes with the exactly-once sink, repeatedly, and counts what arrived.

    python -m tests.spark.sink_kills --kills 20

The victim varies: the driver with all its processes, its JVM, or a Python worker. Or the workers are frozen, the JVM is
killed, and the workers wake up while the next driver works.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pyarrow as pa

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.fetch.reader import Reader
from ottla.produce.producer import Producer

_RECORDS_PER_BATCH = 90
_BATCHES_PER_KILL = 4
_START_SECONDS = 120.0


@dataclass
class Report:
    """The kills, and what readers found afterwards."""

    kills: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    missing: int = 0
    doubled: int = 0
    records: int = 0
    same_fingerprint: bool = False

    @property
    def good(self) -> bool:
        return self.same_fingerprint and not self.missing and not self.doubled


class Life:
    """One run of the query."""

    def __init__(self, arguments: list[str], said: Path) -> None:
        self._said = said
        with said.open("w") as out, said.with_suffix(".err").open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.sink_query", *arguments],
                stdout=out,
                stderr=err,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def batches(self) -> int:
        return self._said.read_text().count("batch ")

    def await_batch(self) -> bool:
        """Wait for the first batch of this run; False if it ended without one."""
        deadline = time.monotonic() + _START_SECONDS
        while self.process.poll() is None and self.batches() == 0:
            assert time.monotonic() < deadline, "the query does not start"
            time.sleep(0.02)
        return self.process.poll() is None

    def family(self) -> list[psutil.Process]:
        try:
            return list(psutil.Process(self.process.pid).children(recursive=True))
        except psutil.NoSuchProcess:
            return []

    def jvm(self) -> list[psutil.Process]:
        return [member for member in self.family() if _name(member) == "java"]

    def workers(self) -> list[psutil.Process]:
        return [child for jvm in self.jvm() for child in jvm.children(recursive=True) if "python" in _name(child)]

    def end(self) -> None:
        """Kill everything except frozen processes."""
        everything = self.family()
        self.process.kill()
        self.process.wait()
        for member in everything:
            if _status(member) != psutil.STATUS_STOPPED:
                _send(member, signal.SIGKILL)


def run(bootstrap: str, folder: Path, *, kills: int, chance: random.Random, tag: str = "kills") -> Report:
    """Kill `kills` times, then let it finish; report what readers of committed data find."""
    source, target = f"sink-{tag}-from", f"sink-{tag}-to"
    records = _RECORDS_PER_BATCH * _BATCHES_PER_KILL * (kills + 1)
    _fill(bootstrap, source, target, records)
    arguments = [bootstrap, source, target, str(folder / "checkpoint"), str(_RECORDS_PER_BATCH)]
    report = Report(records=records)
    with _Frozen() as frozen:
        _live_and_die(arguments, folder, report, frozen, kills=kills, chance=chance)
    return _compare(bootstrap, source, target, report)


class _Frozen:
    """Frozen processes; none outlives the block."""

    def __init__(self) -> None:
        self._held: list[psutil.Process] = []

    def __enter__(self) -> _Frozen:
        return self

    def __exit__(self, *error: object) -> None:
        self.wake()

    def freeze(self, processes: list[psutil.Process]) -> None:
        """Stop the processes."""
        self._held += processes
        for member in processes:
            _send(member, signal.SIGSTOP)

    def wake(self) -> None:
        """Let them continue for a moment, until they notice that their JVM is gone."""
        for member in self._held:
            _send(member, signal.SIGCONT)
        _, left = psutil.wait_procs(self._held, timeout=5.0)
        for member in left:
            _send(member, signal.SIGKILL)
        self._held.clear()


def _live_and_die(
    arguments: list[str], folder: Path, report: Report, frozen: _Frozen, *, kills: int, chance: random.Random
) -> None:
    kinds = ["driver", "worker", "frozen workers", "jvm"]
    deadline = time.monotonic() + 60.0 * (kills + 2)
    while True:
        assert time.monotonic() < deadline, f"it takes too long: {report}"
        life = Life(arguments, folder / f"life-{report.starts}.txt")
        report.starts += 1
        try:
            if life.await_batch() and report.kills.total() < kills:
                frozen.wake()
                time.sleep(chance.uniform(0.0, 1.0))
                kind = kinds[report.kills.total() % len(kinds)]
                _kill(life, kind, chance, frozen)
                report.kills[kind] += 1
                print(f"life {report.starts}: {kind} killed after {life.batches()} batches", flush=True)
                if kind == "worker":
                    continue_to = chance.uniform(0.5, 1.5)  # the driver retries, or gives up
                    _wait(life.process, continue_to)
                continue
            if life.process.wait(_START_SECONDS) == 0:
                return
        finally:
            life.end()


def _kill(life: Life, kind: str, chance: random.Random, frozen: _Frozen) -> None:
    workers = life.workers()
    if kind == "driver":
        for member in [psutil.Process(life.process.pid), *life.family()]:
            _send(member, signal.SIGKILL)
    elif kind == "jvm":
        for member in life.jvm():
            _send(member, signal.SIGKILL)
    elif kind == "worker":
        _send(chance.choice(workers), signal.SIGKILL)
    else:
        frozen.freeze(workers)
        for member in life.jvm():
            _send(member, signal.SIGKILL)


def _fill(bootstrap: str, source: str, target: str, records: int) -> None:
    with Admin(bootstrap) as admin:
        admin.create_topic(source, partitions=2)
        admin.create_topic(target, partitions=3)
    values = pa.array([f"value {number}" for number in range(records)])
    keys = pa.array([f"{number}" for number in range(records)])
    with Producer(bootstrap) as producer:
        producer.send_table(source, pa.table({"key": keys, "value": values})).result()


def _compare(bootstrap: str, source: str, target: str, report: Report) -> Report:
    arrived: Counter[bytes] = Counter()
    with Reader(bootstrap, isolation="read_committed") as reader:
        for batch in reader.read(target, columns=("value",)):
            arrived.update(batch.column("value").to_pylist())
        report.same_fingerprint = reader.fingerprint(source) == reader.fingerprint(target)
    expected = {f"value {number}".encode() for number in range(report.records)}
    report.missing = len(expected - arrived.keys())
    report.doubled = sum(count - 1 for count in arrived.values())
    return report


def _send(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        pass


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return ""


def _status(process: psutil.Process) -> str:
    try:
        return str(process.status())
    except psutil.Error:
        return ""


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        pass


@contextmanager
def _broker(folder: Path) -> Iterator[str]:
    with LocalCluster("sink-kills", brokers=1, dir=folder) as cluster:
        yield cluster.bootstrap


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing is left behind
    seed = given.seed if given.seed is not None else int.from_bytes(os.urandom(4))
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder, _broker(Path(folder)) as bootstrap:
        report = run(bootstrap, Path(folder), kills=given.kills, chance=random.Random(seed))
    print(report)
    print("every record exactly once" if report.good else "NOT every record exactly once")
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
