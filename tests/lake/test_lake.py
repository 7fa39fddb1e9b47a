"""Archives: records are in it once, whatever was killed, and what does not belong there is refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow.dataset as ds
import pytest
from tests.lake import stock

from ottla.errors import ConfigError, LakeConflict, LakeDamaged, LakeError, NotALake
from ottla.lake import delta, layout, repair
from ottla.lake import lake as lake_module
from ottla.lake.lake import Lake
from ottla.lake.layout import Format, LakeSettings
from ottla.lake.values import Archived, Entry, Gap, WrittenBy
from ottla.lake.verifying import Checked, verify_files
from ottla.model import OffsetRange, TopicPartition

CLICKS = TopicPartition("clicks", 0)


def span(start: int, stop: int, partition: int = 0) -> OffsetRange:
    return OffsetRange("clicks", partition, start, stop)


@pytest.fixture(params=list(Format), ids=lambda form: form.value)
def lake(tmp_path: Path, request: pytest.FixtureRequest) -> Lake:
    return stock.create(tmp_path, format=request.param)


def offsets(lake: Lake, partition: int = 0) -> list[int]:
    """Return the offsets that a reader without Ottla sees."""
    if not lake.ledger.numbers():
        return []
    table = ds.dataset(lake.path, format="parquet", partitioning="hive").to_table(columns=["partition", "offset"])
    rows = zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)
    return sorted(offset for where, offset in rows if where == partition)


def findings(lake: Lake) -> list[str]:
    return [str(finding) for finding in verify_files(lake, Checked(), deep=True)]


def test_what_was_appended_is_there_and_verifies(lake: Lake) -> None:
    stock.archive(lake, span(0, 10), span(10, 25), span(0, 5, partition=1))
    stock.archive(lake, span(25, 30))
    assert offsets(lake) == list(range(30))
    assert offsets(lake, 1) == list(range(5))
    assert lake.positions() == {CLICKS: 30, TopicPartition("clicks", 1): 5}
    assert findings(lake) == []
    assert lake.staged() == []


def test_an_entry_says_the_same_after_its_way_through_the_file(lake: Lake) -> None:
    entry = lake.append([stock.stage(lake, span(0, 10))], by=stock.BY, topics={"clicks": "id-1"})
    assert list(Lake.open(lake.path).ledger.entries()) == [entry]


def test_files_come_in_the_order_of_offsets_whatever_the_order_of_tasks(lake: Lake) -> None:
    done = [stock.stage(lake, part) for part in (span(20, 30), span(0, 10), span(10, 20))]
    lake.append(done, by=stock.BY)
    assert [file.range for file in lake.files()] == [span(0, 10), span(10, 20), span(20, 30)]
    assert lake.files(["other"]) == []
    assert all(lake.locate(file).exists() for file in lake.files(partitions=[CLICKS]))


def test_a_range_that_is_there_already_is_not_there_twice(lake: Lake) -> None:
    stock.archive(lake, span(0, 10))
    assert lake.append([stock.stage(lake, span(0, 10))], by=stock.BY) is None
    stock.archive(lake, span(0, 10), span(10, 20))
    assert offsets(lake) == list(range(20))
    assert lake.staged() == []


@pytest.mark.parametrize(("wrong", "said"), [(span(5, 15), "Another archiver was faster"), (span(12, 15), "[10, 12)")])
def test_a_range_that_does_not_follow_is_refused_and_nothing_recorded(
    lake: Lake, wrong: OffsetRange, said: str
) -> None:
    stock.archive(lake, span(0, 10))
    with pytest.raises(LakeConflict) as refused:
        stock.archive(lake, wrong)
    assert said in str(refused.value)
    assert "next offset of clicks-0 there is 10" in str(refused.value)
    assert offsets(lake) == list(range(10))
    assert lake.ledger.numbers() == [1]


def test_a_gap_is_allowed_when_it_is_explained(lake: Lake) -> None:
    stock.archive(lake, span(0, 10))
    gap = Gap(span(10, 40), "deleted")
    entry = lake.append([stock.stage(lake, span(40, 50))], by=stock.BY, gaps=[gap])
    assert entry is not None
    assert entry.gaps == (gap,)
    assert lake.positions() == {CLICKS: 50}
    assert findings(lake) == []


def test_where_a_topic_begins_is_remembered_before_it_has_records(lake: Lake) -> None:
    lake.append([], by=stock.BY, starts={CLICKS: 100})
    assert lake.append([], by=stock.BY, starts={CLICKS: 500}) is None
    assert lake.positions() == {CLICKS: 100}
    with pytest.raises(LakeConflict):
        stock.archive(lake, span(120, 130))


def test_two_archivers_at_once_leave_one_copy(lake: Lake) -> None:
    other = Lake.open(lake.path)
    done, same = stock.stage(lake, span(0, 10)), stock.stage(other, span(0, 10))
    assert lake.append([done], by=stock.BY) is not None
    assert other.append([same], by=stock.BY) is None
    assert offsets(lake) == list(range(10))
    assert findings(lake) == []


def test_an_archiver_that_was_overtaken_between_look_and_record_looks_again(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Lake.open(lake.path)
    done = stock.stage(lake, span(0, 10, partition=1))
    create = lake.ledger.create

    def overtaken(entry: Entry) -> bool:
        monkeypatch.setattr(lake.ledger, "create", create)
        stock.archive(other, span(0, 10))
        return create(entry)

    monkeypatch.setattr(lake.ledger, "create", overtaken)
    entry = lake.append([done], by=stock.BY)
    assert entry is not None
    assert entry.number == 2
    assert (offsets(lake), offsets(lake, 1)) == (list(range(10)), list(range(10)))


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours runs after it."""


