"""What is kept and passed on: history, changes of state, the webhook; readers that are no groups."""

from __future__ import annotations

import json
import socket
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import eventually

from ottla.errors import BrokerError, ConfigError
from ottla.model import TopicPartition
from ottla.net import Cluster
from ottla.net.metadata import Metadata
from ottla.operations.lag.changes import Hysteresis
from ottla.operations.lag.evaluate import Evaluator
from ottla.operations.lag.history import History, HistoryFailed, sample_of
from ottla.operations.lag.poller import Poller
from ottla.operations.lag.sources import Checkpoint, readers
from ottla.operations.lag.values import GroupLag, GroupSample, GroupType, Snapshot, State, Status
from ottla.operations.lag.watcher import Poster
from ottla.operations.webhook import WebhookFailed

from .samples import TP, sample


def _snapshots(polls: int) -> list[Snapshot]:
    evaluator = Evaluator()
    return [evaluator.observe(sample(30.0 * n, 10 * n, 100 + 20 * n)) for n in range(polls)]


def test_history_is_read_back_and_fills_windows(tmp_path: Path) -> None:
    with History(tmp_path / "lag.db", keep_seconds=3600) as history:
        for snapshot in _snapshots(6):
            history.add(snapshot)
        looks = history.looks("billing", 60.0)
        assert [look["at"] for look in looks] == [60.0, 90.0, 120.0, 150.0]
        assert looks[-1]["lag_records"] == 150
        assert history.looks("other", 0.0) == []
    with History(tmp_path / "lag.db", keep_seconds=3600) as history:
        evaluator = Evaluator()
        for key, commits in history.commits("c", 0.0).items():
            evaluator.restore(sample_of(key), commits)
        (row,) = evaluator.observe(sample(180.0, 60, 220)).groups[0].rows
        assert (row.state, len(row.window)) == (State.WARN, 7)


def test_what_does_not_change_is_stored_seldom_and_what_is_old_is_deleted(tmp_path: Path) -> None:
    evaluator = Evaluator()
    with History(tmp_path / "lag.db", keep_seconds=3600) as history:
        for number in range(400):
            history.add(evaluator.observe(sample(30.0 * number, 10, 10)))
        looks = history.looks("billing", 0.0)
        assert looks[0]["at"] >= 30.0 * 399 - 3600 - 900
        assert len(looks) < 10


def test_a_history_that_has_no_room_has_some_again_when_what_is_old_is_deleted(tmp_path: Path) -> None:
    with History(tmp_path / "lag.db", keep_seconds=600.0) as history:
        # As a disk that is full answers, for this connection.
        history._file.execute("PRAGMA max_page_count = 12")
        evaluator, outcomes = Evaluator(), []
        for number in range(200):
            more = tuple(GroupSample(f"g{n}", GroupType.CLASSIC, committed={TP: number}) for n in range(20))
            try:
                history.add(evaluator.observe(sample(30.0 * number, number, 1000, more=more)))
                outcomes.append(True)
            except HistoryFailed:
                outcomes.append(False)
    assert not all(outcomes)
    assert any(outcomes[100:])


def test_other_files_are_refused_and_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database at all, but long enough to look at")
    with pytest.raises(ConfigError, match="cannot be used as a history"):
        History(text, keep_seconds=60)
    assert text.read_text().startswith("not a database")
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE people (name TEXT)")
    database.close()
    with pytest.raises(ConfigError, match="is another database"):
        History(other, keep_seconds=60)
    with pytest.raises(ConfigError, match="cannot be used as a history"):
        History(tmp_path / "no" / "folder.db", keep_seconds=60)


def _group(status: Status, name: str = "billing") -> GroupLag:
    return GroupLag(name, GroupType.CLASSIC, "Stable", status, ())


def _changes(statuses: list[Status], polls: int = 3) -> list[tuple[int, str, str]]:
    hysteresis = Hysteresis(polls)
    return [
        (number, change.before, change.after)
        for number, status in enumerate(statuses)
        for change in hysteresis.observe([_group(status)], float(number))
    ]


def test_a_change_counts_once_it_lasts() -> None:
    ok, err, warn, unknown = Status.OK, Status.ERR, Status.WARN, Status.UNKNOWN
    assert _changes([ok] * 5) == []
    assert _changes([ok, err, err, err, err]) == [(3, "OK", "ERR")]
    assert _changes([ok, err, ok, err, ok, err]) == []
    assert _changes([err, err, err, ok, ok, ok]) == [(2, "OK", "ERR"), (5, "ERR", "OK")]
    assert _changes([err, unknown, err, unknown, err]) == [(4, "OK", "ERR")]
    assert _changes([warn, warn, err, err, err]) == [(4, "OK", "ERR")]
    assert _changes([err, ok], polls=1) == [(0, "OK", "ERR"), (1, "ERR", "OK")]


def test_a_cluster_without_a_broker_that_is_up_is_no_cluster_without_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster("127.0.0.1:1") as cluster:
        monkeypatch.setattr(cluster, "metadata", lambda *_, **__: Metadata(cluster_id="c"))
        with pytest.raises(BrokerError, match="the cluster has no broker that is up"):
            Poller(cluster).poll()


def test_a_group_that_is_gone_begins_again() -> None:
    hysteresis = Hysteresis(1)
    assert len(hysteresis.observe([_group(Status.ERR)], 0.0)) == 1
    assert hysteresis.observe([], 1.0) == []
    assert len(hysteresis.observe([_group(Status.ERR)], 2.0)) == 1


