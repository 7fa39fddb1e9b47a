"""Archives of topics on real brokers: complete, equal to the log, and resumed where they stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

import confluent_kafka
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from confluent_kafka.admin import AdminClient
from tests.jobs.archived import settle
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.engines import local
from ottla.errors import InputError, OffsetsLost
from ottla.fetch.reader import Reader
from ottla.jobs import archive
from ottla.jobs.archive_plan import Cutting
from ottla.jobs.archive_range import Archived, ArchiveRange, Brokers, Stopped
from ottla.jobs.archiving import ArchiveRequest, Archiving, report
from ottla.lake.lake import Lake
from ottla.lake.layout import Format, LakeSettings
from ottla.lake.verifying import Checked, verify_brokers, verify_files
from ottla.lake.writer import FileOptions
from ottla.model import OffsetRange, TopicPartition
from ottla.net import Cluster
from ottla.produce.producer import Producer
from ottla.wire.decode import SCHEMA

pytestmark = pytest.mark.broker
_OPTIONS = FileOptions(file_bytes=1 << 16, row_group_bytes=1 << 16)


class Stand:
    """A topic and its archive."""

    def __init__(self, kafka: LocalCluster, topic: str, path: Path, **settings: object) -> None:
        self.kafka = kafka
        self.topic = topic
        self.lake = Lake.create(path, LakeSettings(**settings))  # type: ignore[arg-type]
        with Admin(kafka.bootstrap) as admin:
            admin.create_topic(topic, partitions=3)

    def produce(self, first: int, count: int) -> None:
        with Producer(self.kafka.bootstrap) as producer:
            producer.send_table(self.topic, rows(first, count))

    def archiving(self, **request: object) -> Archiving:
        job = ArchiveRange(
            brokers=Brokers(bootstrap=self.kafka.bootstrap),
            path=str(self.lake.path),
            settings=self.lake.settings,
            options=_OPTIONS,
        )
        return Archiving(
            self.lake,
            job,
            ArchiveRequest(topics=(self.topic,), **request),  # type: ignore[arg-type]
            engine=lambda job, ranges: local.run(job, ranges, workers=2),
            cutting=Cutting(file_bytes=1 << 16, workers=2),
        )

    def archive(self, **request: object) -> int:
        return sum(receipt.count for entry in self.archiving(**request).until_now() for receipt in entry.receipts)

    def findings(self) -> list[str]:
        with Reader(self.kafka.bootstrap, isolation="read_committed") as reader:
            findings = [*verify_files(self.lake, Checked(), deep=True), *verify_brokers(self.lake, reader, Checked())]
        return [str(finding) for finding in findings]

    def rows(self) -> pa.Table:
        table = ds.dataset(self.lake.path, format="parquet", partitioning="hive").to_table(columns=SCHEMA.names)
        return table.sort_by([("partition", "ascending"), ("offset", "ascending")])

    def log(self) -> pa.Table:
        with Reader(self.kafka.bootstrap, isolation="read_committed") as reader:
            batches = list(reader.read(self.topic))
        return pa.Table.from_batches(batches, SCHEMA).sort_by([("partition", "ascending"), ("offset", "ascending")])


def rows(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table(
        {
            "key": pa.array([None if n % 3 else f"user-{n % 50}".encode() for n in numbers], pa.binary()),
            "value": pa.array([None if n % 11 == 0 else f"event {n} ".encode() * 5 for n in numbers], pa.binary()),
            "headers": pa.array(
                [[{"key": "trace", "value": str(n).encode()}] if n % 4 == 0 else None for n in numbers],
                SCHEMA.field("headers").type,
            ),
        }
    )


@pytest.fixture(params=list(Format), ids=lambda form: form.value)
def form(request: pytest.FixtureRequest) -> Format:
    form: Format = request.param
    return form


def test_an_archive_equals_the_log_and_goes_on_where_it_was(kafka: LocalCluster, tmp_path: Path, form: Format) -> None:
    stand = Stand(
        kafka, f"arch-equal-{form.value}", tmp_path / "a", format=form, partition_by=("topic", "date", "hour")
    )
    stand.produce(0, 5000)
    assert stand.archive() == 5000
    assert stand.archive() == 0
    stand.produce(5000, 700)
    assert stand.archive() == 700
    assert stand.rows().equals(stand.log())
    assert stand.findings() == []
    assert stand.lake.staged() == []
    assert all(entry.topics for entry in stand.lake.ledger.entries())


def test_receipts_say_what_was_moved(kafka: LocalCluster, tmp_path: Path) -> None:
    stand = Stand(kafka, "arch-receipts", tmp_path / "a")
    before = datetime.now(UTC).timestamp()
    stand.produce(0, 300)
    (entry,) = stand.archiving().until_now()
    with Reader(kafka.bootstrap) as reader:
        for receipt in entry.receipts:
            assert receipt.fingerprint == reader.fingerprint(receipt.range)
            assert receipt.first_time is not None
            assert before - 1 < receipt.first_time <= (receipt.last_time or 0)
            assert receipt.seconds > 0
            assert receipt.host
    table = rows(0, 300)
    content = sum(len(value or b"") for name in ("key", "value") for value in table[name].to_pylist())
    headers = sum(len(h["key"]) + len(h["value"]) for hs in table["headers"].to_pylist() for h in hs or ())
    assert sum(receipt.size_bytes for receipt in entry.receipts) == content + headers


def test_aborted_and_open_transactions_stay_out(kafka: LocalCluster, tmp_path: Path) -> None:
    stand = Stand(kafka, "arch-transactions", tmp_path / "a")

    def send(producer: Producer, number: int) -> None:
        with producer.transaction():
            producer.send_table(stand.topic, rows(number * 100, 100))
            if number % 2:
                raise ZeroDivisionError

    with Producer(kafka.bootstrap, transactional_id="arch-tx") as producer:
        for number in range(6):
            with pytest.raises(ZeroDivisionError) if number % 2 else nullcontext():
                send(producer, number)
    settle(kafka.bootstrap, stand.topic)
    assert stand.archive() == 300
    assert stand.rows().equals(stand.log())
    assert stand.findings() == []


def test_a_partition_that_was_added_is_archived_from_its_beginning(kafka: LocalCluster, tmp_path: Path) -> None:
    stand = Stand(kafka, "arch-partitions", tmp_path / "a")
    stand.produce(0, 300)
    assert stand.archive(start="latest") == 0
    with Admin(kafka.bootstrap) as admin:
        admin.add_partitions(stand.topic, total=5)
    stand.produce(300, 500)
    assert stand.archive(start="latest") == 500
    assert len({tp.partition for tp in stand.lake.positions()}) == 5


def test_where_to_begin_is_decided_once(kafka: LocalCluster, tmp_path: Path) -> None:
    stand = Stand(kafka, "arch-start", tmp_path / "a")
    stand.produce(0, 100)
    moment = datetime.now(UTC)
    eventually(lambda: datetime.now(UTC).timestamp() > moment.timestamp() + 0.01)
    assert stand.archive(start=moment) == 0
    stand.produce(100, 50)
    assert stand.archive() == 50
    assert stand.archive(start="earliest") == 0


def test_what_retention_took_is_an_error_or_a_gap_that_is_named(kafka: LocalCluster, tmp_path: Path) -> None:
    stand = Stand(kafka, "arch-retention", tmp_path / "a")
    stand.produce(0, 900)
    assert stand.archive() == 900
    stand.produce(900, 900)
    ends = [confluent_kafka.TopicPartition(*tp, offset + 10) for tp, offset in stand.lake.positions().items()]
    client = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for deleted in client.delete_records(ends).values():
        deleted.result(30)
    with pytest.raises(OffsetsLost, match="retention deleted them before they were archived"):
        stand.archive()
    with pytest.raises(OffsetsLost):
        archive(stand.topic, stand.lake.path, brokers=kafka.bootstrap, on_lost="error")
    progress = archive(stand.topic, stand.lake.path, brokers=kafka.bootstrap, on_lost="earliest")
    assert (progress.records, progress.lost) == (900 - 30, 30)
    assert sum(len(gap.range) for entry in stand.lake.ledger.entries() for gap in entry.gaps) == 30
    assert list(verify_files(stand.lake, Checked(), deep=True)) == []


def test_a_topic_that_was_created_again_is_refused(kafka: LocalCluster, tmp_path: Path) -> None:
    stand = Stand(kafka, "arch-again", tmp_path / "a")
    stand.produce(0, 30)
    assert stand.archive() == 30
    with Admin(kafka.bootstrap) as admin:
        admin.delete_topics([stand.topic])
        admin.create_topic(stand.topic, partitions=3)
    with pytest.raises(InputError, match="created again"):
        stand.archive()
    stand.produce(0, 2000)
    with pytest.raises(InputError, match="deleted and created again"):
        stand.archive()
    assert stand.rows().num_rows == 30


def test_two_archivers_of_one_topic_leave_one_copy(kafka: LocalCluster, tmp_path: Path) -> None:
    stand = Stand(kafka, "arch-two", tmp_path / "a")
    stand.produce(0, 20_000)
    slower, faster = stand.archiving().until_now(), stand.archiving().until_now()
    first = next(faster)
    total = sum(receipt.count for receipt in first.receipts)
    for entries in (slower, faster):
        total += sum(receipt.count for entry in entries for receipt in entry.receipts)
    assert total == 20_000
    assert stand.rows().equals(stand.log())
    assert stand.findings() == []


def test_an_archiver_that_was_overtaken_throws_its_work_away_and_goes_on(kafka: LocalCluster, tmp_path: Path) -> None:
    stand = Stand(kafka, "arch-overtaken", tmp_path / "a")
    stand.produce(0, 3000)
    slow = stand.archiving()
    real = slow._engine

    def overtaken(job: Callable[[OffsetRange], Archived], ranges: list[OffsetRange]) -> object:
        done = list(real(job, ranges))
        slow._engine = real
        assert stand.archive() == 3000
        stand.produce(3000, 100)
        return (result for result in done)

    slow._engine = overtaken  # type: ignore[assignment]
    assert list(slow.until_now()) == []
    assert stand.archive() == 100
    assert stand.rows().equals(stand.log())
    assert stand.lake.staged() == []


def test_a_broker_that_dies_in_the_middle_holds_it_up_and_no_more(kafka: LocalCluster, tmp_path: Path) -> None:
    stand = Stand(kafka, "archive-broker", tmp_path / "lake")
    stand.produce(0, 3000)
    with Reader(kafka.bootstrap) as reader:
        victim = reader.cluster.leader(stand.topic, 0).id
    killed: list[int] = []
    archiving = stand.archiving()
    run = archiving._engine

    def dying(job: Callable[[OffsetRange], Archived], ranges: list[OffsetRange]) -> Iterator[Archived]:
        if not killed:
            killed.append(victim)
            kafka.kill(victim)
        return run(job, ranges)

    archiving._engine = dying  # type: ignore[assignment]
    try:
        assert sum(receipt.count for entry in archiving.until_now() for receipt in entry.receipts) == 3000
    finally:
        kafka.restart(victim)
    assert stand.findings() == []


def test_lag_tools_see_how_far_the_archive_is(kafka: LocalCluster, tmp_path: Path) -> None:
    stand = Stand(kafka, "arch-group", tmp_path / "a")
    stand.produce(0, 400)
    stand.archive(group="arch-group-watched")
    with Admin(kafka.bootstrap) as admin:
        committed = admin.groups.committed("arch-group-watched")
    assert {tp: position.offset for tp, position in committed.items()} == stand.lake.positions()


def test_lag_tools_get_nothing_of_a_topic_that_is_gone(kafka: LocalCluster, tmp_path: Path) -> None:
    """Found: with a group, a deleted topic stopped the archive of the others; created again, it got the old offsets."""
    stand = Stand(kafka, "arch-group-gone", tmp_path / "a")
    other = Stand(kafka, "arch-group-stays", tmp_path / "b")
    stand.produce(0, 400)
    request = ArchiveRequest(topics=(stand.topic, other.topic), group="arch-group-gone")
    stand.archive(group=request.group)
    with Admin(kafka.bootstrap) as admin, Cluster(kafka.bootstrap) as cluster:
        admin.delete_topics([stand.topic])
        report(stand.lake, cluster, request)
        admin.create_topic(stand.topic, partitions=3)
        report(stand.lake, cluster, request)
        assert stand.topic not in {tp.topic for tp in admin.groups.committed("arch-group-gone")}


def test_a_job_that_is_asked_to_stop_does_so_and_leaves_nothing(kafka: LocalCluster, tmp_path: Path) -> None:
    stand = Stand(kafka, "arch-stop", tmp_path / "a")
    stand.produce(0, 1000)
    job = ArchiveRange(
        brokers=Brokers(bootstrap=kafka.bootstrap), path=str(stand.lake.path), settings=stand.lake.settings
    )
    with pytest.raises(Stopped):
        job.until(lambda: True)(OffsetRange(stand.topic, 0, 0, 100))
    beyond = OffsetRange(stand.topic, 0, 0, 10_000_000)  # it would wait forever
    asked = iter([False] * 5)
    with pytest.raises((Stopped, OffsetsLost)):
        job.until(lambda: next(asked, True))(beyond)
    assert stand.lake.staged() == []


def test_killed_at_random_the_archive_is_complete_in_the_end(kafka: LocalCluster, tmp_path: Path) -> None:
    stand = Stand(kafka, "arch-killed", tmp_path / "a", format=Format.DELTA)
    stand.produce(0, 30_000)
    for kill in range(3):
        program = subprocess.Popen(
            [
                *(sys.executable, "-m", "ottla.cli", "archive", stand.topic, "--to", str(stand.lake.path)),
                *("--bootstrap", kafka.bootstrap, "--file-size", "64KiB", "--batch-size", "200KiB"),
            ],
            stdout=subprocess.DEVNULL,
        )
        recorded = len(stand.lake.ledger.numbers())
        try:
            eventually(
                lambda: len(stand.lake.ledger.numbers()) > recorded + kill or program.poll() is not None,  # noqa: B023
                seconds=90,
            )
        finally:
            os.kill(program.pid, signal.SIGKILL)
            program.wait()
    stand.archive()
    assert stand.rows().equals(stand.log())
    assert stand.findings() == []
    assert set(stand.lake.positions()) == {TopicPartition(stand.topic, number) for number in range(3)}
