"""Other tools read an archive: pyarrow, pandas, Polars, DuckDB and Delta see the same rows, columns and types."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import msgspec
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tests.lake import stock

from ottla.lake import layout
from ottla.lake.contents import fingerprint
from ottla.lake.lake import Lake
from ottla.lake.layout import Format, LakeSettings
from ottla.lake.writer import FINGERPRINT_KEY, RANGE_KEY
from ottla.model import OffsetRange
from ottla.wire.decode import SCHEMA

CLICKS = OffsetRange("clicks", 0, 0, 30)
OTHER = OffsetRange("_other.topic", 3, 100, 160)
"""A topic whose name starts like the folders that readers skip."""


def hours(offsets: Any) -> Any:
    """Ten minutes apart, across midnight; every tenth without a time."""
    moments = stock.NOON + 11 * 3_600_000_000 + offsets * 600_000_000
    moments[offsets % 10 == 0] = -1000
    return moments


@pytest.fixture(scope="module", params=[("topic", "date", "hour"), ("topic", "partition"), ()], ids="-".join)
def lake(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Lake:
    lake = stock.create(tmp_path_factory.mktemp("readers"), format=Format.DELTA, partition_by=request.param)
    done = [stock.stage(lake, span, times=hours) for span in (CLICKS, OTHER)]
    lake.append(done, by=stock.BY)
    stock.stage(lake, OffsetRange("clicks", 0, 30, 40))  # an archiver is running
    return lake


def expected() -> pa.Table:
    return pa.Table.from_batches([stock.records(span, hours) for span in (OTHER, CLICKS)])


def with_pyarrow(path: Path) -> pa.Table:
    return ds.dataset(path, format="parquet", partitioning="hive").to_table()


def with_read_table(path: Path) -> pa.Table:
    return pq.read_table(path)


def with_pandas(path: Path) -> pa.Table:
    return pa.Table.from_pandas(pd.read_parquet(path, dtype_backend="pyarrow"), preserve_index=False)


def with_polars(path: Path) -> pa.Table:
    return pl.scan_parquet(path / "**/*.parquet", hive_partitioning=True).collect().to_arrow()


def with_duckdb(path: Path) -> pa.Table:
    return duckdb(f"from read_parquet('{path}/**/*.parquet', hive_partitioning=true)")


def duckdb(query: str) -> pa.Table:
    """Ask DuckDB in a separate process: at exit it prints at length what it did not free."""
    done = subprocess.run([sys.executable, "-c", _DUCKDB, query], capture_output=True, check=True)
    return pa.ipc.open_stream(done.stdout).read_all()


_DUCKDB = """
import sys, duckdb, pyarrow as pa
table = duckdb.sql(sys.argv[1]).to_arrow_table()
with pa.ipc.new_stream(sys.stdout.buffer, table.schema) as out:
    out.write_table(table)
"""


def with_delta(path: Path) -> pa.Table:
    return pa.table(deltalake.DeltaTable(path).to_pyarrow_table())


@pytest.mark.parametrize("read", [with_pyarrow, with_read_table, with_pandas, with_polars, with_duckdb, with_delta])
def test_every_reader_sees_the_same_records(lake: Lake, read: Callable[[Path], pa.Table]) -> None:
    table = read(lake.path)
    assert set(table.column_names) == {*SCHEMA.names, *lake.settings.partition_by}
    rows = table.select(SCHEMA.names).cast(SCHEMA, safe=False) if read is not with_polars else _from_polars(table)
    assert rows.sort_by([("topic", "ascending"), ("offset", "ascending")]).equals(expected())


def _from_polars(table: pa.Table) -> pa.Table:
    columns = [
        table[name].cast(SCHEMA.field(name).type) if name != "headers" else _plain_lists(table[name])
        for name in SCHEMA.names
    ]
    return pa.table(columns, schema=SCHEMA)


def _plain_lists(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(column.to_pylist(), SCHEMA.field("headers").type)])


def test_folders_are_the_columns_date_and_hour(lake: Lake) -> None:
    if "hour" not in lake.settings.partition_by:
        return
    clicks = f"read_parquet('{lake.path}/topic=clicks/**/*.parquet', hive_partitioning=true)"
    table = duckdb(f"select date, hour, count(*) as count from {clicks} group by all order by all")
    text = [(str(row["date"]), row["hour"], row["count"]) for row in table.to_pylist()]
    assert ("2026-01-01", 23, 5) in [(date, int(hour), count) for date, hour, count in text if hour is not None]
    assert sum(count for _, _, count in text) == len(CLICKS)


def test_records_without_a_time_are_in_the_folder_for_that(lake: Lake) -> None:
    if not lake.settings.needs_time:
        return
    (entry,) = lake.ledger.entries()
    assert entry.untimed == 9
    missing = pq.read_table(lake.path / "topic=clicks/date=1970-01-01/hour=00", partitioning=None)
    assert missing["offset"].to_pylist() == [0, 10, 20]


def test_pandas_as_it_is_reads_an_archive_with_records_without_a_time(lake: Lake) -> None:
    """pandas' categories cannot have nulls in some files and dates in others."""
    frame = pd.read_parquet(lake.path)
    assert sorted(frame["offset"]) == sorted([*range(30), *range(100, 160)])
    if "hour" in lake.settings.partition_by:
        assert sorted(frame[frame["date"] == "1970-01-01"]["offset"]) == [0, 10, 20, *range(100, 160, 10)]


def test_an_archive_of_an_earlier_version_keeps_its_folders(tmp_path: Path) -> None:
    lake = stock.create(tmp_path, no_date=None)
    row = msgspec.json.decode((lake.path / layout.SETTINGS).read_bytes())
    del row["checksum"], row["no_date"]
    (lake.path / layout.SETTINGS).write_bytes(msgspec.json.encode(row))
    again = Lake.create(lake.path, LakeSettings())
    again.append([stock.stage(again, CLICKS, times=hours)], by=stock.BY)
    assert {file.values["date"] for file in again.files()} == {None, "2026-01-01", "2026-01-02"}
    assert (lake.path / "topic=clicks/date=__HIVE_DEFAULT_PARTITION__").is_dir()
    table = with_polars(lake.path).sort_by("offset")
    assert table["offset"].to_pylist() == list(range(30))


def test_footers_have_statistics_and_say_which_range_it_is(lake: Lake) -> None:
    file = lake.files(["clicks"])[0]
    footer = pq.read_metadata(lake.locate(file))
    assert footer.metadata[RANGE_KEY.encode()] == b"clicks-0[0, 30)"
    assert footer.metadata[FINGERPRINT_KEY.encode()].decode() == str(fingerprint(stock.records(CLICKS)))
    index = footer.schema.to_arrow_schema().get_field_index("offset")
    statistics = footer.row_group(0).column(index).statistics
    assert (statistics.min, statistics.max) == (file.first_offset, file.last_offset)


def test_statistics_of_the_delta_log_leave_out_no_file_that_has_records(lake: Lake) -> None:
    table = deltalake.DeltaTable(lake.path)
    actions = pa.table(table.get_add_actions(flatten=True))
    assert pc.sum(actions["num_records"]).as_py() == len(CLICKS) + len(OTHER)
    last = table.to_pyarrow_dataset().to_table(filter=(ds.field("topic") == "clicks") & (ds.field("offset") == 29))
    assert last["value"].to_pylist() == [stock.records(CLICKS)["value"][29].as_py()]
