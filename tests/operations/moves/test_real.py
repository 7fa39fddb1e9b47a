"""Moves on four real brokers in two racks: drained under load, killed, paused, cancelled; a broker goes down."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from tests.cli.commands import SECONDS, program, run
from tests.waiting import eventually

from ottla import Producer, Reader
from ottla.admin import Admin, NewTopic
from ottla.admin.follower_lag import Followed, find_follower_lag
from ottla.admin.movement import running_reassignments
from ottla.admin.reassignments import reassign
from ottla.admin.throttles import alter_broker, build_changes, check_changes
from ottla.cluster import LocalCluster
from ottla.model import TopicPartition
from ottla.net.targets import Node
from ottla.operations.moves import Move, Plan, RunFiles, read_plan
from ottla.operations.moves.leftovers import Found, clear_leftovers, find_throttles
from ottla.operations.moves.measuring import Gauge
from ottla.operations.moves.plan_file import write_plan
from ottla.operations.moves.reading import survey

pytestmark = pytest.mark.broker
KB = 1000


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Brokers 1 and 3 in rack a, 2 and 4 in rack b; 4 votes for no controller."""
    folder = tmp_path_factory.mktemp("moves")
    # A throttle counts after each response: with those of 1 MB, small partitions would arrive before it begins.
    small = {"replica.fetch.max.bytes": "60000", "replica.fetch.response.max.bytes": "60000"}
    small["auto.leader.rebalance.enable"] = "false"  # it elects leaders by itself every five minutes
    racks = ("a", "b")
    with LocalCluster("moves", brokers=4, racks=racks, dir=folder, heap_bytes=192 << 20, settings=small) as cluster:
        yield cluster


@pytest.fixture
def admin(brokers: LocalCluster) -> Iterator[Admin]:
    with Admin(brokers.bootstrap) as opened:
        yield opened


