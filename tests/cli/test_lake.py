"""`ottla lake status` and `ottla lake verify`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.commands import run
from tests.lake import stock

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.lake.lake import Lake
from ottla.lake.values import Gap
from ottla.model import OffsetRange
from ottla.produce.producer import Producer


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = stock.create(tmp_path)
    stock.archive(lake, OffsetRange("clicks", 0, 0, 100), OffsetRange("clicks", 1, 5, 30))
    gap = Gap(OffsetRange("clicks", 0, 100, 140), "deleted by retention")
    lake.append([stock.stage(lake, OffsetRange("clicks", 0, 140, 150))], by=stock.BY, gaps=[gap])
    return lake


def test_status_shows_every_partition_with_its_gaps(lake: Lake) -> None:
    shown = run("lake", "status", str(lake.path))
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    assert lines[0].endswith("parquet, partitioned by topic, date (time: record), 2 entries")
    assert lines[2].split()[:5] == ["clicks-0", "0..100,", "140..150", "110", lines[2].split()[4]]
    assert lines[3].split()[:3] == ["clicks-1", "5..30", "25"]
    assert lines[4] == "gap: clicks-0[100, 140): deleted by retention"


def test_status_for_programs(lake: Lake) -> None:
    row = json.loads(run("lake", "status", str(lake.path), "--json").stdout)
    assert (row["format"], row["entries"], row["partition_by"]) == ("parquet", 2, ["topic", "date"])
    one = row["partitions"][0]
    assert (one["ranges"], one["records"], one["next_offset"]) == ([[0, 100], [140, 150]], 110, 150)
    assert one["gaps"][0]["start"] == 100
    assert one["overlaps"] == []


def test_verify_says_that_all_is_there(lake: Lake) -> None:
    shown = run("lake", "verify", str(lake.path), "--deep")
    assert shown.exit_code == 0
    assert shown.stdout == "complete: 2 entries, 3 ranges, 3 files, 135 records read\n"


def test_verify_names_what_is_wrong_and_ends_with_1(lake: Lake) -> None:
    lost = lake.files()[0]
    (lake.path / lost.path).unlink()
    shown = run("lake", "verify", str(lake.path))
    assert shown.exit_code == 1
    assert f"{lost.path}: is missing" in shown.stderr
    assert "1 difference from the ledger" in shown.stderr
    row = json.loads(run("lake", "verify", str(lake.path), "--json").stdout)
    gone = "is missing: it was published, and has been deleted or moved since"
    assert row["wrong"] == [{"where": lost.path, "what": gone}]


def test_no_archive_is_an_error(tmp_path: Path) -> None:
    for command in ("status", "verify"):
        shown = run("lake", command, str(tmp_path / "nowhere"))
        assert shown.exit_code == 1
        assert "there is no such folder" in shown.stderr


@pytest.mark.broker
def test_verify_against_brokers_finds_what_differs(kafka: LocalCluster, tmp_path: Path) -> None:
    name, path = "lake-cli-against", str(tmp_path / "lake")
    with Admin(kafka.bootstrap) as admin, Producer(kafka.bootstrap) as producer:
        admin.create_topic(name)
        producer.send_many(name, [b"a", (b"key", b"b"), b"c"])
        producer.flush()
        assert run("archive", name, "--to", path, "--bootstrap", kafka.bootstrap).exit_code == 0
        shown = run("lake", "verify", path, "--against", kafka.bootstrap)
        assert shown.exit_code == 0, shown.output
        assert "1 range, 3 records match the log" in shown.stdout
        admin.delete_topics([name])
        admin.create_topic(name)
        producer.send_many(name, [b"a", (b"key", b"b"), b"d"])
        producer.flush()
    shown = run("lake", "verify", path, "--against", kafka.bootstrap)
    assert shown.exit_code == 0
    assert f"not compared: topic {name}: cannot be compared: it was deleted and created again" in shown.stderr
    entry = Lake.open(path).ledger.path / f"{1:020d}.json"
    row = json.loads(entry.read_bytes())
    entry.write_text(json.dumps({key: value for key, value in row.items() if key != "checksum"} | {"topics": {}}))
    shown = run("lake", "verify", path, "--against", kafka.bootstrap)
    assert shown.exit_code == 1
    assert f"{name}-0[0, 3): the log has 3:" in shown.stderr


def test_repair_says_what_is_in_the_way_and_sets_it_aside(lake: Lake) -> None:
    path = str(lake.path)
    assert run("lake", "repair", path).stdout == "nothing blocks writes\n"
    (lake.ledger.path / lake.ledger.name(2)).unlink()
    shown = run("lake", "repair", path)
    assert shown.exit_code == 1
    assert "the ledger ends with entry 1, and entry 2 was published" in shown.stdout
    assert "00140-00000000000000000150-000.parquet: its offsets are in no entry" in shown.stdout
    refused = run("lake", "repair", path, "--set-aside")
    assert refused.exit_code == 2
    assert "pass --yes to confirm" in refused.stderr
    assert run("lake", "repair", path, "--set-aside", "--dry-run").exit_code == 0
    row = json.loads(run("lake", "repair", path, "--set-aside", "--yes", "--json").stdout)
    assert (row["last_entry"], row["lost_entry"], len(row["files"])) == (1, 2, 1)
    assert len([one for one in Path(row["set_aside"]).rglob("*") if one.is_file()]) == 1
    assert run("lake", "verify", path, "--deep").exit_code == 0
