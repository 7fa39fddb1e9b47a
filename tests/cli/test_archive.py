"""`ottla archive`: what it says and writes, how it ends, what it refuses."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from tests.cli.commands import SECONDS, program, run
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.lake.lake import Lake
from ottla.produce.producer import Producer

pytestmark = pytest.mark.broker


def topic(kafka: LocalCluster, name: str, count: int = 200) -> str:
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic(name, partitions=2)
    produce(kafka, name, 0, count)
    return name


def produce(kafka: LocalCluster, name: str, first: int, count: int) -> None:
    values = [
        json.dumps({"ts": f"2026-01-{1 + n % 3:02d}T0{n % 5}:00:00Z", "n": n}) for n in range(first, first + count)
    ]
    with Producer(kafka.bootstrap) as producer:
        producer.send_table(name, pa.table({"value": pa.array(values).cast(pa.binary())}))


def count(path: Path) -> int:
    return int(ds.dataset(path, format="parquet", partitioning=None).count_rows())


def archived(path: Path) -> int:
    lake = Lake.find(path)
    return 0 if lake is None else sum(lake.positions().values())


def test_topics_become_folders_and_a_report(kafka: LocalCluster, tmp_path: Path) -> None:
    names = [topic(kafka, name) for name in ("archive-cli-a", "archive-cli-b")]
    path = tmp_path / "lake"
    first = run("archive", *names, "--to", str(path), "--bootstrap", kafka.bootstrap)
    assert first.exit_code == 0, first.output
    assert "400 records (" in first.stdout
    assert sorted(one.name for one in path.iterdir()) == ["_ottla", *(f"topic={name}" for name in names)]
    again = run("archive", *names, "--to", str(path), "--bootstrap", kafka.bootstrap)
    assert again.stdout == f"nothing new: {path} has all of {', '.join(names)}\n"
    assert count(path) == 400


def test_it_starts_and_ends_at_places(kafka: LocalCluster, tmp_path: Path) -> None:
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic("archive-cli-places", partitions=1)
    produce(kafka, "archive-cli-places", 0, 100)
    path = tmp_path / "lake"
    command = ("archive", "archive-cli-places", "--to", str(path), "--bootstrap", kafka.bootstrap)
    first = run(*command, "--from", "-60", "--until", "90")
    assert first.exit_code == 0, first.output
    assert "50 records (" in first.stdout
    behind = run(*command, "--until", "45")
    assert behind.stdout == f"nothing new: {path} has all of archive-cli-places up to --until\n"
    assert "10 records (" in run(*command, "--until", "latest").stdout
    assert count(path) == 60
    unknown = run(*command, "--until", "group:nobody")
    assert unknown.exit_code == 1
    assert "group nobody has committed nothing" in unknown.stderr


def test_the_nodes_of_a_fleet_do_the_work(kafka: LocalCluster, tmp_path: Path) -> None:
    name = topic(kafka, "archive-cli-fleet", 3_000)
    store, path = f"sqlite:///{tmp_path}/fleet.db", tmp_path / "lake"
    options = ("--to", str(path), "--engine", "fleet", "--store", store, "--bootstrap", kafka.bootstrap)
    serving = ("--store", store, "--threads", "1", "--bootstrap", kafka.bootstrap, "--folder", str(tmp_path))
    with program("work", "serve", *serving) as node:
        assert node.stderr is not None
        assert b"running jobs of group" in node.stderr.readline()
        ended = run("archive", name, *options, "--workers", "1", "--json")
        assert ended.exit_code == 0, ended.output
        assert json.loads(ended.stdout)["records"] == 3_000
        node.send_signal(signal.SIGTERM)
        assert node.wait(SECONDS) == 0
    assert count(path) == 3_000
    verified = run("lake", "verify", str(path), "--deep", "--against", kafka.bootstrap)
    assert verified.exit_code == 0, verified.output


def test_a_node_serves_only_a_store_that_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one that happens to run on this machine."""
    monkeypatch.delenv("OTTLA_STORE", raising=False)
    monkeypatch.setattr(
        "ottla.cli.options.store._local_stores", lambda _: {"default": f"sqlite:///{tmp_path}/fleet.db"}
    )
    ended = run("work", "serve", "--bootstrap", "localhost:1")
    assert ended.exit_code == 2, ended.output
    assert "--store" in ended.stderr
    assert not (tmp_path / "fleet.db").exists()


def test_the_store_belongs_to_the_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_DIR", str(tmp_path))
    monkeypatch.delenv("OTTLA_STORE", raising=False)
    for options, text in (
        (("--engine", "fleet"), "no store: pass --store"),
        (("--store", "redis://localhost"), "--store needs --engine fleet"),
        (("--engine", "fleet", "--store", "mysql://x"), "accepted are redis://"),
    ):
        ended = run("archive", "clicks", "--to", "/nowhere", "--bootstrap", "localhost:1", *options)
        assert ended.exit_code == 2, ended.output
        assert text in ended.stderr