@contextmanager
def _topic(
    admin: Admin, name: str, replicas: list[list[int]], *, size_bytes: int = 0, minimum: int = 1
) -> Iterator[list[bytes]]:
    """A topic with these replicas and some data in each partition; deleted at the end, with all its moves."""
    settings = {"min.insync.replicas": str(minimum)}
    admin.create_topics([NewTopic(name=name, assignments=replicas, settings=settings)])
    written = []
    with Producer(admin.cluster.bootstrap, compression="none") as producer:
        for partition in range(len(replicas)):
            for number in range(size_bytes // (50 * KB)):
                written.append(f"{partition}/{number}/".encode() + os.urandom(50 * KB))
                producer.send(name, written[-1], partition=partition)
    try:
        yield written
    finally:
        admin.delete_topics(name)
        _cleared(admin)


def _cleared(admin: Admin) -> None:
    """Nothing of one test is left for the next."""
    eventually(lambda: not running_reassignments(admin.cluster, deadline=admin.cluster.deadline()))
    clear_leftovers(admin.cluster, _throttles(admin), deadline=admin.cluster.deadline())


def _run(brokers: LocalCluster, *arguments: str) -> Result:
    return run(*arguments, "--bootstrap", brokers.bootstrap)


def _throttles(admin: Admin) -> Found:
    return find_throttles(admin.cluster, deadline=admin.cluster.deadline())


def _replicas(admin: Admin, name: str) -> list[tuple[int, ...]]:
    return [partition.replicas for partition in admin.describe_topics(name)[0].partitions]


def _plan(brokers: LocalCluster, path: Path, *goal: str) -> Any:
    result = _run(brokers, "reassign", "plan", *goal, "--out", str(path), "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def _await_moving(admin: Admin, process: subprocess.Popen[bytes]) -> None:
    def moving() -> bool:
        assert process.poll() is None, process.communicate()
        return bool(running_reassignments(admin.cluster, deadline=admin.cluster.deadline()))

    eventually(moving, "a move")


def _end(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=SECONDS)
    return process.returncode, out.decode(), err.decode()


def test_brokers_are_listed_with_racks_replicas_and_bytes(brokers: LocalCluster, admin: Admin) -> None:
    with _topic(admin, "listed", [[1, 2], [4, 1]], size_bytes=100 * KB):
        rows = json.loads(_run(brokers, "brokers", "list", "--json").stdout)
        assert [(row["id"], row["rack"], row["state"]) for row in rows] == [
            (1, "a", "up"),
            (2, "b", "up"),
            (3, "a", "up"),
            (4, "b", "up"),
        ]
        assert [row["replicas"] for row in rows] == [2, 1, 0, 1]
        assert [row["preferred"] for row in rows] == [1, 0, 0, 1]
        assert rows[0]["size_bytes"] > 200 * KB
        assert rows[0]["usable_bytes"] > 0
        shown = _run(brokers, "brokers", "list").stdout
        assert shown.startswith("broker")


def test_a_broker_is_drained_under_load_by_a_runner_that_is_killed(
    brokers: LocalCluster, admin: Admin, tmp_path: Path
) -> None:
    before = [[4, 1], [4, 3], [1, 2], [3, 4], [1, 4], [2, 3]]
    with _topic(admin, "loaded", before, size_bytes=1500 * KB) as written:
        path = tmp_path / "drain.json"
        preview = _plan(brokers, path, "--drain", "4", "--throttle", "1MB/s")
        assert preview["moved_replicas"] == preview["lower_bound"] == 4
        assert preview["moved_bytes"] > 6000 * KB
        assert preview["seconds"] == pytest.approx(preview["moved_bytes"] / 1e6, rel=0.1)  # all of it goes to broker 2
        ended = threading.Event()
        sent: list[bytes] = []

        def load() -> None:
            with Producer(brokers.bootstrap) as producer:
                while not ended.wait(0.002):
                    sent.append(f"load {len(sent)}".encode())
                    producer.send("loaded", sent[-1])

        writer = threading.Thread(target=load)
        writer.start()
        try:
            command = ("reassign", "run", str(path), "--yes", "--bootstrap", brokers.bootstrap)
            with program(*command, "--throttle", "500kB/s") as first:
                _await_moving(admin, first)
                second = _run(brokers, "reassign", "run", str(path), "--yes")
                assert second.exit_code == 1
                assert "another process is running the plan" in second.stderr
                first.send_signal(signal.SIGKILL)
            left = _throttles(admin)
            assert left.moving > 0
            assert {broker: set(own.values()) for broker, own in left.brokers.items()} == {
                broker: {"500000"} for broker in (1, 2, 3, 4)
            }
            assert left.topics["loaded"]
            assert not left.has_leftovers  # moves that run need them
            resumed = _run(brokers, "reassign", "run", str(path), "--throttle", "20MB/s")
            assert resumed.exit_code == 0, resumed.stderr
        finally:
            ended.set()
            writer.join()
        assert "continuing the plan" in resumed.stderr
        assert "drain broker 4: complete; 4 of 4 partitions as planned" in resumed.stdout
        assert all(4 not in replicas for replicas in _replicas(admin, "loaded"))
        assert [len(replicas) for replicas in _replicas(admin, "loaded")] == [2] * 6
        assert not list(_throttles(admin).rows())
        receipt = json.loads(RunFiles(path).receipt.read_text())
        assert (receipt["outcome"], receipt["as_planned"], receipt["throttles_left"]) == ("complete", 4, {})
        assert _run(brokers, "reassign", "verify", str(path)).exit_code == 0
        with Reader(brokers.bootstrap) as reader:
            values = [value for batch in reader.read("loaded") for value in batch["value"].to_pylist()]
        assert sorted(values) == sorted([*written, *sent])
        undo = _run(brokers, "reassign", "run", str(RunFiles(path).undo), "--yes", "--throttle", "none")
        assert undo.exit_code == 0, undo.stderr
        assert _replicas(admin, "loaded") == [tuple(replicas) for replicas in before]


def test_a_run_is_paused_changed_and_cancelled(brokers: LocalCluster, admin: Admin, tmp_path: Path) -> None:
    before = [[4, 1], [4, 3], [3, 4], [1, 4], [4, 1], [4, 3], [3, 4], [1, 4]]
    with _topic(admin, "steered", before, size_bytes=1000 * KB):
        path = tmp_path / "drain.json"
        _plan(brokers, path, "--drain", "4")
        assert _run_plain("reassign", "pause", str(path)).exit_code == 1  # nothing runs it
        command = ("reassign", "run", str(path), "--yes", "--throttle", "30kB/s", "--bootstrap", brokers.bootstrap)
        with program(*command) as process:
            _await_moving(admin, process)
            assert _run_plain("reassign", "pause", str(path)).exit_code == 0
            shown = _run(brokers, "reassign", "status", str(path), "--json")
            assert shown.exit_code == 0, shown.stderr
            status = json.loads(shown.stdout)
            assert (status["is_running"], status["is_paused"], status["done"]) == (True, True, 0)
            assert status["waiting"] + status["moving"] == 8
            assert 0 < status["moving"] <= 5  # broker 2 receives that many at a time
            everything = json.loads(_run(brokers, "reassign", "status", "--json").stdout)
            assert {row["topic"] for row in everything} == {"steered"}
            assert _run_plain("reassign", "throttle", str(path), "20kB/s").exit_code == 0
            eventually(lambda: "20000" in _throttles(admin).brokers[2].values())
            assert json.loads(_run_plain("reassign", "resume", str(path), "--json").stdout) == {"is_paused": False}
            assert _run(brokers, "reassign", "cancel", str(path)).exit_code == 0
            code, out, err = _end(process)
        assert code == 1
        assert "cancelled; 0 of 8 partitions as planned" in out
        assert "moves it back" in err
        assert _replicas(admin, "steered") == [tuple(replicas) for replicas in before]
        assert not list(_throttles(admin).rows())


def test_what_a_killed_run_began_is_cancelled_without_it(brokers: LocalCluster, admin: Admin, tmp_path: Path) -> None:
    with _topic(admin, "abandoned", [[4, 1], [3, 4]], size_bytes=1000 * KB):
        path = tmp_path / "drain.json"
        _plan(brokers, path, "--drain", "4")
        command = ("reassign", "run", str(path), "--yes", "--throttle", "50kB/s", "--bootstrap", brokers.bootstrap)
        with program(*command) as process:
            _await_moving(admin, process)
            process.kill()
        cancelled = _run(brokers, "reassign", "cancel", str(path))
        assert cancelled.exit_code == 0, cancelled.stderr
        assert _replicas(admin, "abandoned") == [(4, 1), (3, 4)]
        assert not list(_throttles(admin).rows())


def test_the_first_ctrl_c_waits_and_the_second_moves_back(brokers: LocalCluster, admin: Admin, tmp_path: Path) -> None:
    with _topic(admin, "interrupted", [[4, 1]], size_bytes=1000 * KB):
        path = tmp_path / "drain.json"
        _plan(brokers, path, "--drain", "4")
        command = ("reassign", "run", str(path), "--yes", "--throttle", "50kB/s", "--bootstrap", brokers.bootstrap)
        with program(*command) as process:
            _await_moving(admin, process)
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            told = b""
            while b"press Ctrl-C again" not in told:
                told += process.stderr.readline()
            process.send_signal(signal.SIGINT)
            code, _, _ = _end(process)
        assert code == 130
        assert _replicas(admin, "interrupted") == [(4, 1)]
        assert not list(_throttles(admin).rows())


def test_a_broker_that_goes_down_does_not_hold_up_the_rest(brokers: LocalCluster, admin: Admin, tmp_path: Path) -> None:
    with _topic(admin, "halved", [[1, 2], [1, 4], [1, 2], [1, 4], [1, 2], [1, 2]], size_bytes=900 * KB):
        path = tmp_path / "even.json"
        _plan(brokers, path, "--balance", "--least", "replicas")
        moves = read_plan(path).moves
        assert [move.added for move in moves if move.added] == [(3,), (3,), (3,), (4,)]
        command = ("reassign", "run", str(path), "--yes", "--throttle", "200kB/s", "--wait-for-lost", "1s")
        with program(*command, "--bootstrap", brokers.bootstrap) as process:
            _await_moving(admin, process)
            brokers.kill(4)
            code, out, err = _end(process)
        assert code == 1, err
        assert "broker 4 is down: 1 partition waits for it, the others go on" in err
        assert "incomplete" in out
        assert not running_reassignments(admin.cluster, deadline=admin.cluster.deadline())
        present = _replicas(admin, "halved")
        assert [len(replicas) for replicas in present] == [2] * 6
        receipt = json.loads(RunFiles(path).receipt.read_text())
        assert receipt["lost_brokers"] == [4]
        left = {row["partition"] for row in receipt["differences"]}
        assert left == {move.partition.partition for move in moves if 4 in move.added}
        assert all(present[move.partition.partition] == move.after for move in moves if 3 in move.added)
        refused = _run(brokers, "reassign", "run", str(path), "--yes")
        assert "broker 4 is to get 1 replica and is not up" in refused.stderr
        listed = json.loads(_run(brokers, "brokers", "list", "--json").stdout)
        assert 4 not in {row["id"] for row in listed if row["state"] == "up"}
        brokers.restart(4)
        done = _run(brokers, "reassign", "run", str(path), "--yes", "--throttle", "none")
        assert done.exit_code == 0, done.stderr
        _run(brokers, "throttles", "clear", "--yes")  # broker 4 had a rate when it went down
        assert not list(_throttles(admin).rows())


def test_replicas_of_a_dead_broker_are_replaced(brokers: LocalCluster, admin: Admin, tmp_path: Path) -> None:
    with _topic(admin, "widowed", [[1, 4], [4, 3], [1, 2]], size_bytes=100 * KB):
        brokers.kill(4)
        try:
            eventually(lambda: 4 not in admin.cluster.metadata(()).brokers)
            path = tmp_path / "repair.json"
            assert _plan(brokers, path, "--repair")["moved_replicas"] == 2
            done = _run(brokers, "reassign", "run", str(path), "--yes")
            assert done.exit_code == 0, done.stderr
            assert [sorted(replicas) for replicas in _replicas(admin, "widowed")] == [[1, 2], [2, 3], [1, 2]]
        finally:
            brokers.restart(4)


def test_the_replication_factor_goes_up_and_down(brokers: LocalCluster, admin: Admin, tmp_path: Path) -> None:
    with _topic(admin, "factor", [[1], [2], [3]], size_bytes=100 * KB) as written:
        up = _run(brokers, "topics", "replicas", "factor", "2", "--yes", "--plan", str(tmp_path / "up.json"))
        assert up.exit_code == 0, up.stderr
        rack = {1: "a", 2: "b", 3: "a", 4: "b"}
        assert [{rack[broker] for broker in replicas} for replicas in _replicas(admin, "factor")] == [{"a", "b"}] * 3
        assert [replicas[0] for replicas in _replicas(admin, "factor")] == [1, 2, 3]
        again = _run(brokers, "topics", "replicas", "factor", "2", "--yes")
        assert "nothing has to move" in again.stdout
        down = _run(brokers, "topics", "replicas", "factor", "1", "--yes", "--plan", str(tmp_path / "down.json"))
        assert down.exit_code == 0, down.stderr
        assert _replicas(admin, "factor") == [(1,), (2,), (3,)]
        with Reader(brokers.bootstrap) as reader:
            values = [value for batch in reader.read("factor") for value in batch["value"].to_pylist()]
        assert sorted(values) == sorted(written)


def test_preferred_leaders_are_elected(brokers: LocalCluster, admin: Admin) -> None:
    with _topic(admin, "elected", [[1, 2], [2, 1], [3, 4]]):
        # Another order makes another replica the preferred one; nobody elects it.
        changed = {TopicPartition("elected", 0): (2, 1), TopicPartition("elected", 1): (1, 2)}
        assert reassign(admin.cluster, changed, deadline=admin.cluster.deadline()) == {}
        eventually(lambda: _replicas(admin, "elected") == [(2, 1), (1, 2), (3, 4)])
        looked = _run(brokers, "leaders", "elect", "elected", "--dry-run")
        assert looked.stdout == "2 partitions would get the preferred leader\n"
        elected = json.loads(_run(brokers, "leaders", "elect", "elected", "--json").stdout)
        assert [row["partition"] for row in elected["elected"]] == [0, 1]
        eventually(lambda: [p.leader for p in admin.describe_topics("elected")[0].partitions] == [2, 1, 3])
        assert _run(brokers, "leaders", "elect", "elected").stdout == "0 partitions got the preferred leader\n"


def test_throttles_left_behind_are_cleared_and_those_of_people_stay(brokers: LocalCluster, admin: Admin) -> None:
    leader, follower = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"
    with _topic(admin, "forgotten", [[1, 2]]), _topic(admin, "chosen", [[1, 2]]):
        assert _run(brokers, "throttles", "show").stdout == "no throttles\n"
        admin.alter_settings("forgotten", {leader: "0:1,0:2", follower: "0:3"})
        admin.alter_settings("chosen", {leader: "*"})
        shown = json.loads(_run(brokers, "throttles", "show", "--json").stdout)
        assert shown["left_over"]["topics"] == {"forgotten": {leader: None, follower: None}}
        unasked = _run(brokers, "throttles", "clear")
        assert (unasked.exit_code, "pass --yes" in unasked.stderr) == (2, True)
        cleared = _run(brokers, "throttles", "clear", "--yes")
        assert cleared.stdout.endswith("removed throttled replicas of 1 topic\n")
        assert list(_throttles(admin).rows()) == [("topic chosen", leader, "*", "all replicas: set by a person, stays")]


def test_a_partition_that_another_program_changes_in_the_middle_is_left_alone(
    brokers: LocalCluster, admin: Admin, tmp_path: Path
) -> None:
    with _topic(admin, "changed", [[1, 2]] * 7, size_bytes=400 * KB):
        path = tmp_path / "move.json"
        moves = tuple(Move(TopicPartition("changed", at), (1, 2), (3, 2), 400 * KB + at) for at in range(7))
        write_plan(path, Plan(admin.cluster.metadata(()).cluster_id or "", moves))
        command = ("reassign", "run", str(path), "--yes", "--json", "--bootstrap", brokers.bootstrap)
        with program(*command, "--throttle", "150kB/s") as process:
            _await_moving(admin, process)
            # Five move at a time: the last two wait. One gets a third replica, the other old and new ones together.
            more = {TopicPartition("changed", 6): (1, 2, 4), TopicPartition("changed", 5): (1, 2, 3)}
            assert not reassign(admin.cluster, more, deadline=admin.cluster.deadline())
            code, out, err = _end(process)
        assert (code, json.loads(out)["as_planned"]) == (1, 5)
        assert "changed-6 stays as it is: another program has given it the replicas 1,2,4" in err
        assert _replicas(admin, "changed")[5:] == [(1, 2, 3), (1, 2, 4)]
        assert not list(_throttles(admin).rows())


def test_a_plan_that_is_continued_from_a_copy_leaves_no_rate(
    brokers: LocalCluster, admin: Admin, tmp_path: Path
) -> None:
    """What brokers had before is in a file beside the first plan."""
    with _topic(admin, "copied", [[1, 2]] * 2, size_bytes=2000 * KB):
        path, copy = tmp_path / "move.json", tmp_path / "copy.json"
        moves = tuple(Move(TopicPartition("copied", at), (1, 2), (3, 2), 2000 * KB) for at in range(2))
        for each in (path, copy):
            write_plan(each, Plan(admin.cluster.metadata(()).cluster_id or "", moves))
        command = ("reassign", "run", str(path), "--yes", "--bootstrap", brokers.bootstrap)
        with program(*command, "--throttle", "200kB/s") as process:
            _await_moving(admin, process)
            process.send_signal(signal.SIGKILL)
        result = _run(brokers, "reassign", "run", str(copy), "--yes", "--throttle", "20MB/s")
        assert result.exit_code == 0, result.stderr
        eventually(lambda: not list(_throttles(admin).rows()))  # also what a test before has just taken back


def test_another_plan_in_the_file_of_a_killed_run_begins_afresh(
    brokers: LocalCluster, admin: Admin, tmp_path: Path
) -> None:
    with _topic(admin, "afresh", [[1, 2]] * 2, size_bytes=400 * KB):
        path = tmp_path / "move.json"
        cluster = admin.cluster.metadata(()).cluster_id or ""

        def plan(before: tuple[int, ...], after: tuple[int, ...]) -> Plan:
            moves = tuple(Move(TopicPartition("afresh", at), before, after, 400 * KB) for at in range(2))
            made = Plan(cluster, moves)
            write_plan(path, made)
            return made

        plan((1, 2), (3, 2))
        with program("reassign", "run", str(path), "--yes", "--bootstrap", brokers.bootstrap) as process:
            _await_moving(admin, process)
            assert _run_plain("reassign", "throttle", str(path), "300kB/s").exit_code == 0
            eventually(lambda: any("300000 bytes/s" in row for row in _throttles(admin).rows()), "the rate")
            process.send_signal(signal.SIGKILL)
        eventually(lambda: not running_reassignments(admin.cluster, deadline=admin.cluster.deadline()))
        other = plan((3, 2), (1, 4))
        unasked = _run(brokers, "reassign", "run", str(path))
        assert (unasked.exit_code, "pass --yes" in unasked.stderr) == (2, True)
        result = _run(brokers, "reassign", "run", str(path), "--yes", "--throttle", "20MB/s")
        assert result.exit_code == 0, result.stderr
        assert "throttle 20MB/s" in result.stderr
        assert "throttle 300kB/s" not in result.stderr
        assert read_plan(RunFiles(path).undo) == other.undone()
        assert not any("rate" in row[1] for row in _throttles(admin).rows())  # what the first run found is put back


def test_a_rate_that_all_brokers_have_by_default_is_not_made_their_own(
    brokers: LocalCluster, admin: Admin, tmp_path: Path
) -> None:
    rates = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")

    def set_default(value: str | None) -> None:
        admin.cluster.call(
            Node(1),
            lambda version_of: build_changes(version_of, 4, {"": dict.fromkeys(rates, value)}),
            check=check_changes,
            what="altering defaults of all brokers",
            deadline=admin.cluster.deadline(),
        )

    with _topic(admin, "default", [[1, 2]], size_bytes=200 * KB):
        path = tmp_path / "move.json"
        write_plan(
            path,
            Plan(admin.cluster.metadata(()).cluster_id or "", (Move(TopicPartition("default", 0), (1, 2), (3, 2)),)),
        )
        set_default("7000000")
        try:
            eventually(lambda: len(_throttles(admin).brokers) == 4, "the default")
            assert not _throttles(admin).has_leftovers
            assert {row[3] for row in _throttles(admin).rows()} == {"default of all brokers: set by a person, stays"}
            result = _run(brokers, "reassign", "run", str(path), "--yes", "--throttle", "1MB/s")
            assert result.exit_code == 0, result.stderr
        finally:
            set_default(None)
        eventually(lambda: not list(_throttles(admin).rows()), "no rate")


def test_throttles_of_moves_that_begin_during_the_question_stay(
    brokers: LocalCluster, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = "follower.replication.throttled.replicas"
    with _topic(admin, "asked", [[1, 2]], size_bytes=400 * KB):
        admin.alter_settings("asked", {follower: "0:3"})

        def answer(*_: object, **__: object) -> None:
            rates = {"leader.replication.throttled.rate": "50000", "follower.replication.throttled.rate": "50000"}
            for broker in (1, 2, 3):
                alter_broker(admin.cluster, broker, rates, deadline=admin.cluster.deadline())
            admin.alter_settings("asked", {"leader.replication.throttled.replicas": "0:1,0:2"})
            reassign(admin.cluster, {TopicPartition("asked", 0): (3, 2)}, deadline=admin.cluster.deadline())

        monkeypatch.setattr("ottla.cli.throttles.commands.confirm", answer)
        assert _run(brokers, "throttles", "clear").exit_code == 0
        assert [row[2] for row in _throttles(admin).rows() if row[1] == follower] == ["0:3"]
        reassign(admin.cluster, {TopicPartition("asked", 0): None}, deadline=admin.cluster.deadline())


def test_a_follower_that_is_slow_is_behind_though_brokers_report_no_lag(brokers: LocalCluster, admin: Admin) -> None:
    slow, other = TopicPartition("slow", 0), TopicPartition("planned", 0)
    with _topic(admin, "slow", [[1, 2]], size_bytes=2000 * KB), _topic(admin, "planned", [[1, 2]]):
        plan = Plan(admin.cluster.metadata(()).cluster_id or "", (Move(other, (1, 2), (3, 2)),))
        gauge = Gauge(admin.cluster, plan)
        gauge.begin(survey(admin.cluster, deadline=admin.cluster.deadline()))
        assert gauge.calm.lag_records == 0
        for broker in (1, 2, 3):
            rates = {"leader.replication.throttled.rate": "1", "follower.replication.throttled.rate": "1"}
            alter_broker(admin.cluster, broker, rates, deadline=admin.cluster.deadline())
        throttled = {"leader.replication.throttled.replicas": "*", "follower.replication.throttled.replicas": "*"}
        admin.alter_settings("slow", throttled)
        reassign(admin.cluster, {slow: (1, 3)}, deadline=admin.cluster.deadline())

        def lag() -> dict[tuple[TopicPartition, int], int]:
            followed = [Followed(slow, 1, (2, 3))]
            return find_follower_lag(admin.cluster, followed, deadline=admin.cluster.deadline())

        eventually(lambda: (slow, 3) in lag(), "broker 3 has begun to follow")
        assert lag()[slow, 2] == 0
        assert 35 < lag()[slow, 3] <= 40
        assert 35 < gauge.signs({}).load.lag_records <= 40
        of_plan = Gauge(admin.cluster, replace(plan, moves=(Move(slow, (1, 2), (1, 3)),)))
        assert of_plan.signs({}).load.lag_records == 0  # replicas that move are behind by intention
        reassign(admin.cluster, {slow: None}, deadline=admin.cluster.deadline())


def test_a_run_is_refused_where_it_must_not_be(brokers: LocalCluster, admin: Admin, tmp_path: Path) -> None:
    with _topic(admin, "refused", [[4, 1], [2, 3]], size_bytes=500 * KB):
        path = tmp_path / "drain.json"
        _plan(brokers, path, "--drain", "4")
        plan = read_plan(path)

        def refusal(*arguments: str) -> str:
            result = _run(brokers, *arguments)
            assert result.exit_code == 1, result.stdout
            return result.stderr

        other = tmp_path / "other.json"
        write_plan(other, replace(plan, cluster_id="elsewhere"))
        assert "the plan is for cluster elsewhere" in refusal("reassign", "run", str(other), "--yes")
        assert "the plan is for cluster elsewhere" in refusal("reassign", "verify", str(other))
        damaged = tmp_path / "damaged.json"
        damaged.write_text(path.read_text().replace('"after": [', '"after": [1, '))
        assert "its checksum is wrong" in refusal("reassign", "run", str(damaged), "--yes")
        damaged.write_text(path.read_text()[:-20])
        assert "is damaged" in refusal("reassign", "run", str(damaged), "--yes")
        assert "cannot be read" in refusal("reassign", "run", str(tmp_path / "none.json"), "--yes")
        assert "there is no broker 9" in refusal("reassign", "plan", "--drain", "9")
        assert "rack" in refusal("reassign", "plan", "--drain", "2", "--drain", "4")
        assert "5 replicas need 5 brokers" in refusal("topics", "replicas", "refused", "5", "--yes")
        unasked = _run(brokers, "reassign", "run", str(path))
        assert (unasked.exit_code, "pass --yes" in unasked.stderr) == (2, True)
        # Somebody else moves replicas.
        foreign = TopicPartition("refused", 1)
        for broker in (1, 4):
            rates = {"leader.replication.throttled.rate": "1000", "follower.replication.throttled.rate": "1000"}
            alter_broker(admin.cluster, broker, rates, deadline=admin.cluster.deadline())
        admin.alter_settings("refused", {"follower.replication.throttled.replicas": "1:1,1:4"})
        reassign(admin.cluster, {foreign: (4, 1)}, deadline=admin.cluster.deadline())
        told = refusal("reassign", "run", str(path), "--yes")
        assert "other moves are running that do not belong to this plan: refused-1" in told
        reassign(admin.cluster, {foreign: None}, deadline=admin.cluster.deadline())
        _cleared(admin)
        assert _run(brokers, "throttles", "clear", "--yes").exit_code == 0
        assert _replicas(admin, "refused") == [(4, 1), (2, 3)]
        # The layout is another one than that of the plan.
        reassign(admin.cluster, {TopicPartition("refused", 0): (1, 3)}, deadline=admin.cluster.deadline())
        _cleared(admin)
        assert "the replicas have changed since the plan was made" in refusal("reassign", "run", str(path), "--yes")
        assert not list(_throttles(admin).rows())


def _run_plain(*arguments: str) -> Result:
    return run(*arguments)
