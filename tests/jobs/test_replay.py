"""Replays on real brokers: what comes back is what was archived, once, whatever is killed or runs at the same time."""

from __future__ import annotations

import os
import pickle
import threading
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.waiting import eventually

from ottla.cluster import LocalCluster
from ottla.engines import local
from ottla.errors import Fenced, InputError, LakeDamaged, LakeError, OttlaError
from ottla.jobs.replay_notes import Note
from ottla.jobs.replay_partition import Placement, Replayed, Target
from ottla.jobs.replay_plan import Plan, plan
from ottla.jobs.replay_source import Selection, open_source
from ottla.jobs.replay_throttle import Rate, ReplayControl, Unit
from ottla.jobs.replay_where import parse
from ottla.model import Fingerprint, TopicPartition
from ottla.net.access import ClusterAccess

from . import archived
from .replay_kills import check, kill_and_finish

pytestmark = pytest.mark.broker
STEPS = [archived.rows(0, 6000), archived.rows(6000, 4000), archived.rows(10_000, 2000)]


@dataclass(frozen=True)
class Place:
    """An archive, and the topic it was made from."""

    bootstrap: str
    path: Path
    topic: str

    def target(self, *, partitions: int = 3) -> str:
        return archived.create(self.bootstrap, f"replay-{uuid.uuid4().hex[:8]}", partitions=partitions)

    def plan(self, target: str, selection: Selection | None = None, **options: Any) -> Plan:
        placement = options.pop("placement", Placement.KEPT)
        where = Target(access=ClusterAccess(bootstrap=self.bootstrap), topic=target, placement=placement)
        return plan(open_source(str(self.path)), selection or Selection(), where, **options)


