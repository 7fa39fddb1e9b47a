"""The streaming sink writes every batch exactly once, wherever its driver or its tasks die."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.spark.sink_play import Play, dying
from tests.transactions.reading import Log

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.errors import Fenced, InputError, TransactionFailed
from ottla.net import Cluster
from ottla.produce import coordinator
from ottla.produce.identity import transactional_producer_id
from ottla.spark import two_phase
from ottla.spark.sink_log import AlreadyRecorded, CommitLog, CommitLogFailed, WrongCommitLog
from ottla.spark.two_phase import Fate

pytestmark = pytest.mark.broker
_numbers = itertools.count()
ROWS = {0: ["a", "b"], 1: ["c"], 2: ["d", "e"]}
VALUES = [b"a", b"b", b"c", b"d", b"e"]


@pytest.fixture
def topic(kafka: LocalCluster) -> str:
    name = f"sink-once-{next(_numbers)}"
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic(name, partitions=3)
    return name


@pytest.fixture
def play(kafka: LocalCluster, topic: str, tmp_path: Path) -> Play:
    return Play(kafka.bootstrap, topic, tmp_path)


@pytest.fixture(scope="module")
def log(kafka: LocalCluster) -> Iterator[Log]:
    with Log(kafka.bootstrap) as opened:
        yield opened


def _fence(kafka: LocalCluster, play: Play, task: int, attempt: int = 0) -> None:
    """Another producer takes over the transactional id: what was prepared under it is aborted, as by a timeout."""
    with Cluster(kafka.bootstrap) as cluster:
        transactional_producer_id(cluster, play.transactional_id(task, attempt), transaction_timeout=60.0)


def test_a_batch_is_seen_when_the_driver_commits_it_and_not_before(play: Play, topic: str, log: Log) -> None:
    messages = play.tasks(0, ROWS)
    assert log.visible(topic) == []
    assert log.everything(topic) == VALUES
    play.commit(messages, 0)
    assert log.committed(topic) == VALUES
    assert play.state().done == 0


def test_batches_follow_one_another_and_leave_one_mark(play: Play, topic: str, log: Log) -> None:
    for batch in range(3):
        play.run(batch, {0: [f"{batch}"], 1: []})
    assert log.committed(topic) == [b"0", b"1", b"2"]
    assert sorted(file.name for file in play.log.folder.iterdir()) == ["done-00000000000000000002", "target"]


def test_a_record_that_is_too_large_names_the_option(play: Play) -> None:
    with pytest.raises(InputError, match=r"the limit is 1,048,576: raise the option kafka\.max\.request\.size"):
        play.tasks(0, {0: ["x" * 1_200_000]})


def test_a_batch_without_rows_needs_no_broker(play: Play, topic: str, log: Log) -> None:
    play.run(0, {0: [], 1: []})
    assert play.state().done == 0
    assert log.everything(topic) == []


def test_a_driver_that_dies_before_it_records_leaves_nothing_visible(play: Play, topic: str, log: Log) -> None:
    messages = play.tasks(0, ROWS)
    with dying(CommitLog, "record"):
        play.commit(messages, 0)
    assert log.visible(topic) == []
    play.run(0, ROWS)
    assert log.committed(topic) == VALUES


def test_a_driver_that_dies_right_after_it_recorded_is_finished_by_the_next(play: Play, topic: str, log: Log) -> None:
    messages = play.tasks(0, ROWS)
    with dying(two_phase, "commit_all"):
        play.commit(messages, 0)
    assert play.state().record is not None
    play.run(0, ROWS)
    assert log.committed(topic) == log.everything(topic) == VALUES


def test_a_driver_that_dies_between_two_ends_is_finished_by_the_next(play: Play, topic: str, log: Log) -> None:
    messages = play.tasks(0, ROWS)
    with dying(coordinator, "end", after=1):
        play.commit(messages, 0)
    play.run(0, ROWS)
    assert log.committed(topic) == log.everything(topic) == VALUES


def test_a_driver_that_dies_before_it_marks_the_batch_is_finished_by_the_next(play: Play, topic: str, log: Log) -> None:
    messages = play.tasks(0, ROWS)
    with dying(CommitLog, "finish"):
        play.commit(messages, 0)
    play.run(0, ROWS)
    play.run(1, {0: ["f"]})
    assert log.committed(topic) == log.everything(topic) == [*VALUES, b"f"]


def test_a_batch_that_spark_replays_although_it_was_committed_is_not_written_again(
    play: Play, topic: str, log: Log
) -> None:
    play.run(0, ROWS)
    play.run(0, ROWS)
    play.run(1, {0: ["f"]})
    play.run(0, ROWS)
    assert log.everything(topic) == [*VALUES, b"f"]


def test_a_batch_of_a_rolled_back_checkpoint_with_other_records_is_an_error(play: Play, topic: str, log: Log) -> None:
    """Whatever their number: rows may be skipped only if they are the ones that were written."""
    play.run(0, ROWS)
    play.run(1, {0: ["f"]})
    for values in (["f", "g"], ["g"], []):
        with pytest.raises(WrongCommitLog, match=r"batch 1 .* it had 1 different records then.*repeatedBatch=skip"):
            play.run(1, {0: values})
    with pytest.raises(WrongCommitLog, match=r"batch 0 .* it had 5 different records then; now it has 1 records"):
        play.run(0, {0: ["a"]})
    play.run(0, {4: ["e", "d", "c"], 5: ["b", "a"]})  # the same rows, cut into other tasks
    assert log.everything(topic) == [*VALUES, b"f"]
    lenient = Play(play.options["kafka.bootstrap.servers"], topic, Path(play.options["checkpointlocation"]))
    lenient.query, lenient.options = play.query, {**play.options, "repeatedbatch": "skip"}
    lenient.run(1, {0: ["f", "g"]})
    lenient.run(2, {0: ["h"]})
    assert log.committed(topic) == [*VALUES, b"f", b"h"]


def test_what_was_in_the_last_hundred_batches_is_remembered(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.spark.sink_log._REMEMBERED", 3)
    for batch in range(5):
        play.run(batch, {0: [f"{batch}"]})
    assert sorted(play.state().written) == [2, 3, 4]
    play.run(2, {0: ["2"]})
    with pytest.raises(WrongCommitLog, match="its records are no longer remembered"):
        play.run(1, {0: ["1"]})


def test_a_task_that_wrote_its_part_before_must_have_the_same_rows_as_well(
    play: Play, kafka: LocalCluster, topic: str, log: Log
) -> None:
    """Another task's transaction was lost and must be written again, so the whole batch must be the same."""
    messages = play.tasks(0, ROWS)
    with dying(coordinator, "end", after=1):
        play.commit(messages, 0)
    ended = [share.task for share in play.state().record.shares]  # type: ignore[union-attr]
    assert ended == [0, 1, 2]
    _fence(kafka, play, 2)
    with pytest.raises(TransactionFailed, match="task 0 must write the same rows again, 2 records"):
        play.tasks(0, {**ROWS, 0: ["a", "x"]})
    play.run(0, ROWS)
    assert log.committed(topic) == VALUES


