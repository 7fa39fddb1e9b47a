"""Sources of replays: records come in offset order from any files, and other folders are refused."""

from __future__ import annotations

import random
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ottla.errors import InputError, LakeDamaged, NotALake
from ottla.jobs.replay_source import Selection, Source, open_source, records
from ottla.jobs.replay_where import parse
from ottla.model import TopicPartition
from ottla.wire.decode import SCHEMA

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def table(offsets: list[int], *, topic: str = "clicks", partition: int = 0) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "key": b"k",
                "value": b"%d" % offset,
                "topic": topic,
                "partition": partition,
                "offset": offset,
                "timestamp": BEGIN + timedelta(minutes=offset),
                "timestampType": 0,
                "headers": None,
            }
            for offset in offsets
        ],
        SCHEMA,
    )


def write(folder: Path, **files: pa.Table) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        pq.write_table(content, folder / f"{name}.parquet", row_group_size=7)
    return folder


def offsets_of(
    source: Source, tp: tuple[str, int] = ("clicks", 0), *, start: int = 0, selection: Selection | None = None
) -> list[int]:
    selection = selection or Selection()
    partition = next(partition for partition in source.selected(selection) if partition.topic_partition == tp)
    batches = records(partition, start=start, selection=selection)
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_files_that_interleave_come_in_the_order_of_offsets(tmp_path: Path) -> None:
    dice = random.Random(6)
    files: dict[str, list[int]] = {f"f{number}": [] for number in range(5)}
    for offset in range(1000):
        files[f"f{min(4, offset // 250 + dice.randrange(2))}"].append(offset)
    write(tmp_path, **{name: table(offsets) for name, offsets in files.items()})
    assert offsets_of(open_source(str(tmp_path))) == list(range(1000))
    assert offsets_of(open_source(str(tmp_path)), start=613) == list(range(613, 1000))


def test_files_with_several_partitions_and_no_order_are_sorted_out(tmp_path: Path) -> None:
    mixed = pa.concat_tables([table([3, 1, 2]), table([7, 5], partition=1), table([0], topic="users")])
    source = open_source(str(write(tmp_path, mixed=mixed)))
    assert [
        (partition.topic_partition, partition.range.start, partition.range.stop) for partition in source.partitions
    ] == [
        (TopicPartition("clicks", 0), 1, 4),
        (TopicPartition("clicks", 1), 5, 8),
        (TopicPartition("users", 0), 0, 1),
    ]
    assert offsets_of(source) == [1, 2, 3]
    assert offsets_of(source, ("clicks", 1)) == [5, 7]


def test_files_with_views_are_read_too(tmp_path: Path) -> None:
    """Found: what was written from Polars' own types could not be sorted or filtered by topic."""
    mixed = pa.concat_tables([table([3, 1, 2]), table([0], topic="users")])
    for name, kind in (("topic", pa.string_view()), ("key", pa.binary_view()), ("value", pa.binary_view())):
        mixed = mixed.set_column(mixed.schema.get_field_index(name), name, mixed.column(name).cast(kind))
    source = open_source(str(write(tmp_path, mixed=mixed)))
    assert offsets_of(source) == [1, 2, 3]
    assert offsets_of(source, ("users", 0)) == [0]


def test_columns_that_are_folders_and_headers_that_are_not_there(tmp_path: Path) -> None:
    content = table([1, 2], partition=4).drop_columns(["topic", "partition", "headers", "timestampType"])
    write(tmp_path / "topic=clicks" / "partition=4", a=content)
    assert offsets_of(open_source(str(tmp_path)), ("clicks", 4)) == [1, 2]


def test_times_without_a_zone_are_utc(tmp_path: Path) -> None:
    content = table([1, 2])
    naive = content.column("timestamp").cast(pa.timestamp("ns"))
    content = content.set_column(content.schema.get_field_index("timestamp"), "timestamp", naive)
    selection = Selection(start=BEGIN + timedelta(minutes=2))
    assert offsets_of(open_source(str(write(tmp_path, a=content))), selection=selection) == [2]


def test_a_selection_is_half_open_and_leaves_files_out(tmp_path: Path) -> None:
    write(tmp_path, a=table(list(range(50))), b=table(list(range(50, 100))), c=table(list(range(100, 150))))
    selection = Selection(start=BEGIN + timedelta(minutes=60), stop=BEGIN + timedelta(minutes=100))
    source = open_source(str(tmp_path))
    assert offsets_of(source, selection=selection) == list(range(60, 100))
    assert [Path(file.path).name for file in source.selected(selection)[0].files] == ["b.parquet"]
    both = Selection(start=selection.start, where=parse("value matches '9$'"))
    assert offsets_of(source, selection=both) == [69, 79, 89, 99, 109, 119, 129, 139, 149]


def test_an_offset_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    write(tmp_path, a=table([1, 2, 3]), b=table([3, 4]))
    with pytest.raises(LakeDamaged, match="offsets of clicks-0 twice"):
        offsets_of(open_source(str(tmp_path)))


def test_a_file_that_was_cut_off_is_named(tmp_path: Path) -> None:
    write(tmp_path, a=table(list(range(100))))
    source = open_source(str(tmp_path))
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LakeDamaged, match=r"a\.parquet cannot be read"):
        offsets_of(source)


def _empty(path: Path) -> None:
    path.mkdir()


def _something_else(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").write_text("hello")


def _other_columns(path: Path) -> None:
    write(path, a=pa.table({"id": [1], "value": [b"x"]}))


def _no_archive(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_no_archive, "there is no such folder"),
        (_empty, "neither an archive of Ottla nor a folder of Parquet files"),
        (_something_else, "neither an archive of Ottla nor a folder of Parquet files"),
        (_other_columns, "no column key, topic, partition, offset, timestamp"),
    ],
)
def test_what_is_no_archive_is_reported(tmp_path: Path, make: Any, message: str) -> None:
    make(tmp_path / "there")
    with pytest.raises(NotALake, match=message):
        open_source(str(tmp_path / "there"))


def test_what_is_not_there_is_reported(tmp_path: Path) -> None:
    source = open_source(str(write(tmp_path, a=table([1, 2]), b=table([1], topic="users"))))
    with pytest.raises(InputError, match="no records of orders, likes; it has clicks, users"):
        source.selected(Selection(topics=("orders", "clicks", "likes")))
    with pytest.raises(InputError, match=r"nothing is selected: .* from 2026-01-01T00:01:00.* to 2026-01-01T00:02:00"):
        source.selected(Selection(stop=BEGIN))


def test_times_that_are_no_date_stop_nothing(tmp_path: Path) -> None:
    far = table([1, 2]).set_column(
        table([1]).schema.names.index("timestamp"),
        "timestamp",
        pa.array([1 << 62, (1 << 63) - 1], pa.int64()).cast(pa.timestamp("us", tz="UTC")),
    )
    source = open_source(str(write(tmp_path, a=far)))
    assert offsets_of(source) == [1, 2]
    with pytest.raises(InputError, match="s since 1970"):
        source.selected(Selection(stop=BEGIN))