@pytest.fixture(scope="module")
def place(kafka: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """An archive of several entries, whose files interleave because their records' times do."""
    path, topic = tmp_path_factory.mktemp("replay") / "lake", "replay-source"
    archived.archive(kafka.bootstrap, topic, path, "--partition-by", "topic,date,hour", steps=STEPS)
    return Place(kafka.bootstrap, path, topic)


def run(planned: Plan, *, control: ReplayControl | None = None, **job: Any) -> list[Replayed]:
    work = replace(planned.job(control or ReplayControl()), **job)
    return sorted(local.run(work, planned.ranges, workers=3), key=lambda partition: partition.range)


def test_everything_comes_back_as_it_was(place: Place) -> None:
    target = place.target()
    planned = place.plan(target)
    done = run(planned, chunk_records=1000)
    assert check(place.bootstrap, place.topic, target) == 12_000
    assert {partition.range.topic_partition: partition.whole for partition in done} == planned.expected()
    for partition in done:
        assert partition.is_finished
        edges = [(receipt.range.start, receipt.range.stop) for receipt in partition.receipts]
        assert len(edges) >= 4
        assert [start for start, _ in edges[1:]] == [stop for _, stop in edges[:-1]]
        assert all(receipt.count <= 1000 for receipt in partition.receipts)


def test_a_finished_replay_has_nothing_left_and_another_name_writes_again(place: Place) -> None:
    target = place.target()
    run(place.plan(target))
    once = archived.committed(place.bootstrap, target)
    assert place.plan(target).ranges == []
    assert run(place.plan(target, name="another")) != []
    assert archived.committed(place.bootstrap, target) == once + once


def test_without_keeping_partitions_the_key_decides(place: Place) -> None:
    target = place.target(partitions=2)
    run(place.plan(target, placement=Placement.BY_KEY))
    assert archived.committed(place.bootstrap, target) == archived.committed(place.bootstrap, place.topic)
    homes: dict[bytes, set[int]] = {}
    for partition in range(2):
        for row in archived.contents(place.bootstrap, target, partition):
            if row["key"]:
                homes.setdefault(row["key"], set()).add(partition)
    assert len(homes) == 50
    assert all(len(partitions) == 1 for partitions in homes.values())
    assert set.union(*homes.values()) == {0, 1}


def test_only_what_is_selected_comes_and_the_rest_is_passed_over(place: Place) -> None:
    target = place.target()
    selection = Selection(where=parse("header.site = 'oslo' and offset < 1000"))
    planned = place.plan(target, selection)
    done = run(planned)
    assert all(partition.is_finished for partition in done)
    expected = [
        row
        for partition in range(3)
        for row in archived.contents(place.bootstrap, place.topic, partition)[:1000]
        if ("site", b"oslo") in [(header["key"], header["value"]) for header in row["headers"] or ()]
    ]
    replayed = [row for partition in range(3) for row in archived.contents(place.bootstrap, target, partition)]
    assert replayed == expected
    assert place.plan(target, selection).ranges == []


def test_a_replay_that_was_stopped_goes_on_and_proves_the_whole(place: Place) -> None:
    target = place.target()
    control = ReplayControl()
    planned = place.plan(target)
    job = replace(planned.job(control), chunk_records=500).until(lambda: control.records >= 3000)
    first = list(local.run(job, planned.ranges, workers=2))
    assert 3000 <= sum(partition.fingerprint.count for partition in first) < 12_000
    second = place.plan(target)
    done = run(second)
    assert {partition.range.topic_partition: partition.whole for partition in done} | {
        partition.range.topic_partition: partition.whole for partition in first if partition.is_finished
    } == second.expected()
    check(place.bootstrap, place.topic, target)


def test_a_chunk_that_was_committed_and_not_noted_is_counted(place: Place) -> None:
    target = place.target()
    planned = place.plan(target)
    tp = TopicPartition(place.topic, 1)
    control = ReplayControl()
    job = replace(planned.job(control), chunk_records=500).until(lambda: control.records >= 1000)
    begun = job(planned.partitions[tp].range)
    assert begun.position == 1000
    planned.notes.write(tp, Note(500, begun.receipts[0].fingerprint, time.time()))
    done = {partition.range.topic_partition: partition.whole for partition in run(place.plan(target))}
    assert done == planned.expected()


def test_positions_that_brokers_forgot_are_not_taken_for_a_beginning(place: Place) -> None:
    target = place.target()
    planned = place.plan(target)
    tp = TopicPartition(place.topic, 0)
    stop = planned.partitions[tp].range.stop
    long_ago = time.time() - 8 * 86_400
    planned.notes.write(tp, Note(123, Fingerprint(), long_ago))
    with pytest.raises(LakeError, match=r"forgotten how far the replay of replay-source-0 .* offset 123 at least"):
        place.plan(target)
    planned.notes.write(tp, Note(stop, Fingerprint(), long_ago))
    assert [span.partition for span in place.plan(target).ranges] == [1, 2]


def test_another_selection_under_the_same_name_is_refused(place: Place) -> None:
    target = place.target()
    run(place.plan(target, Selection(where=parse("offset < 5")), name="mine-1"))
    again = place.plan(target, Selection(where=parse("offset  <  5")), name="mine-1")
    assert again.ranges == []
    with pytest.raises(InputError, match="a replay named mine-1 exists that selects something else"):
        place.plan(target, Selection(where=parse("offset < 6")), name="mine-1")
    place.plan(target, Selection(where=parse("offset < 6")), name="mine")


def test_of_two_runs_at_once_one_is_fenced_and_nothing_is_duplicated(place: Place) -> None:
    target = place.target()
    slow = ReplayControl(Rate(4000))
    failed: list[OttlaError] = []

    def first() -> None:
        try:
            run(place.plan(target), control=slow)
        except OttlaError as error:
            failed.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    try:
        eventually(lambda: slow.records > 1000, "the first has begun")
        run(place.plan(target))
    finally:
        thread.join(60)
    assert [type(error) for error in failed] == [Fenced]
    assert "another run of the replay" in str(failed[0])
    assert "nothing was written twice" in str(failed[0])
    check(place.bootstrap, place.topic, target)


@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.long)])
def test_kills_leave_every_record_once(place: Place, kills: int) -> None:
    target = place.target()
    noted = kill_and_finish(place.bootstrap, place.path, target, kills=kills, seed=uuid.uuid4().int, rate="2500/s")
    assert check(place.bootstrap, place.topic, target) == 12_000, noted