def test_two_writes_cannot_share_a_commit_log(play: Play, kafka: LocalCluster, topic: str, log: Log) -> None:
    play.run(0, ROWS)
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic(f"{topic}-other")
    other = Play(kafka.bootstrap, f"{topic}-other", Path(play.options["checkpointlocation"]))
    other.query = play.query
    with pytest.raises(WrongCommitLog, match=f"is the commit log of a write to topic {topic} and cannot also serve"):
        other.run(0, {0: ["for the other topic"]})
    assert log.everything(f"{topic}-other") == []


def test_finishing_twice_at_the_same_time_is_no_harm(play: Play, topic: str, log: Log) -> None:
    messages = play.tasks(0, ROWS)
    with dying(two_phase, "commit_all"):
        play.commit(messages, 0)
    play.plan()
    play.commit(messages, 0)  # the driver that was believed dead continues
    assert log.committed(topic) == log.everything(topic) == VALUES


def test_a_failed_batch_is_aborted_and_holds_up_no_reader(play: Play, topic: str, log: Log) -> None:
    messages = play.tasks(0, {0: ["x"], 1: ["y"]})
    play.abort([messages[0], None], 0)  # Spark does not know what became of task 1
    assert log.committed(topic) == []
    play.run(0, ROWS)
    assert log.committed(topic) == VALUES


def test_an_abort_does_not_touch_what_is_recorded(play: Play, topic: str, log: Log) -> None:
    messages = play.tasks(0, ROWS)
    with dying(coordinator, "end", after=1):
        play.commit(messages, 0)
    play.abort(messages, 0)  # what Spark calls when commit failed
    play.run(0, ROWS)
    assert log.committed(topic) == log.everything(topic) == VALUES


def test_an_abort_after_the_batch_is_complete_changes_nothing(play: Play, topic: str, log: Log) -> None:
    messages = play.tasks(0, ROWS)
    play.commit(messages, 0)
    play.abort(messages, 0)
    assert log.committed(topic) == VALUES


def test_the_loser_of_two_attempts_is_aborted(play: Play, topic: str, log: Log) -> None:
    writer = play.plan()
    play.task(writer, 0, 0, ["a"], attempt=0)  # prepared, but another attempt was faster
    play.commit([play.task(writer, 0, 0, ["a"], attempt=1)], 0)
    assert log.committed(topic) == [b"a"]


