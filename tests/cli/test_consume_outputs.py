"""The files that `ottla consume --output` writes: whole and valid, or not there."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from ottla.cli.consume.outputs import FileOutput
from ottla.cli.errors import CommandFailed
from ottla.wire.decode import SCHEMA

from .columns import Row, batch

RECORDS = [
    batch(Row(b"a", key=b"k", headers=[("h", None)], offset=0), Row(None, offset=1)),
    batch(Row(b"\xff", offset=5), topic="users", partition=0),
]


def read(path: Path) -> pa.Table:
    if path.suffix == ".parquet":
        return pa.parquet.read_table(path)
    with pa.OSFile(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_file_has_every_record_with_all_its_columns(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"records{suffix}"
    with FileOutput(path) as output:
        for records in RECORDS:
            output.write(records)
        assert not path.exists()
    found = read(path)
    assert found.schema.equals(SCHEMA)
    assert found.equals(pa.Table.from_batches(RECORDS))
    assert os.listdir(tmp_path) == [path.name]


def test_json_lines_are_those_of_standard_output(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    with FileOutput(path) as output:
        for records in RECORDS:
            output.write(records)
    found = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [(one["topic"], one["offset"], one["value"]) for one in found] == [
        ("clicks", 0, "a"),
        ("clicks", 1, None),
        ("users", 5, {"base64": "/w=="}),
    ]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".jsonl"])
def test_a_file_without_records_is_valid(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"records{suffix}"
    with FileOutput(path):
        pass
    assert path.read_bytes() == b"" if suffix == ".jsonl" else read(path).num_rows == 0


def test_a_parquet_file_has_row_groups_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.cli.consume.outputs._GROUP_ROWS", 4)
    path = tmp_path / "records.parquet"
    with FileOutput(path) as output:
        for offset in range(5):
            output.write(batch(Row(b"x", offset=2 * offset), Row(b"y", offset=2 * offset + 1)))
    file = pa.parquet.ParquetFile(path)
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [4, 4, 2]
    assert file.read().column("offset").to_pylist() == list(range(10))


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".jsonl"])
def test_an_error_leaves_what_was_there_before(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"records{suffix}"
    path.write_text("before")

    def fail() -> None:
        with FileOutput(path) as output:
            output.write(RECORDS[0])
            raise RuntimeError("lost")

    with pytest.raises(RuntimeError, match="lost"):
        fail()
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == [path.name]


@pytest.fixture
def small_files() -> Iterator[None]:
    """The system lets this process write files of at most 10,000 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, before)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".jsonl"])
@pytest.mark.usefixtures("small_files")
def test_a_disk_that_takes_no_more_is_reported_and_nothing_is_left(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"records{suffix}"

    def fill() -> None:
        with FileOutput(path) as output:
            for offset in range(20):
                output.write(batch(Row(os.urandom(1000), offset=offset)))

    with pytest.raises(CommandFailed) as error:
        fill()
    expected = f"cannot write {path}: File too large; no partial file is left"
    assert error.value.message == expected
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_not_there_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "records.arrow"
    with pytest.raises(CommandFailed, match=f"cannot write {path}: No such file or directory"):
        FileOutput(path).__enter__()
