"""`ottla lag`: tables and JSON on real brokers, the server as a program, and wrong settings."""

from __future__ import annotations

import json
import queue
import signal
import socket
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from tests.admin.members import fill
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.model import TopicPartition

from .commands import SECONDS, program, run

TOPIC, GROUP = "cli-lag", "cli-lag"
HEADINGS = ["group", "type", "topic", "partition", "committed", "end", "lag", "seconds", "state"]


@pytest.fixture(scope="module")
def admin(kafka: LocalCluster) -> Iterator[Admin]:
    with Admin(kafka.bootstrap) as opened:
        opened.create_topic(TOPIC, partitions=2, replicas=1, settings={"retention.ms": "-1"})
        fill(kafka.bootstrap, TOPIC, {0: 10}, first_ms=1_700_000_000_000)
        opened.groups.set_offsets(GROUP, {TopicPartition(TOPIC, 0): 4})
        yield opened
        opened.groups.delete(GROUP)
        opened.delete_topics(TOPIC)


def _run(kafka: LocalCluster, *arguments: str) -> Result:
    return run("lag", *arguments, "--bootstrap", kafka.bootstrap)


def _lines(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.broker
def test_lag_is_a_table_for_people_and_an_object_a_line_for_programs(kafka: LocalCluster, admin: Admin) -> None:
    shown = _run(kafka, GROUP).stdout.splitlines()
    assert shown[0] == "1 group: 1 UNKNOWN"
    assert shown[1].split()[:9] == HEADINGS
    assert shown[2].split()[:7] == [GROUP, "classic", TOPIC, "0", "4", "10", "6"]
    assert shown[3].split()[:7] == [GROUP, "classic", TOPIC, "1", "-", "0", "-"]
    rows = _lines(_run(kafka, GROUP, "--json"))
    row = next(row for row in rows if row["partition"] == 0)
    assert {"group", "topic", "partition", "committed", "end", "lag_records", "lag_seconds", "state"} <= row.keys()
    assert (row["committed"], row["end"], row["lag_records"], row["type"]) == (4, 10, 6, "classic")
    assert row["lag_seconds"] <= 9


@pytest.mark.broker
def test_watched_for_a_while_a_group_has_a_state(kafka: LocalCluster, admin: Admin) -> None:
    rows = _lines(_run(kafka, GROUP, "--json", "--for", "3s"))
    assert [(row["partition"], row["state"]) for row in rows] == [(0, "STOP"), (1, "NONE")]
    assert rows[0]["trend"] == 0.0


@pytest.mark.broker
def test_checkpoints_of_queries_are_in_the_same_table(kafka: LocalCluster, admin: Admin, tmp_path: Path) -> None:
    folder = tmp_path / "cli-lag-query"
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "offsets" / "0").write_text(f'v1\n{{}}\n{{"{TOPIC}":{{"0":7}}}}')
    (folder / "commits" / "0").write_text("v1\n{}")
    rows = _lines(_run(kafka, "--json", "--topic", TOPIC, "--spark-checkpoint", str(folder)))
    found = {(row["type"], row["group"], row["lag_records"]) for row in rows if row["partition"] == 0}
    assert {("spark", "cli-lag-query", 3), ("classic", GROUP, 6)} <= found


@pytest.mark.broker
def test_a_group_that_does_not_exist_is_an_error(kafka: LocalCluster, admin: Admin) -> None:
    result = _run(kafka, "cli-lag-nothing")
    assert (result.exit_code, result.stderr) == (
        1,
        f"error: group cli-lag-nothing not found: 'ottla groups list --bootstrap {kafka.bootstrap}' shows all groups\n",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topic", "("], "--topic: '(' is not a regular expression"),
        (["--for", "x"], "--for: 'x' is not a duration"),
        (["--for", "5s", "--watch"], "--for and --watch exclude each other"),
        (["--every", "0s"], "--every: '0s' is too small"),
        (["--spark-checkpoint", "/nothing/here"], "--spark-checkpoint: /nothing/here is no checkpoint"),
        (["serve", "--http", "8000"], "--http: '8000' is not HOST:PORT"),
        (["serve", "--http", "127.0.0.1:99999"], "--http: '127.0.0.1:99999' is not HOST:PORT"),
        (["serve", "--webhook", "alerts"], "--webhook 'alerts': an address that begins with http"),
        (["serve", "--metrics-family", "c"], "--metrics-family"),
        (["serve", "--window", "1"], "--window: 1 is too small"),
        (["serve", "--keep", "1s"], "--keep: '1s' is too small"),
        (
            ["serve", "--http", "127.0.0.1:0", "--history", "/nothing/here.db"],
            "/nothing/here.db cannot be used as a history",
        ),
        (["serve", "GROUP"], "unexpected extra argument"),
        (["--nothing"], "no such option --nothing"),
    ],
)
def test_wrong_uses_are_one_line(arguments: list[str], message: str) -> None:
    result = run("lag", *arguments, "--bootstrap", "127.0.0.1:1")
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_brokers_that_are_not_there_are_one_error() -> None:
    for command in ([], ["serve", "--http", "127.0.0.1:0"]):
        result = run("lag", *command, "--bootstrap", "127.0.0.1:1", "--timeout", "1s")
        assert result.exit_code == 1
        assert result.stderr.startswith("error: no broker answered") or "127.0.0.1:1" in result.stderr


