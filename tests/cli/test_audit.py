"""`ottla audit`: tallies, comparisons, pages, alerts, and records by name."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.audit import pipeline
from tests.audit.pipeline import BEGIN, Item
from tests.cli.commands import run

from ottla import Fleet
from ottla.audit.compare import Judged, Row, Verdict
from ottla.cli.audit import page
from ottla.cluster import LocalCluster
from ottla.jobs import Comparison

pytestmark = pytest.mark.broker
AUDIT = "cli-audit"


def _items(count: int) -> list[Item]:
    return [Item(0, b"key-%d" % n, b"value-%d" % n, (BEGIN + n * 1800 // count) * 1000) for n in range(count)]


@pytest.fixture(scope="module")
def tiers(kafka: LocalCluster) -> str:
    """Two tiers: of the second bucket the second tier lost one record and has another one twice."""
    items = _items(300)
    pipeline.write(kafka.bootstrap, "cli-edge", [items])
    pipeline.write(kafka.bootstrap, "cli-hq", [[*items[:150], *items[151:160], items[159], *items[160:]]])
    for topic, tier in (("cli-edge", "edge"), ("cli-hq", "hq")):
        result = run(
            *("audit", "tally", topic, "--as", "clicks", "--tier", tier),
            *("--audit-topic", AUDIT, "--bootstrap", kafka.bootstrap),
        )
        assert result.exit_code == 0, result.output
        assert "300 records" in result.output
        assert f"in 3 buckets for tier {tier}" in result.output
    return kafka.bootstrap


def _compare(bootstrap: str, *options: str) -> tuple[int, str]:
    result = run("audit", "compare", "--audit-topic", AUDIT, "--bootstrap", bootstrap, *options)
    return result.exit_code, result.output


def test_a_loss_behind_a_duplicate_is_an_alert(tiers: str) -> None:
    code, output = _compare(tiers, "clicks", "--tier", "edge", "--tier", "hq")
    assert code == 3
    assert re.search(r"clicks +2026-01-01T00:10:00Z +100 +100 +altered from edge to hq", output)
    assert "3 buckets of 1 topic: 2 complete, 1 altered" in output
    assert "error: not all of it arrived: 1 altered of 3 buckets" in output
    assert "00:20:00Z" in _compare(tiers, "--all")[1]


def test_json_has_an_object_for_each_bucket(tiers: str) -> None:
    code, output = _compare(tiers, "--json", "--tier", "edge", "--tier", "hq")
    assert code == 3
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert [(row["start"] - BEGIN, row["verdict"]) for row in rows] == [
        (0, "complete"),
        (600, "altered"),
        (1200, "complete"),
    ]
    assert [tier["records"] for tier in rows[1]["tiers"]] == [100, 100]


def test_what_is_fine_or_unknown_has_another_exit_code(tiers: str) -> None:
    first, last = ("--from", "2026-01-01T00:00Z"), ("--until", "2026-01-01T00:10Z")
    code, output = _compare(tiers, "--tier", "edge", "--tier", "hq", *first, *last)
    assert (code, "1 complete" in output) == (0, True)
    code, output = _compare(tiers, "--tier", "edge")
    assert code == 4
    assert "error: nothing was compared: edge is the only tier" in output
    code, output = _compare(tiers, "--tier", "edge", "--tier", "moon")
    assert code == 4
    assert "tier moon has no tallies of this topic" in output


def test_a_time_in_which_nothing_was_counted_is_a_warning(tiers: str) -> None:
    code, output = _compare(tiers, "--tier", "edge", "--tier", "hq", "--until", "2020-01-01T00:00Z")
    assert (code, "warning: no tier has counted a record in that time" in output) == (0, True)


def test_tiers_are_counted_from_the_data_on_request(tiers: str) -> None:
    code, output = _compare(tiers, "clicks", "--data", f"left={tiers}/cli-edge", "--data", f"right={tiers}/cli-hq")
    assert code == 3
    assert "altered from left to right" in output


def test_the_page_has_a_map_and_nothing_from_elsewhere(tiers: str, tmp_path: Path) -> None:
    file = tmp_path / "audit.html"
    _compare(tiers, "--html", str(file), "--tier", "edge", "--tier", "hq")
    text = file.read_text(encoding="utf-8")
    assert text.count('<td class="complete"') == 2
    assert text.count('<td class="altered"') == 1
    assert "Not all of it arrived" in text
    assert "edge → hq" in text
    assert not re.search(r"https?:|src=|@import|<script", text)


@pytest.mark.parametrize(
    ("changes", "headline", "remark"),
    [
        ({}, "All of it arrived", None),
        ({"late": True}, "Some of it is late", None),
        ({"rows": ()}, "Nothing was counted", "no tier has counted a record in that time"),
        ({"tiers": ("edge",)}, "Not everything is known", "nothing was compared: edge is the only tier"),
        ({"silent": ("tier hq was <last> counted",)}, "Not everything is known", "tier hq was &lt;last&gt; counted"),
        ({"problems": ("topic odd cannot",)}, "Not everything is known", "1 topic could not be compared"),
        ({"problems": ("topic odd cannot",)}, "Not everything is known", "topic odd cannot"),
        ({"unreadable": 2}, "All of it arrived", "2 records of the audit topic are no tallies"),
    ],
)
def test_the_page_claims_no_more_than_the_exit_code(changes: dict[str, Any], headline: str, remark: str | None) -> None:
    verdict = Verdict.LATE if changes.pop("late", False) else Verdict.COMPLETE
    judged = tuple(Judged(tier, verdict, 1, 1, None) for tier in ("edge", "hq"))
    comparison = replace(Comparison(("edge", "hq"), (Row("clicks", BEGIN, 600, judged),), BEGIN + 9e3), **changes)
    text = page.page(comparison)
    assert f"<h1>{headline}</h1>" in text
    assert (f"<li>{remark}</li>" in text) if remark else "<li>" not in text


def test_records_are_named(tiers: str) -> None:
    options = ("--left", tiers, "--right", tiers, "--right-topic", "cli-hq")
    result = run("audit", "find", "cli-edge", *options, "--json")
    assert result.exit_code == 3
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert {(row["verdict"], row["side"], row["partition"], row["offset"]) for row in found} == {
        ("missing", "left", 0, 150),
        ("duplicated", "right", 0, 159),
    }
    assert {row["key"] for row in found} == {"a2V5LTE1MA==", "a2V5LTE1OQ=="}
    assert all(BEGIN + 600 <= row["timestamp"] < BEGIN + 1200 for row in found)
    text = run("audit", "find", "cli-edge", *options)
    assert "missing    left 0:150 2026-01-01T00:15:00.000Z key key-150" in text.output
    assert "1 duplicated, 1 missing" in text.output
    same = run("audit", "find", "cli-edge", "--left", tiers, "--right", tiers)
    assert (same.exit_code, same.stdout) == (0, "no difference\n")


@pytest.mark.parametrize("device", ["/dev/full", "/no/such/folder/audit.html"])
def test_a_page_that_cannot_be_written_is_an_error_and_a_device_stays_one(tiers: str, device: str) -> None:
    code, output = _compare(tiers, "--html", device, "--tier", "edge", "--tier", "hq")
    assert (code, f"error: --html {device} cannot be written: No " in output) == (1, True)
    assert "1 altered" in output  # a disk that is full does not hide the verdict
    assert Path(device).is_char_device() == (device == "/dev/full")


class _Hook(BaseHTTPRequestHandler):
    posted: ClassVar[list[dict[str, Any]]] = []
    status = 200

    def do_POST(self) -> None:
        _Hook.posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(_Hook.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hook() -> Iterator[str]:
    _Hook.posted, _Hook.status = [], 200
    server = HTTPServer(("127.0.0.1", 0), _Hook)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_webhook_gets_changes_of_state_only(tiers: str, hook: str, tmp_path: Path) -> None:
    options = ("--webhook", hook, "--state", str(tmp_path / "state.json"), "--tier", "edge")
    _Hook.status = 500
    code, output = _compare(tiers, *options, "--tier", "hq")
    assert code == 1
    assert "127.0.0.1 did not accept the changes, which the next run posts again" in output
    _Hook.status = 200
    assert _compare(tiers, *options, "--tier", "hq")[0] == 3
    assert _compare(tiers, *options, "--tier", "hq")[0] == 3
    assert len(_Hook.posted) == 2
    assert _Hook.posted[0] == {**_Hook.posted[1], "compared_at": _Hook.posted[0]["compared_at"]}
    (change,) = _Hook.posted[1]["changes"]
    assert (change["before"], change["after"], change["topic"]) == ("complete", "altered", "clicks")
    assert _compare(tiers, *options)[0] == 4
    (change,) = _Hook.posted[2]["changes"]
    assert (change["before"], change["after"]) == ("altered", "complete")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tally", "cli-edge"), "missing option '--tier'"),
        (("tally", "cli-edge", "--tier", "a b"), "--tier: tier 'a b': 1 to 100 letters"),
        (("tally", "cli-edge", "--tier", "edge", "--bucket", "0"), "a bucket of 0"),
        (("tally", "cli-edge", "--tier", "edge", "--bucket", "1.5s"), "whole seconds"),
        (("tally", "cli-edge", "cli-hq", "--tier", "edge", "--as", "x"), "--as needs a single TOPIC"),
        (("tally", "cli-edge", "--tier", "edge", "--master", "local"), "--master is for --engine spark"),
        (("compare", "--webhook", "http://x"), "--webhook and --state need each other"),
        (("compare", "--data", "edge=localhost:1"), "--data needs the TOPICs to read"),
        (("compare", "a", "--data", "localhost:1"), "write TIER=HOST:PORT"),
        (("compare", "a", "--from", "yesterday"), "is not a time"),
        (("compare", "a", "--from", "-1h", "--until", "-2h"), "does not lie after --from"),
        (("compare", "--tier", "a", "--tier", "a"), "tier a is named twice"),
    ],
)
def test_a_wrong_command_line_is_refused(kafka: LocalCluster, arguments: tuple[str, ...], message: str) -> None:
    result = run("audit", *arguments, "--bootstrap", kafka.bootstrap)
    assert result.exit_code == 2, result.output
    assert message in result.output


def test_an_unknown_topic_is_one_error(kafka: LocalCluster) -> None:
    result = run("audit", "find", "cli-nowhere", "--left", kafka.bootstrap, "--right", kafka.bootstrap)
    assert result.exit_code == 1
    assert "cli-nowhere" in result.output
    assert [line[:6] for line in result.output.splitlines()] == ["error:", "  hint"]


def test_a_fleet_is_a_tier_that_has_what_its_nodes_have_done(kafka: LocalCluster, tmp_path: Path) -> None:
    pipeline.write(kafka.bootstrap, "cli-fleet", [_items(300)])
    store = f"sqlite:///{tmp_path / 'store.db'}"
    with Fleet(kafka.bootstrap, group="cli-audited", topics=["cli-fleet"], store=store, start="earliest") as fleet:
        fleet.run(lambda unit: None, until_end=True)
    options = ("--tier", "etl", "--audit-topic", "cli-audit-fleet", "--bootstrap", kafka.bootstrap)
    counted = run("audit", "tally", "cli-fleet", "--fleet", "cli-audited", *options)
    assert counted.exit_code == 0, counted.output
    assert "300 records" in counted.output
    unknown = run("audit", "tally", "cli-fleet", "--fleet", "nosuch", *options)
    assert unknown.exit_code == 1
    assert "ottla-fleet.nosuch has committed nothing of topic cli-fleet" in unknown.stderr


def test_a_tier_is_one_thing(tmp_path: Path) -> None:
    both = run("audit", "tally", "x", "--tier", "t", "--group", "g", "--fleet", "f", "--bootstrap", "localhost:1")
    assert both.exit_code == 2
    assert "--group, --fleet and --spark-checkpoint are mutually exclusive" in both.stderr
    folder = run(
        "audit", "tally", "x", "--tier", "t", "--spark-checkpoint", str(tmp_path), "--bootstrap", "localhost:1"
    )
    assert folder.exit_code in (1, 2)
    assert "is no checkpoint of a streaming query" in folder.stderr