@pytest.mark.parametrize("rate", [Rate(8000), Rate(200_000, Unit.BYTES)])
def test_a_rate_is_kept_over_all_partitions(place: Place, rate: Rate) -> None:
    target = place.target()
    control = ReplayControl(rate)
    began = time.monotonic()
    done = run(place.plan(target), control=control)
    seconds = time.monotonic() - began
    amount = control.records if rate.unit is Unit.RECORDS else control.size_bytes
    # The first chunk is sent at once, so one chunk per thread is not waited for.
    assert seconds >= amount / rate.amount - 0.75
    assert sum(partition.fingerprint.count for partition in done) == 12_000


def test_too_few_partitions_and_unknown_topics_are_refused_before_anything_is_written(place: Place) -> None:
    small = place.target(partitions=2)
    message = f"the archive has records of replay-source-2, but topic {small} has only 2 partitions: add"
    with pytest.raises(InputError, match=message):
        place.plan(small)
    with pytest.raises(OttlaError, match="no-such-topic"):
        place.plan("no-such-topic")


def test_a_target_that_will_not_keep_the_records_is_a_caution(place: Place, kafka: LocalCluster) -> None:
    from ottla.admin import Admin

    name = f"replay-{uuid.uuid4().hex[:8]}"
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic(
            name, partitions=3, settings={"message.timestamp.type": "LogAppendTime", "retention.ms": "86400000"}
        )
    cautions = place.plan(name).cautions
    assert "replace the timestamps" in cautions[0]
    assert "keeps records for 1.0 days and the archive has some from 2026-01-01" in cautions[1]


def test_a_job_can_be_sent_to_another_process(place: Place) -> None:
    target = place.target()
    planned = place.plan(target)
    job = pickle.loads(pickle.dumps(planned.job(ReplayControl(Rate(1e9)))))
    done = [pickle.loads(pickle.dumps(job(span))) for span in planned.ranges]
    assert {partition.range.topic_partition: partition.whole for partition in done} == planned.expected()
    assert check(place.bootstrap, place.topic, target) == 12_000


@pytest.fixture(scope="module")
def table(kafka: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The same archive as a Delta table."""
    path, topic = tmp_path_factory.mktemp("replay") / "table", "replay-delta-source"
    steps = [archived.rows(0, 300), archived.rows(300, 300)]
    archived.archive(kafka.bootstrap, topic, path, "--format", "delta", steps=steps)
    return Place(kafka.bootstrap, path, topic)


def test_a_delta_table_comes_back_until_records_in_it_are_deleted(table: Place) -> None:
    import deltalake

    target = table.target()
    run(table.plan(target))
    assert check(table.bootstrap, table.topic, target) == 600
    deltalake.DeltaTable(str(table.path)).delete("partition = 1")
    with pytest.raises(LakeDamaged, match="not in its Delta table any more"):
        table.plan(target)


def test_a_plain_folder_comes_back_too(place: Place, tmp_path: Path) -> None:
    import pyarrow.dataset as ds

    everything: pa.Table = ds.dataset(place.path, format="parquet", partitioning="hive").to_table()
    os.makedirs(tmp_path / "plain")
    ds.write_dataset(everything, tmp_path / "plain", format="parquet", max_rows_per_file=5000, max_rows_per_group=5000)
    target = place.target()
    done = run(replace(place, path=tmp_path / "plain").plan(target))
    assert check(place.bootstrap, place.topic, target) == 12_000
    assert all(partition.is_finished for partition in done)
    assert sorted(os.listdir(tmp_path / "plain")) == sorted(f"part-{number}.parquet" for number in range(3))
