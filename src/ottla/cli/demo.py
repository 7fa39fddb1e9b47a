"""`ottla demo`: the whole of Ottla on real brokers in a minute, with a broker killed on the way, and a report."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.admin import Admin, OffsetSpec
from ottla.cli import Failure
from ottla.cli.moving import Moved, read, write
from ottla.cli.reporting import JarProgress
from ottla.cluster import LocalCluster
from ottla.model import OffsetRange, TopicPartition
from ottla.net.cluster import Cluster
from ottla.wire.batch import Codec
from ottla.wire.columns import Columns, from_arrow
from ottla.wire.encode import BatchLimits, NewBatch, encode

TOPIC = "demo"
PARTITIONS = 6


@dataclass(frozen=True, slots=True)
class _Timed:
    moved: Moved
    seconds: float

    def line(self, verb: str) -> str:
        count, pause = self.moved.fingerprint.count, self.moved.longest_pause
        return (
            f"{verb} {count:>10,} records in {self.seconds:5.1f} s ({count / self.seconds:,.0f}/s;"
            f" failures on the way: {self.moved.failures}, longest pause {pause:.1f} s)"
        )


@click.command()
@click.option(
    "--records", type=click.IntRange(1000, 50_000_000), default=1_000_000, show_default=True, help="How many to move."
)
def demo(records: int) -> None:
    """Write and read a million records on three real brokers, kill one on the way, and prove that none was lost.

    Everything runs in a temporary folder and is gone at the end.

    \b
    Example:
      ottla demo --records 5000000
    """
    with tempfile.TemporaryDirectory(prefix="ottla-demo-") as folder, JarProgress() as progress:
        _say("starting three brokers (Apache Kafka, KRaft; the first time, its jars are fetched)")
        started = time.monotonic()
        with LocalCluster("demo", brokers=3, dir=folder, progress=progress) as brokers:
            _say(f"  up after {time.monotonic() - started:.1f} s at {brokers.bootstrap}")
            written, read_back = _move(brokers, records)
    _report(records, written, read_back)


def _move(brokers: LocalCluster, records: int) -> tuple[_Timed, _Timed]:
    with Cluster(brokers.bootstrap) as cluster, Admin(cluster) as admin:
        admin.create_topic(TOPIC, partitions=PARTITIONS, replicas=3, settings={"min.insync.replicas": "2"})
        _say(f"created topic {TOPIC}: {PARTITIONS} partitions, 3 replicas, at least 2 in sync")
        _say(f"writing {records:,} records of 100 bytes, lz4, acknowledged by all in-sync replicas")
        victim = cluster.leader(TOPIC, 0).id
        columns = _rows(records)
        written = _timed_write(cluster, brokers, columns, victim)
        _say("reading everything back and adding up the fingerprint")
        ranges = _everything(admin)
        with _Counter(records) as counter:
            started = time.monotonic()
            moved = read(cluster, ranges, progress=counter.show)
            return written, _Timed(moved, time.monotonic() - started)


def _timed_write(cluster: Cluster, brokers: LocalCluster, columns: Columns, victim: int) -> _Timed:
    killed = False
    with _Counter(columns.count) as counter:

        def progress(done: int) -> None:
            nonlocal killed
            if not killed and done >= columns.count * 0.4:
                killed = True
                brokers.kill(victim)
                counter.note(f"  broker {victim}, a leader, killed with SIGKILL after {done:,} records")
            counter.show(done)

        batches = {p: _batches(columns, p) for p in range(PARTITIONS)}
        started = time.monotonic()
        moved = write(cluster, TOPIC, batches, progress=progress)
        return _Timed(moved, time.monotonic() - started)


def _rows(count: int) -> Columns:
    """Records of 100 bytes: a key for every user, a value that no other record has."""
    numbers = pa.array(np.arange(count))
    users = pc.binary_join_element_wise("user-", pc.cast(pa.array(np.arange(count) % 10_000), pa.string()), "")
    text = pc.binary_join_element_wise("click ", pc.cast(numbers, pa.string()), "")
    return from_arrow(pc.utf8_rpad(text, 90, padding="."), key=users)


def _batches(columns: Columns, partition: int) -> Iterator[NewBatch]:
    rows = np.arange(partition, columns.count, PARTITIONS, dtype=np.int64)
    now_ms = int(time.time() * 1000)
    limits = BatchLimits(max_bytes=256 << 10)
    return encode(columns, now_ms=now_ms, codec=Codec.LZ4, limits=limits, rows=rows, fingerprint=True)


def _everything(admin: Admin) -> list[OffsetRange]:
    partitions = [TopicPartition(TOPIC, p) for p in range(PARTITIONS)]
    first = admin.list_offsets(partitions, OffsetSpec.EARLIEST)
    last = admin.list_offsets(partitions, OffsetSpec.LATEST)
    return [OffsetRange(tp.topic, tp.partition, first[tp].offset, last[tp].offset) for tp in partitions]


def _report(records: int, written: _Timed, read_back: _Timed) -> None:
    sent, seen = written.moved.fingerprint, read_back.moved.fingerprint
    _say("")
    _say(written.line("wrote"))
    _say(read_back.line("read "))
    if written.moved.first_failure:
        _say(f"first failure on the way: {written.moved.first_failure}")
    _say(f"fingerprint written  {sent}")
    _say(f"fingerprint read     {seen}")
    if not (sent == seen and sent.count == records):
        raise Failure(f"the log differs from what was written: {seen.count - sent.count:+,} records")
    _say("equal: every record is in the log exactly once")
    _say("")
    _say("how to go on:")
    command = sys.argv[0] if sys.argv[0].endswith("/ottla") else "ottla"
    _say(f"  {command} cluster up --brokers 3 --topic clicks:6")
    _say(f"  {command} topics describe clicks")
    _say(f"  {command} --help")
    _say("  README.md, DESIGN.md and docs/ say how it works")


class _Counter:
    """How many records have been moved: a line that moves on a terminal, nothing elsewhere."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._terminal = sys.stderr.isatty()
        self._shown = False

    def __enter__(self) -> _Counter:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def show(self, done: int) -> None:
        if self._terminal:
            self._shown = True
            click.echo(f"\r  {done:>12,} of {self._total:,} ", nl=False, err=True)

    def note(self, text: str) -> None:
        self._clear()
        _say(text)

    def _clear(self) -> None:
        if self._shown:
            click.echo("\r" + " " * 40 + "\r", nl=False, err=True)


def _say(text: str) -> None:
    click.echo(text)