class Doom:
    """Every step at which the disk is touched may be the last one."""

    def __init__(self, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        """Steps until the kill; 0 for none."""
        steps = [(os, "link"), (os, "rename"), (lake_module, "sync"), (shutil, "rmtree")]
        if lake.settings.format is Format.DELTA:
            steps.append((delta, "commit"))
        for owner, name in steps:
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, real: Callable[..., object]) -> Callable[..., object]:
        def step(*args: object, **kwargs: object) -> object:
            self.left -= 1
            if self.left == 0:
                raise Killed
            return real(*args, **kwargs)

        return step


def test_killed_at_any_step_of_the_commit_a_restart_finishes_or_knows_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock.archive(lake, span(0, 10))
    doom = Doom(lake, monkeypatch)
    position = 10
    for number in range(1, 30):
        done = [stock.stage(lake, span(position, position + 5)), stock.stage(lake, span(position + 5, position + 10))]
        doom.left = number
        try:
            Lake.open(lake.path).append(done, by=stock.BY)
        except Killed:
            pass
        is_killed, doom.left = doom.left <= 0, 0
        again = Lake.open(lake.path)
        again.recover()
        recorded = again.positions()[CLICKS]
        assert recorded in (position, position + 10)
        position = recorded
        assert offsets(again) == list(range(position))
        assert findings(again) == []
        if not is_killed:
            break
    assert not is_killed
    assert number > 5, "the steps were not met"


def test_publishing_twice_changes_nothing(lake: Lake) -> None:
    stock.archive(lake, span(0, 10))
    before = {file.path: os.stat(lake.path / file.path).st_ino for file in lake.files()}
    last = lake.ledger.last()
    assert last is not None
    Lake.open(lake.path).publish(last)
    assert {file.path: os.stat(lake.path / file.path).st_ino for file in lake.files()} == before
    assert offsets(lake) == list(range(10))


def test_the_zombie_of_a_task_changes_nothing(lake: Lake) -> None:
    zombie = stock.stage(lake, span(0, 10))
    stock.archive(lake, span(0, 10), span(10, 20))
    assert offsets(lake) == list(range(20)), "what it has staged is not visible"
    assert Lake.open(lake.path).append([zombie], by=stock.BY) is None
    assert offsets(lake) == list(range(20))