def test_what_a_killed_run_with_more_tasks_left_open_is_aborted(play: Play, topic: str, log: Log) -> None:
    play.tasks(0, {task: [str(task)] for task in range(5)})
    play.run(0, {0: ["all"]})
    assert log.committed(topic) == [b"all"]


def test_a_frozen_task_that_wakes_after_its_batch_was_committed_changes_nothing(
    play: Play, topic: str, log: Log
) -> None:
    writer = play.plan()
    again = play.plan()

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"value": ["a"]})
        play.commit([play.task(again, 0, 0, ["a", "b"], attempt=1)], 0)  # while this attempt is frozen
        yield pa.RecordBatch.from_pydict({"value": ["b"]})

    with pytest.raises((Fenced, TransactionFailed)):
        play.stream(writer, 0, 0, rows())
    assert log.committed(topic) == [b"a", b"b"]


def test_a_frozen_task_that_wakes_in_the_next_batch_is_fenced(play: Play, topic: str, log: Log) -> None:
    writer = play.plan()

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"value": ["a"]})
        play.commit([play.task(play.plan(), 0, 0, ["a", "b"])], 0)  # a restarted driver: the same attempt number
        play.run(1, {0: ["c"]})
        yield pa.RecordBatch.from_pydict({"value": ["b"]})

    with pytest.raises((Fenced, TransactionFailed)):
        play.stream(writer, 0, 0, rows())
    assert log.committed(topic) == [b"a", b"b", b"c"]


def test_a_task_that_begins_late_is_never_committed(play: Play, topic: str, log: Log) -> None:
    writer = play.plan()
    play.run(0, ROWS)
    play.task(writer, 0, 7, ["late"])  # it was frozen before its first row
    play.run(1, {0: ["f"]})
    assert log.committed(topic) == [*VALUES, b"f"]


def test_transactions_that_timed_out_before_the_record_fail_the_batch_as_a_whole(
    play: Play, kafka: LocalCluster, topic: str, log: Log
) -> None:
    messages = play.tasks(0, ROWS)
    _fence(kafka, play, task=1)
    with pytest.raises(TransactionFailed, match=r"1 of 3 transactions were aborted .*\(task 1\).*timeout"):
        play.commit(messages, 0)
    assert log.committed(topic) == []
    play.run(0, ROWS)
    assert log.committed(topic) == VALUES


def test_a_recorded_batch_that_is_lost_completely_is_written_again(
    play: Play, kafka: LocalCluster, topic: str, log: Log
) -> None:
    messages = play.tasks(0, ROWS)
    with dying(two_phase, "commit_all"):
        play.commit(messages, 0)
    for task in ROWS:
        _fence(kafka, play, task)
    play.run(0, {0: ["all", "other", "rows"]})
    assert log.committed(topic) == [b"all", b"other", b"rows"]


def test_a_name_in_the_log_is_never_used_for_another_list(play: Play, kafka: LocalCluster) -> None:
    messages = play.tasks(0, ROWS)
    with dying(two_phase, "commit_all"):
        play.commit(messages, 0)
    before = play.state().record
    assert before is not None
    for task in ROWS:
        _fence(kafka, play, task)
    messages = play.tasks(0, ROWS)
    with dying(two_phase, "commit_all"):
        play.commit(messages, 0)
    with pytest.raises(AlreadyRecorded):
        play.log.forget(before)  # what a driver that was believed dead would do
    now = play.state().record
    assert now is not None
    assert now.round == before.round + 2


def test_a_log_that_is_removed_while_a_batch_runs_is_noticed(play: Play, topic: str, log: Log) -> None:
    play.run(0, ROWS)
    messages = play.tasks(0, ROWS)
    for file in play.log.folder.iterdir():
        file.unlink()
    with pytest.raises(TransactionFailed, match="its record has vanished"):
        play.commit(messages, 0)
    assert log.committed(topic) == VALUES


def test_what_a_recorded_batch_has_lost_is_written_again(play: Play, kafka: LocalCluster, topic: str, log: Log) -> None:
    messages = play.tasks(0, ROWS)
    with dying(coordinator, "end", after=1):
        play.commit(messages, 0)
    for task in ROWS:
        _fence(kafka, play, task)  # one transaction is committed by now
    play.run(0, {task: values[::-1] for task, values in ROWS.items()})
    assert log.committed(topic) == VALUES
    assert play.state().record is None


def test_a_driver_that_dies_while_it_repairs_is_finished_by_the_next(
    play: Play, kafka: LocalCluster, topic: str, log: Log
) -> None:
    messages = play.tasks(0, ROWS)
    with dying(coordinator, "end", after=1):
        play.commit(messages, 0)
    for task in ROWS:
        _fence(kafka, play, task)
    messages = play.tasks(0, ROWS)
    with dying(coordinator, "end", after=1):
        play.commit(messages, 0)
    play.run(0, ROWS)
    assert log.committed(topic) == VALUES