def test_posts_go_out_in_order_and_again_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.operations.lag.watcher._RETRY_SECONDS", 0.05)
    posted: list[dict[str, Any]] = []
    failures = iter([True, True, False, False])

    def send(url: str, content: dict[str, Any]) -> None:
        if next(failures):
            raise WebhookFailed("alerts.example", "refused")
        posted.append(content)

    snapshot = _snapshots(1)[0]
    hysteresis = Hysteresis(1)
    with Poster("http://alerts.example/secret", send=send) as poster:
        for status in (Status.ERR, Status.OK):
            poster.add(snapshot, hysteresis.observe([_group(status)], 1.0))
        eventually(lambda: len(posted) == 2, lambda: f"posted {posted}")
    assert [content["changes"][0]["after"] for content in posted] == ["ERR", "OK"]
    assert posted[0]["cluster"] == "c"
    json.dumps(posted)
    assert not any(thread.name == "ottla-lag-webhook" for thread in threading.enumerate())


@pytest.mark.parametrize(
    "answer",
    [
        b"garbage\r\n\r\n",
        b"HTTP/9.9 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
        b"",
        b"HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 303 See Other\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_what_got_no_proper_answer_is_posted_again(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    monkeypatch.setattr("ottla.operations.lag.watcher._RETRY_SECONDS", 0.05)
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for content in (answer, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"):
                connection, _ = listener.accept()
                with connection:
                    asked.append(connection.recv(1 << 16).split()[0])
                    connection.sendall(content)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with Poster(f"http://127.0.0.1:{listener.getsockname()[1]}/hook") as poster:
            poster.add(_snapshots(1)[0], Hysteresis(1).observe([_group(Status.ERR)], 1.0))
            eventually(lambda: len(asked) == 2, lambda: f"asked {asked}", seconds=20)
        thread.join(20)
    assert asked == [b"POST", b"POST"]


def test_a_wrong_address_is_refused_before_anything_is_posted() -> None:
    for url in (
        *("alerts.example", "file:///etc/passwd", "http://", "http://[broken", "http://alerts.example/a b"),
        *(
            "http://alerts.example:port/",
            "http://alerts.example:99999/",
            "http://user:word@alerts.example/",
            "http://a/ü",
        ),
    ):
        with pytest.raises(ConfigError, match="an address that begins with http:// or https://"):
            Poster(url)
    with pytest.raises(ConfigError) as raised:
        Poster("ftp://alerts.example/?token=hidden")
    assert "hidden" not in str(raised.value)


def _checkpoint(folder: Path, batches: dict[int, str], done: list[int]) -> Path:
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    for number, line in batches.items():
        (folder / "offsets" / str(number)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{line}')
    for number in done:
        (folder / "commits" / str(number)).write_text("v1\n{}")
    return folder


def test_a_query_is_behind_its_last_committed_batch(tmp_path: Path) -> None:
    lines = {0: '{"clicks":{"0":10}}', 1: '{"clicks":{"0":20},"clicks@id":{}}', 2: '{"clicks":{"0":30}}'}
    folder = _checkpoint(tmp_path / "etl", lines, [0, 1])
    sample_ = Checkpoint.at(folder).read()
    assert (sample_.name, sample_.type, dict(sample_.committed)) == (
        "etl",
        GroupType.SPARK,
        {TopicPartition("clicks", 0): 20},
    )


def test_queries_whose_folders_have_one_name_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = '{"clicks":{"0":10}}'
    paths = [_checkpoint(tmp_path / parent / "checkpoint", {0: line}, [0]) for parent in ("a", "b")]
    other = _checkpoint(tmp_path / "etl", {0: line}, [0])
    found = Checkpoint.at_all([*paths, other, paths[0]])
    assert [each.read().name for each in found] == [str(paths[0]), str(paths[1]), "etl"]
    monkeypatch.chdir(other)
    assert Checkpoint.at(Path()).name == "etl"


def test_sources_of_other_kinds_and_unfinished_queries_have_no_offsets(tmp_path: Path) -> None:
    assert not Checkpoint.at(_checkpoint(tmp_path / "a", {0: '{"logOffset":5}'}, [0])).read().committed
    assert not Checkpoint.at(_checkpoint(tmp_path / "b", {0: '{"clicks":{"0":5}}'}, [])).read().committed
    two = '{"clicks":{"0":5}}\n{"views":{"1":6}}\n-'
    both = Checkpoint.at(_checkpoint(tmp_path / "c", {0: two}, [0])).read().committed
    assert dict(both) == {TopicPartition("clicks", 0): 5, TopicPartition("views", 1): 6}


def test_a_checkpoint_that_is_none_is_refused_and_one_that_goes_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no checkpoint of a streaming query"):
        Checkpoint.at(tmp_path)
    folder = _checkpoint(tmp_path / "etl", {0: '{"clicks":{"0":5}}'}, [0])
    checkpoint = Checkpoint.at(folder)
    (folder / "offsets" / "0").write_bytes(b"\xff\xfe\x00")
    (broken,) = readers([checkpoint], None, clock=lambda: 0.0)()
    assert broken.error is not None
    snapshot = Evaluator().observe(replace(sample(0.0, 10, 10), groups=(broken, *sample(0.0, 10, 10).groups)))
    assert [group.status for group in snapshot.groups] == [Status.OK, Status.UNKNOWN]
    assert TP in snapshot.logs