def test_the_board_is_printed_as_it_is_loaded() -> None:
    board = json.loads(run("lag", "board").stdout)
    assert board["uid"] == "ottla-lag"


@pytest.mark.broker
def test_the_server_serves_polls_keeps_history_and_ends_on_sigterm(
    kafka: LocalCluster, admin: Admin, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    site = f"http://127.0.0.1:{port}"
    options = ("--http", f"127.0.0.1:{port}", "--every", "1s", "--cluster", "test", "--history", str(tmp_path / "h.db"))
    with program("lag", "serve", *options, "--bootstrap", kafka.bootstrap) as serving:

        def get(path: str) -> bytes:
            try:
                with urllib.request.urlopen(site + path, timeout=10) as answer:
                    return bytes(answer.read())
            except OSError:
                return b""

        eventually(lambda: get("/burrow/admin/ready") == b"READY", "the first poll")
        status = json.loads(get(f"/v3/kafka/test/consumer/{GROUP}/lag"))["status"]
        assert (status["group"], status["totallag"]) == (GROUP, 6)
        assert f'group="{GROUP}"'.encode() in get("/metrics")
        assert json.loads(get(f"/history?group={GROUP}"))["looks"][0]["lag_records"] == 6
        unused = tmp_path / "unused.db"
        taken = run("lag", "serve", *options[:2], "--history", str(unused), "--bootstrap", kafka.bootstrap)
        assert taken.exit_code == 2
        assert not unused.exists()
        assert f"cannot listen on 127.0.0.1:{port}: another program listens there" in taken.stderr
        serving.send_signal(signal.SIGTERM)
        _, errors = serving.communicate(timeout=SECONDS)
        assert serving.returncode == 128 + signal.SIGTERM
        assert errors.decode().splitlines() == [f"serving lag at {site}"]


@pytest.mark.broker
def test_a_webhook_is_told_of_a_group_that_stops_once_and_of_its_recovery_during_a_restart(
    kafka: LocalCluster, admin: Admin, tmp_path: Path
) -> None:
    group, posted = "cli-lag-alert", queue.SimpleQueue[tuple[str, str]]()

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            for change in json.loads(self.rfile.read(int(self.headers["Content-Length"])))["changes"]:
                if change["group"] == group:
                    posted.put((change["before"], change["after"]))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    admin.groups.set_offsets(group, {TopicPartition(TOPIC, 0): 4})
    hook = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=hook.serve_forever, daemon=True)
    thread.start()
    options = ("--http", "127.0.0.1:0", "--every", "1s", "--window", "3", "--confirm", "1", "--topic", TOPIC)
    keeping = ("--history", str(tmp_path / "h.db"), "--webhook", f"http://127.0.0.1:{hook.server_port}/hook")
    try:
        for expected in (("OK", "ERR"), ("ERR", "OK")):
            with program("lag", "serve", *options, *keeping, "--bootstrap", kafka.bootstrap) as serving:
                assert posted.get(timeout=SECONDS) == expected
                serving.send_signal(signal.SIGTERM)
                serving.communicate(timeout=SECONDS)
            admin.groups.set_offsets(group, {TopicPartition(TOPIC, 0): 10})
        assert posted.empty()
    finally:
        hook.shutdown()
        hook.server_close()
        thread.join(SECONDS)
        admin.groups.delete(group)