def test_a_recorded_file_that_was_lost_before_it_was_published_is_reported_by_name(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock.archive(lake, span(0, 10))
    monkeypatch.setattr(lake, "publish", lambda entry: None)  # killed between record and publishing
    stock.archive(lake, span(10, 20))
    shutil.rmtree(lake.path / layout.STAGING)
    file = lake.files()[1]
    with pytest.raises(LakeDamaged, match=file.path):
        Lake.open(lake.path).recover()
    assert repair.look(lake).withdrawn == 2
    repair.set_aside(lake, repair.look(lake))
    again = Lake.open(lake.path)
    stock.archive(again, span(10, 20))
    assert offsets(again) == list(range(20))
    assert findings(again) == []


def test_files_that_were_deleted_after_they_were_published_stop_nothing(lake: Lake) -> None:
    stock.archive(lake, span(0, 10))
    os.unlink(lake.path / lake.files()[0].path)
    again = Lake.open(lake.path)
    again.recover()
    stock.archive(again, span(10, 20))
    if again.settings.format is Format.PARQUET:
        assert offsets(again) == list(range(10, 20))
    assert ["deleted or moved since" in text for text in findings(again)] == [True]


def test_an_archive_without_marks_goes_on_whatever_was_deleted(lake: Lake) -> None:
    """Make the archive look like one of an earlier version."""
    stock.archive(lake, span(0, 10))
    _as_before_marks(lake)
    again = Lake.open(lake.path)
    again.recover()
    assert again.ledger.published() == 1
    assert findings(again) == []
    _as_before_marks(lake)
    os.unlink(lake.path / lake.files()[0].path)
    stock.archive(Lake.open(lake.path), span(10, 20))
    assert lake.positions() == {CLICKS: 20}


def _as_before_marks(lake: Lake) -> None:
    shutil.rmtree(lake.ledger.marks)
    for number in lake.ledger.listed():
        entry_file = lake.ledger.path / lake.ledger.name(number)
        row = msgspec.json.decode(entry_file.read_bytes())
        for name in ("checksum", "stored"):
            row.pop(name, None)
        for file in row["files"]:
            file.pop("sha256", None)
            file.pop("footer_sha256", None)
        entry_file.write_bytes(msgspec.json.encode(row))


def test_what_was_staged_and_changed_since_is_not_recorded(lake: Lake) -> None:
    done = stock.stage(lake, span(0, 10))
    with open(lake.path / done.files[0].staged, "ab") as file:
        file.write(b"!")
    with pytest.raises(LakeError, match="its task wrote"):
        lake.append([done], by=stock.BY)
    assert lake.ledger.numbers() == []


def test_old_leftovers_are_swept_and_what_is_recorded_or_new_stays(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    old, fresh, mine = (stock.stage(lake, span(0, 5), run=run) for run in ("dead", "alive", "mine"))
    for folder, _, names in os.walk(lake.path / old.files[0].staged.rpartition("/topic")[0]):
        for name in (".", *names):
            os.utime(os.path.join(folder, name), (1.0, 1.0))
    assert lake.sweep() == 1
    assert not (lake.path / old.files[0].staged).exists()
    assert (lake.path / fresh.files[0].staged).exists()
    monkeypatch.setattr(lake, "publish", lambda entry: None)  # killed between record and publishing
    lake.append([mine], by=stock.BY)
    assert lake.sweep(0.0, run="mine") == 0
    assert lake.sweep(0.0) == 1
    Lake.open(lake.path).recover()
    assert offsets(lake) == list(range(5))


def test_a_topic_that_was_created_again_is_refused(lake: Lake) -> None:
    lake.append([stock.stage(lake, span(0, 10))], by=stock.BY, topics={"clicks": "first"})
    with pytest.raises(LakeConflict, match="deleted and created again"):
        lake.append([stock.stage(lake, span(10, 20))], by=stock.BY, topics={"clicks": "second"})
    assert offsets(lake) == list(range(10))


def test_a_range_without_records_is_recorded_without_a_file(lake: Lake) -> None:
    stock.archive(lake, span(0, 10))
    empty = stock.stage(lake, span(10, 10))
    moved = Archived(type(empty.receipt).from_json({**empty.receipt.to_json(), "stop": 15}), ())
    entry = lake.append([moved], by=stock.BY)
    assert entry is not None
    assert entry.files == ()
    assert lake.positions() == {CLICKS: 15}
    assert findings(lake) == []


def test_a_folder_with_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(NotALake, match=r"holds something else \(notes.txt\)"):
        Lake.create(tmp_path, LakeSettings())
    assert os.listdir(tmp_path) == ["notes.txt"]
    with pytest.raises(NotALake, match="that is a file"):
        Lake.create(tmp_path / "notes.txt", LakeSettings())
    with pytest.raises(NotALake, match=r"lake\.json is missing"):
        Lake.open(tmp_path)
    with pytest.raises(NotALake, match="no such folder"):
        Lake.open(tmp_path / "nowhere")
    with pytest.raises(NotALake, match="s3:// is not supported"):
        Lake.create("s3://bucket/clicks", LakeSettings())


def test_other_settings_than_the_archive_has_are_refused(tmp_path: Path) -> None:
    stock.create(tmp_path, partition_by=("topic",))
    for settings, said in (
        (LakeSettings(format=Format.DELTA, partition_by=("topic",)), "format is parquet, not delta"),
        (LakeSettings(), "partitioned by topic, not topic,date"),
        (LakeSettings(partition_by=("topic",), event_time="json:ts"), "event time is record, not json:ts"),
    ):
        with pytest.raises(LakeError, match=said):
            Lake.create(tmp_path / "archive", settings)
    with pytest.raises(ConfigError, match="partitioned by colour"):
        LakeSettings(partition_by=("colour",))
    with pytest.raises(ConfigError, match="twice"):
        LakeSettings(partition_by=("date", "date"))


def test_an_archive_of_a_later_ottla_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    lake = stock.create(tmp_path)
    stock.archive(lake, span(0, 3))
    stock.archive(lake, span(3, 6))
    (lake.ledger.path / f"{1:020d}.json").write_text("{")
    with pytest.raises(LakeDamaged, match=r"0001.json cannot be read"):
        list(lake.ledger.entries())
    (lake.ledger.path / f"{1:020d}.json").unlink()
    with pytest.raises(LakeDamaged, match=r"0001.json is missing"):
        lake.ledger.numbers()
    (lake.path / layout.SETTINGS).write_text('{"version": 7}')
    with pytest.raises(LakeDamaged, match="of version 7"):
        Lake.open(lake.path)


def test_who_wrote_an_entry_is_kept(lake: Lake) -> None:
    by = WrittenBy(engine="spark", host="there", query="q", batch=7)
    lake.append([stock.stage(lake, span(0, 3))], by=by)
    (entry,) = lake.ledger.entries()
    assert entry.written_by == by