def test_other_rows_than_the_lost_ones_are_refused(play: Play, kafka: LocalCluster, topic: str, log: Log) -> None:
    messages = play.tasks(0, ROWS)
    with dying(coordinator, "end", after=1):
        play.commit(messages, 0)
    for task in ROWS:
        _fence(kafka, play, task)
    writer = play.plan()
    record = play.state().record
    assert record is not None
    lost = sorted(record.lost)
    assert len(lost) == 2
    with pytest.raises(TransactionFailed, match=r"rows again, \d records, but now has 3 different ones"):
        play.task(writer, 0, lost[0], ["other", "rows", "now"])
    messages = [play.task(writer, 0, task, ROWS[task]) for task in ROWS if task != lost[1]]
    with pytest.raises(TransactionFailed, match=rf"tasks \[{lost[1]}\] should have written again.*batch-0+\.1 lists"):
        play.commit(messages, 0)
    assert len(log.committed(topic)) == len(ROWS[({0, 1, 2} - set(lost)).pop()])


def test_a_committed_share_whose_id_was_taken_over_is_not_believed_lost(
    play: Play, kafka: LocalCluster, topic: str, log: Log
) -> None:
    messages = play.tasks(0, ROWS)
    with dying(CommitLog, "finish"):
        play.commit(messages, 0)
    for task in ROWS:
        _fence(kafka, play, task)  # a task of a run that was believed dead begins
    play.run(0, ROWS)
    assert log.committed(topic) == log.everything(topic) == VALUES


def test_transactions_lost_between_record_and_end_are_reported_and_repaired(
    play: Play, kafka: LocalCluster, topic: str, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = play.tasks(0, ROWS)
    record = CommitLog.record

    def unlucky(self: CommitLog, *arguments: object) -> None:
        record(self, *arguments)  # type: ignore[arg-type]
        _fence(kafka, play, task=2)

    with monkeypatch.context() as patched:
        patched.setattr(CommitLog, "record", unlucky)
        with pytest.raises(TransactionFailed, match="restart the query, it writes again what is missing"):
            play.commit(messages, 0)
    record_now = play.state().record
    assert record_now is not None
    assert [share.fate for share in record_now.shares] == [Fate.ENDED, Fate.ENDED, Fate.LOST]
    play.abort(messages, 0)
    play.run(0, ROWS)
    assert log.committed(topic) == VALUES


def test_of_two_drivers_only_one_records(play: Play, topic: str, log: Log) -> None:
    slow = play.tasks(0, {5: ["slow"]})
    fast = play.tasks(0, ROWS)
    with dying(two_phase, "commit_all"):
        play.commit(fast, 0)
    state = play.log.state()
    assert state.record is not None
    with pytest.raises(AlreadyRecorded, match="two drivers run on the same checkpoint"):
        play.log.record(state.record)
    with pytest.raises(WrongCommitLog, match="now it has 1 records"):
        play.commit(slow, 0)  # finishes what the other driver recorded, but has other rows itself
    play.run(1, {0: ["f"]})
    assert log.committed(topic) == [*VALUES, b"f"]


def test_a_damaged_record_stops_the_query_and_is_named(play: Play) -> None:
    messages = play.tasks(0, ROWS)
    with dying(two_phase, "commit_all"):
        play.commit(messages, 0)
    next(play.log.folder.glob("batch-*")).write_text("{")
    with pytest.raises(CommitLogFailed, match=r"batch-0+\.0, the list of transactions of batch 0, cannot be read"):
        play.plan()


def test_a_record_of_another_cluster_is_left_alone(play: Play, kafka: LocalCluster, topic: str, log: Log) -> None:
    messages = play.tasks(0, ROWS)
    with dying(two_phase, "commit_all"):
        play.commit(messages, 0)
    path = next(play.log.folder.glob("batch-*"))
    ours = path.read_text()
    path.write_text(ours.replace('"cluster": "', '"cluster": "not-'))
    writer = play.plan()
    with pytest.raises(TransactionFailed, match="another Kafka cluster, with the id not-"):
        play.task(writer, 0, 0, ROWS[0])
    path.write_text(ours)
    play.run(0, ROWS)
    assert log.committed(topic) == VALUES


def test_a_checkpoint_that_was_changed_by_hand_is_noticed(
    play: Play, kafka: LocalCluster, topic: str, log: Log
) -> None:
    messages = play.tasks(4, ROWS)
    with dying(coordinator, "end", after=1):
        play.commit(messages, 4)
    for task in ROWS:
        _fence(kafka, play, task)
    writer = play.plan()
    with pytest.raises(TransactionFailed, match=r"batch 4 .* is not completely written, and Spark runs batch 2"):
        play.task(writer, 2, 0, ["x"])
    assert b"x" not in log.everything(topic)
