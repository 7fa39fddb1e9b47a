"""`ottla demo`: the whole of Ottla on real brokers in a minute, with a broker and two programs killed, and a report."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ottla.cli.errors import CommandFailed
from ottla.cli.options.types import Integer
from ottla.consume.listener import Listener
from ottla.errors import OttlaError

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.cluster import LocalCluster
    from ottla.consume.consumer import Consumer
    from ottla.events.values import Event
    from ottla.model import Fingerprint, TopicPartition

TOPIC = "demo"
PARTITIONS = 6
_SLICE = 20_000
_KEPT = 20_000
"""Records of the program that is killed."""
_GROUP = "demo-readers"
_MEMBERS = 2

# A program that sends, makes sure that a kill cannot take the records away any more, and is then killed.
_VICTIM = """
import sys
import ottla
from ottla.cli.demo.command import demo_rows
bootstrap, spool, topic, first, count = sys.argv[1:]
producer = ottla.Producer(bootstrap, spool=ottla.Spool(spool, write_ahead=True))
producer.send_table(topic, demo_rows(int(first), int(count)))
producer.persist(60)
print("persisted", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class _Moved:
    """What was moved, how long that took, and what failed meanwhile."""

    fingerprint: Fingerprint
    seconds: float
    failures: int = 0
    first_failure: str | None = None
    longest_pause: float = 0.0

    def line(self, verb: str) -> str:
        count = self.fingerprint.count
        trouble = (
            f"; {self.failures} batches sent again, longest pause {self.longest_pause:.1f} s" if self.failures else ""
        )
        return f"{verb} {count:>10,} records in {self.seconds:5.1f} s ({count / self.seconds:,.0f}/s{trouble})"


@click.command()
@click.option(
    "--records", type=Integer(1000, 50_000_000), default=1_000_000, show_default=True, help="Number of records."
)
def demo(records: int) -> None:
    """Write, read, share, mirror and archive a million records on real brokers, and prove that none was lost.

    Three brokers are the edge, another one is the aggregate. On the way a broker, a producing program, a node of a
    fleet and the mirror are killed; Spark archives the topic from the aggregate; at the end an audit names a lost and a
    doubled record that counting does not find. Everything runs in a temporary folder, which is deleted at the end.

    \b
    Example:
      ottla demo --records 5000000
    """
    from ottla.cli.cluster.view import JarProgress
    from ottla.cli.demo.archive import archive_and_verify
    from ottla.cli.demo.audit import plant_and_find
    from ottla.cli.demo.fleet import share_and_kill
    from ottla.cli.demo.mirror import mirror_and_kill
    from ottla.cluster import LocalCluster

    with tempfile.TemporaryDirectory(prefix="ottla-demo-") as folder, JarProgress() as progress:
        _say("starting three brokers as the edge and one as the aggregate (Apache Kafka; its jars are fetched once)")
        started = time.monotonic()
        place = Path(folder) / "clusters"
        with (
            LocalCluster("edge", brokers=3, redis=True, dir=place, progress=progress) as edge,
            LocalCluster("aggregate", brokers=1, dir=place) as aggregate,
        ):
            _say(f"  up after {time.monotonic() - started:.1f} s at {edge.bootstrap} and {aggregate.bootstrap}")
            written, read_back, grouped = _move(edge, records, Path(folder) / "spool")
            assert edge.redis_url is not None
            shared = share_and_kill(edge.bootstrap, edge.redis_url, TOPIC, records, Path(folder) / "handled", _say)
            mirrored = mirror_and_kill(
                edge.bootstrap, aggregate.bootstrap, TOPIC, partitions=PARTITIONS, records=records, say=_say
            )
            archived = archive_and_verify(aggregate.bootstrap, TOPIC, Path(folder) / "archive", _say)
            plant_and_find(aggregate.bootstrap, TOPIC, partitions=PARTITIONS, records=records, say=_say)
    _report(records, written, read_back, grouped, shared=shared, mirrored=mirrored, archived=archived)


def _move(brokers: LocalCluster, records: int, spool: Path) -> tuple[_Moved, _Moved, int]:
    from ottla.admin import Admin
    from ottla.fetch.reader import Reader
    from ottla.net.cluster import Cluster

    with Cluster(brokers.bootstrap) as cluster, Admin(cluster) as admin, Reader(cluster) as reader:
        admin.create_topic(TOPIC, partitions=PARTITIONS, replicas=3, settings={"min.insync.replicas": "2"})
        _say(f"created topic {TOPIC}: {PARTITIONS} partitions, 3 replicas, at least 2 in sync")
        _say(f"writing {records:,} records of 100 bytes, lz4, acknowledged by all in-sync replicas")
        kept = min(_KEPT, records // 2)
        written = _write(brokers, records - kept, cluster.leader(TOPIC, 0).id)
        _kill_a_producer(brokers, spool, records - kept, kept)
        written = replace(written, fingerprint=written.fingerprint + _fingerprint(demo_rows(records - kept, kept)))
        _say("reading everything back and adding up the fingerprint")
        with _Counter(records) as counter:
            started = time.monotonic()
            seen = reader.fingerprint(TOPIC, progress=counter.show)
            read_back = _Moved(seen, time.monotonic() - started)
        return written, read_back, _read_as_group(brokers, records)


def _read_as_group(brokers: LocalCluster, records: int) -> int:
    """Read with two members of a consumer group; return the number of records they got together."""
    from ottla.consume.consumer import Consumer

    _say(f"reading it once more as consumer group {_GROUP}, whose {_MEMBERS} members share the partitions")
    counts: Counter[int] = Counter()
    shares: dict[int, int] = {}
    failed: list[OttlaError] = []

    def run(member: int) -> None:
        try:
            with Consumer(
                brokers.bootstrap, group=_GROUP, topics=[TOPIC], columns=("value",), listener=_PauseFirst()
            ) as consumer:
                while counts.total() < records and not failed:
                    batch = consumer.poll(0.2)
                    counts[member] += 0 if batch is None else batch.num_rows
                    shares[member] = len(consumer.assignment)
                    if consumer.paused and len(shares) == _MEMBERS and all(shares.values()):
                        consumer.resume(*consumer.paused)
        except OttlaError as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(member,)) for member in range(1, _MEMBERS + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    for member, count in sorted(counts.items()):
        _say(f"  member {member}: {count:,} records of {shares[member]} partitions")
    return counts.total()


class _PauseFirst(Listener):
    """Pauses partitions until every member has some: else the first would finish before the second has joined."""

    def assigned(self, consumer: Consumer, partitions: frozenset[TopicPartition]) -> None:
        consumer.pause(*partitions)


def _write(brokers: LocalCluster, count: int, victim: int) -> _Moved:
    """Send the rows with a producer, and kill a leader when 40 % of them are written."""
    from ottla.model import Fingerprint
    from ottla.produce.options import Batching
    from ottla.produce.producer import Producer

    watch = _Watch()
    total = Fingerprint()
    killed = False
    started = time.monotonic()
    with (
        _Counter(count) as counter,
        Producer(brokers.bootstrap, compression="lz4", batching=Batching(bytes=256 << 10), events=[watch]) as producer,
    ):
        for first in range(0, count, _SLICE):
            rows = demo_rows(first, min(_SLICE, count - first))
            total += _fingerprint(rows)
            is_time = not killed and first >= count * 0.4
            if is_time:
                producer.flush()  # so that the kill does not come before anything was written
            producer.send_table(TOPIC, rows)
            if is_time:
                killed = True
                brokers.kill(victim)
                counter.note(f"  broker {victim}, a leader, killed with SIGKILL: {watch.records:,} acknowledged so far")
            counter.show(watch.records)
        producer.flush()
    seconds = time.monotonic() - started
    return _Moved(total, seconds, watch.failures, watch.first_failure, watch.longest_pause)


def _kill_a_producer(brokers: LocalCluster, spool: Path, first: int, count: int) -> None:
    """Kill a program with a write-ahead spool; another producer on the same spool delivers what it left."""
    from ottla.produce.options import Spool
    from ottla.produce.producer import Producer

    command = [sys.executable, "-c", _VICTIM, brokers.bootstrap, str(spool), TOPIC, str(first), str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:  # noqa: S603  # our own code
        assert program.stdout is not None
        persisted = program.stdout.readline().strip()
        program.kill()
    if persisted != "persisted":
        raise CommandFailed("the program that was to be killed did not get its records onto the disk")
    _say(f"  a program with a spool killed with SIGKILL right after persist() of {count:,} records")
    with Producer(brokers.bootstrap, spool=Spool(spool, write_ahead=True)) as producer:
        producer.flush(120)
    _say("  another producer on its spool has delivered what was not there yet")


def demo_rows(first: int, count: int) -> pa.Table:
    """Return records of 100 bytes with a key for every user and a unique value."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = np.arange(first, first + count)
    users = pc.binary_join_element_wise("user-", pc.cast(pa.array(numbers % 10_000), pa.string()), "")
    text = pc.binary_join_element_wise("click ", pc.cast(pa.array(numbers), pa.string()), "")
    return pa.table({"key": users, "value": pc.utf8_rpad(text, 90, padding=".")})


def _fingerprint(rows: pa.Table) -> Fingerprint:
    from ottla.wire.columns import from_arrow
    from ottla.wire.encode import fingerprint_of

    return fingerprint_of(from_arrow(rows.column("value"), key=rows.column("key")))


def _report(
    records: int,
    written: _Moved,
    read_back: _Moved,
    grouped: int,
    *,
    shared: Fingerprint,
    mirrored: Fingerprint,
    archived: Fingerprint,
) -> None:
    sent, seen = written.fingerprint, read_back.fingerprint
    _say("")
    _say(written.line("wrote"))
    _say(read_back.line("read "))
    if written.first_failure:
        _say(f"first failure on the way: {written.first_failure}")
    _say(f"fingerprint written  {sent}")
    _say(f"fingerprint read     {seen}")
    _say(f"fingerprint handled  {shared}")
    _say(f"fingerprint mirrored {mirrored}")
    _say(f"fingerprint archived {archived}")
    if not (sent == seen and sent.count == records):
        raise CommandFailed(f"the log differs from what was written: {seen.count - sent.count:+,} records")
    if archived != seen:
        raise CommandFailed(f"the archive differs from the log: {archived.count - seen.count:+,} records")
    if shared != seen:
        raise CommandFailed(
            f"the fleet handled something else than the log has: {shared.count - seen.count:+,} records"
        )
    if mirrored != seen:
        raise CommandFailed(f"the mirror differs from the log: {mirrored.count - seen.count:+,} records")
    _say("equal: every record is in both logs and in the archive exactly once, and was handled by the fleet")
    if grouped != records:
        raise CommandFailed(f"the group read {grouped:,} records, not {records:,}")
    _say(f"the members of group {_GROUP} read each of them once")
    _say("")
    _say("what to try next:")
    command = sys.argv[0] if sys.argv[0].endswith("/ottla") else "ottla"
    _say(f"  {command} cluster up --brokers 3 --topic clicks:6")
    _say(f"  echo hello | {command} produce clicks")
    _say(f"  {command} consume clicks --until latest")
    _say(f"  {command} topics describe clicks")
    _say(f"  {command} archive clicks --to clicks-archive")
    _say(f"  {command} mirror --help")
    _say(f"  {command} audit --help")
    _say("  README.md, DESIGN.md and docs/ say how it works")


class _Watch:
    """Counts acknowledged records and failures, and measures the longest pause between two successes."""

    def __init__(self) -> None:
        self.records = 0
        self.failures = 0
        self.first_failure: str | None = None
        self.longest_pause = 0.0
        self._last = time.monotonic()
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        from ottla.events.values import ConnectionDown, FlushAcknowledged, FlushRetried

        with self._lock:
            if isinstance(event, FlushAcknowledged):
                now = time.monotonic()
                self.longest_pause = max(self.longest_pause, now - self._last)
                self._last = now
                self.records += event.records
            elif isinstance(event, FlushRetried):
                self.failures += 1
            elif isinstance(event, ConnectionDown):
                self.first_failure = self.first_failure or f"{event.address}: {event.reason}"


class _Counter:
    """Shows the number of records on a terminal, nothing elsewhere."""

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
