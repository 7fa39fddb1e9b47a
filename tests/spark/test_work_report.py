"""The report of a fleet's work, from event files: plain, compressed, damaged, of several hosts and hours."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from pyspark.sql import SparkSession
from tests.cli.commands import run, run_program

from ottla.cli.work.report_page import report_html, report_svg, report_text
from ottla.errors import InputError
from ottla.events import RotatingFiles, StoreDown, UnitEnded, UnitReclaimed
from ottla.events.values import fields_of
from ottla.spark.work_report import HostHour, Trouble, WorkReport, find_files, work_report

NOON = 1_767_268_800  # 2026-01-01T12:00Z


def _ended(**given: object) -> UnitEnded:
    fields: dict[str, object] = {
        "topic": "clicks",
        "partition": 0,
        "start": 0,
        "stop": 100,
        "reached": 100,
        "status": "done",
        "attempt": 1,
        "records": 100,
        "payload_bytes": 1000,
        "wasted_records": 0,
        "seconds": 0.5,
        "broker_id": 1,
        "host": "one",
    }
    return UnitEnded(**{**fields, **given})  # type: ignore[arg-type]


def _line(event: UnitEnded | UnitReclaimed, time: float) -> str:
    return json.dumps({"time": time, "event": event.kind, **fields_of(event)})


@pytest.fixture(scope="module")
def report(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> WorkReport:
    folder = tmp_path_factory.mktemp("events")
    gone = UnitReclaimed("clicks", 1, start=100, stop=200, attempt=1, node="two-7-abc/3")
    lines = [
        _line(_ended(wasted_records=50), NOON + 1),
        _line(_ended(start=100, stop=200, records=60, seconds=9.5), NOON + 3599),
        _line(_ended(start=200, stop=300, status="part", records=30, attempt=2), NOON + 3600),
        _line(_ended(status="failed", records=40, reason="ValueError: no", seconds=1.0), NOON + 2),
        _line(_ended(status="failed", records=0, attempt=2, reason="ValueError: no"), NOON + 2),
        _line(_ended(status="given back", records=0, reason=""), NOON + 2),
        _line(gone, NOON + 5),
        '{"time": 1767268800.0, "event": "store_down", "store": "redis://host", "reason": "gone"}',
        '{"time": 1767268800.0, "event": "unit_ended", "topic": "cli',
        "",
    ]
    plain = folder / "events-one-1-000002.jsonl"
    plain.write_text("\n".join(lines))
    two = [_line(_ended(host="two", partition=1, records=1000), NOON + 10), "no JSON at all"]
    (folder / "events-two-7-000001.jsonl.gz").write_bytes(gzip.compress("\n".join(two).encode() + b"\n\xff\xfe\n"))
    # A crash after compressing left this behind: it is in the compressed file, too.
    (folder / "events-two-7-000001.jsonl").write_text("\n".join(two))
    (folder / "events-two-7-000002.jsonl.gz.tmp").write_bytes(b"half")
    (folder / "other.jsonl").write_text(lines[0])
    files = find_files(str(folder))
    assert [Path(file).name for file in files] == ["events-one-1-000002.jsonl", "events-two-7-000001.jsonl.gz"]
    return work_report(spark, files, slowest=2)


def test_units_are_added_up_by_host_and_hour(report: WorkReport) -> None:
    assert report.hours == (
        HostHour("one", NOON, 2, 160, 2000, 12.0, 50, 3),
        HostHour("two", NOON, 1, 1000, 1000, 0.5, 0, 0),
        HostHour("one", NOON + 3600, 1, 30, 1000, 0.5, 0, 0),
    )
    assert (report.units, report.records, report.size_bytes) == (4, 1190, 4000)


def test_damaged_lines_are_counted_and_left_out(report: WorkReport) -> None:
    assert (report.files, report.lines, report.damaged) == (2, 12, 3)


def test_waste_repeats_and_retries_are_reported(report: WorkReport) -> None:
    assert (report.wasted_records, report.repeated_records, report.retries) == (50, 40, 2)
    assert report.waste == pytest.approx(50 / (1190 + 40 + 50))
    assert report.troubles == (
        Trouble("failed", "ValueError: no", 2),
        Trouble("given back", "", 1),
        Trouble("reclaimed", "the lease of two-7-abc stood still", 1),
    )


def test_the_slowest_units_are_named(report: WorkReport) -> None:
    assert [(unit.start, unit.stop, unit.seconds, unit.status) for unit in report.slowest] == [
        (100, 200, 9.5, "done"),
        (0, 100, 1.0, "failed"),
    ]


def test_it_is_shown_as_text_json_chart_and_page(report: WorkReport) -> None:
    text = report_text(report, width=None)
    assert "4 units done: 1,190 records (4kB)" in text
    assert "3 of them damaged and left out" in text
    assert "2026-01-01T12:00Z" in text
    assert "clicks/0/100-200" in text
    assert "the lease of two-7-abc stood still" in text
    assert json.loads(json.dumps(report.to_json()))["hours"][1]["records"] == 1000
    chart = ElementTree.fromstring(report_svg(report))
    name = "{http://www.w3.org/2000/svg}"
    bars = [bar for bar in chart.iter(f"{name}rect") if bar.find(f"{name}title") is not None]
    heights = [float(bar.attrib["height"]) for bar in bars]
    assert len(bars) == 3
    assert heights[1] == pytest.approx(heights[0] * 1000 / 160, rel=0.01)
    page = report_html(report)
    assert "<svg" in page
    assert "ValueError: no" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", ""), "it needs nothing from elsewhere"


def test_what_nodes_write_is_what_a_report_reads(spark: SparkSession, tmp_path: Path) -> None:
    sink = RotatingFiles(tmp_path, max_bytes=500)
    for number in range(10):
        sink(_ended(start=number, reason='a "quoted"\nreason & <more>', status="failed" if number == 9 else "done"))
    sink(StoreDown("redis://host", "gone"))
    sink.close()
    report = work_report(spark, find_files(str(tmp_path)))
    assert (report.units, report.lines, report.damaged) == (9, 11, 0)
    ElementTree.fromstring(report_svg(report))
    assert "&lt;more&gt;" in report_html(report)


def test_a_report_of_nothing_is_empty(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "events-one-1-000001.jsonl").write_text("")
    report = work_report(spark, find_files(str(tmp_path)))
    assert (report.units, report.waste, report.hours) == (0, 0.0, ())
    assert "no unit has ended" in report_svg(report)
    assert report_text(report, width=80).startswith("0 units done")


@pytest.mark.long
@pytest.mark.slow
def test_the_command_writes_a_table_and_files(tmp_path: Path) -> None:
    sink = RotatingFiles(tmp_path / "events")
    sink(_ended())
    sink.close()
    chart, page = tmp_path / "chart.svg", tmp_path / "page.html"
    files = ("--svg", str(chart), "--html", str(page), "--master", "local[1]")
    ended = run_program("work", "report", str(tmp_path / "events"), *files)
    assert ended.returncode == 0, ended.stderr.decode()[-3000:]
    assert ended.stdout.decode().startswith("1 unit done: 100 records (1kB);")
    assert chart.read_text().startswith("<svg")
    assert page.read_text().startswith("<!doctype html>")


def test_the_command_refuses_what_it_cannot_read_or_write(tmp_path: Path) -> None:
    result = run("work", "report", str(tmp_path))
    assert (result.exit_code, result.stderr.count("no event files at")) == (1, 1)
    result = run("work", "report", str(tmp_path), "--svg", str(tmp_path / "no" / "chart.svg"))
    assert (result.exit_code, "no folder" in result.stderr) == (2, True)


def test_a_place_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no event files at"):
        find_files(str(tmp_path))
    assert find_files("s3://logs/fleet/") == ["s3://logs/fleet/events-*.jsonl", "s3://logs/fleet/events-*.jsonl.gz"]