def test_the_store_may_be_in_the_environment_which_means_nothing_to_other_engines(
    kafka: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTTLA_STORE", "mysql://x")
    name = topic(kafka, "archive-cli-environment")
    options = ("archive", name, "--to", str(tmp_path / "lake"), "--bootstrap", kafka.bootstrap)
    by_fleet = run(*options, "--engine", "fleet")
    assert by_fleet.exit_code == 2, by_fleet.output
    assert "accepted are redis://" in by_fleet.stderr
    assert run(*options).exit_code == 0


def test_a_program_reads_the_report(kafka: LocalCluster, tmp_path: Path) -> None:
    name = topic(kafka, "archive-cli-json")
    options = (
        "--partition-by",
        "date,hour",
        "--event-time",
        "json:ts",
        "--format",
        "delta",
        "--commit-group",
        "archive-cli",
    )
    ended = run("archive", name, "--to", str(tmp_path / "d"), *options, "--json", "--bootstrap", kafka.bootstrap)
    assert ended.exit_code == 0, ended.output
    report = json.loads(ended.stdout)
    assert (report["records"], report["lag"], report["without_time"], report["lost"]) == (200, 0, 0, 0)
    assert report["format"] == "delta"
    assert sum(report["positions"].values()) == 200
    folders = {str(one.parent.relative_to(tmp_path / "d")) for one in (tmp_path / "d").glob("date=*/**/*.parquet")}
    assert "date=2026-01-02/hour=01" in folders
    assert len(folders) == 15


def test_records_without_a_readable_time_are_reported(kafka: LocalCluster, tmp_path: Path) -> None:
    name = topic(kafka, "archive-cli-untimed", 30)
    ended = run(
        *("archive", name, "--to", str(tmp_path / "d"), "--event-time", "json:when", "--bootstrap", kafka.bootstrap)
    )
    assert ended.exit_code == 0
    assert "30 records have no readable event time" in ended.stderr
    assert count(tmp_path / "d") == 30


def test_it_follows_until_ctrl_c_and_ends_in_order(kafka: LocalCluster, tmp_path: Path) -> None:
    name = topic(kafka, "archive-cli-follow", 100)
    path = tmp_path / "lake"
    command = ("archive", name, "--to", str(path), "--follow", "--every", "200ms", "--bootstrap", kafka.bootstrap)
    with program(*command) as running:
        assert running.stdout is not None
        eventually(lambda: archived(path) == 100, seconds=60)
        produce(kafka, name, 100, 50)
        eventually(lambda: archived(path) == 150, seconds=60)
        running.send_signal(signal.SIGINT)
        assert running.wait(SECONDS) == 130
        assert b"150 records" in running.stdout.read()
    assert count(path) == 150
    assert os.listdir(path / "_ottla" / "staging") == []


@pytest.mark.parametrize(
    ("options", "said", "code"),
    [
        (("--partition-by", "colour"), "accepted are topic, partition, date, hour", 2),
        (("--event-time", "yesterday"), "accepted are record, header:NAME", 2),
        (("--from", "tomorrow"), "not a place in a topic", 2),
        (("--file-size", "1kB"), "too small", 2),
        (("--follow", "--until", "latest"), "mutually exclusive", 2),
        (("--every", "5m"), "--every needs --follow", 2),
        (("--master", "local"), "needs --engine spark", 2),
        (("--commit-group", ""), "--commit-group needs a name", 2),
        (("--to", "s3://bucket/x"), "s3:// is not supported", 1),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    tmp_path: Path, options: tuple[str, ...], said: str, code: int
) -> None:
    ended = run("archive", "clicks", "--to", str(tmp_path / "x"), *options, "--bootstrap", "127.0.0.1:1")
    assert ended.exit_code == code
    assert said in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_topic_that_does_not_exist_leaves_no_folder(kafka: LocalCluster, tmp_path: Path) -> None:
    ended = run("archive", "archive-cli-nosuch", "--to", str(tmp_path / "x"), "--bootstrap", kafka.bootstrap)
    assert ended.exit_code == 1
    assert "archive-cli-nosuch" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters").write_text("dear")
    ended = run("archive", "clicks", "--to", str(tmp_path), "--bootstrap", "127.0.0.1:1")
    assert ended.exit_code == 1
    assert "holds something else (letters)" in ended.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["letters"]


def test_another_format_than_the_archive_has_is_refused(kafka: LocalCluster, tmp_path: Path) -> None:
    name = topic(kafka, "archive-cli-other", 10)
    assert run("archive", name, "--to", str(tmp_path / "x"), "--bootstrap", kafka.bootstrap).exit_code == 0
    ended = run("archive", name, "--to", str(tmp_path / "x"), "--format", "delta", "--bootstrap", kafka.bootstrap)
    assert ended.exit_code == 1
    assert "its format is parquet, not delta" in ended.stderr
