"""The state file, the process table, and what is reported when they disagree."""

from __future__ import annotations

import errno
import json
import os
import random
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from ottla.cli.cluster.view import describe
from ottla.cluster import Condition, LocalCluster, lifecycle
from ottla.cluster.creation import ClusterRequest
from ottla.cluster.guard import start_guard
from ottla.cluster.nodes import Java, write_properties
from ottla.cluster.ports import PortTaken, free_ports
from ottla.cluster.process import Life, ProcessId, end, life, send, spawn, wait_until
from ottla.cluster.redis import find_redis, password, password_file, start_redis, wait_for_redis
from ottla.cluster.state import ClusterFolder, ClusterState, NodeState, Phase, RedisState, StateDamaged, folders
from ottla.cluster.status import read_status
from ottla.engines.fleet.store import open_store
from ottla.engines.fleet.units import Charter
from ottla.errors import LocalClusterError
from ottla.net import Deadline

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)",
]


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[ProcessId]:
    process = spawn(SLEEP, log=tmp_path / "log", environment=dict(os.environ))
    yield process
    end([process], grace=0)


def _state(phase: Phase = Phase.RUNNING, process: ProcessId | None = None) -> ClusterState:
    state = ClusterRequest(brokers=2, redis=True, secure=True, cache_dir=Path("cache")).new_state("c", random.Random(3))
    nodes = tuple(replace(node, process=process) for node in state.nodes)
    redis = replace(state.redis, process=process) if state.redis is not None else None
    return replace(state, phase=phase, nodes=nodes, redis=redis)


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path, "c")
    state = replace(_state(process=ProcessId(7, "then")), owner=ProcessId.own(), settings={"a": "b"})
    folder.save(state)
    assert folder.load() == state
    assert [folder.name for folder in folders(tmp_path)] == ["c"]


def test_a_cluster_that_was_never_there_is_absent(tmp_path: Path) -> None:
    assert read_status(ClusterFolder(tmp_path, "c")).condition is Condition.ABSENT
    assert LocalCluster("c", dir=tmp_path).down() is False


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 99}', '{"format": 1, "name": "c"}', "\xff\xfe"])
def test_a_damaged_state_file_is_named_and_down_removes_it(tmp_path: Path, text: str) -> None:
    folder = ClusterFolder(tmp_path, "c")
    folder.path.mkdir()
    (folder.path / "state.json").write_text(text, encoding="latin-1")
    with pytest.raises(StateDamaged, match=r"state\.json"):
        folder.load()
    assert read_status(folder).condition is Condition.DAMAGED
    with pytest.raises(StateDamaged, match=r"down\(\) removes"):  # and not: delete data that may be wanted
        LocalCluster("c", dir=tmp_path).up()
    assert (folder.path / "state.json").exists()
    assert LocalCluster("c", dir=tmp_path).down() is True
    assert read_status(folder).condition is Condition.ABSENT


@pytest.mark.parametrize("wrong", [{"nodes": []}, {"owner": {"pid": "x", "started": 1.0}}, {"owner": {"pid": 1}}])
def test_a_state_file_that_makes_no_sense_is_damaged(tmp_path: Path, wrong: dict[str, object]) -> None:
    folder = ClusterFolder(tmp_path, "c")
    folder.save(_state())
    file = folder.path / "state.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **wrong}))
    assert read_status(folder).condition is Condition.DAMAGED


def test_processes_that_are_gone_make_a_state_stale(tmp_path: Path, sleeper: ProcessId) -> None:
    folder = ClusterFolder(tmp_path, "c")
    folder.save(_state(process=sleeper))
    assert read_status(folder).condition is Condition.RUNNING
    end([sleeper], grace=0)
    status = read_status(folder)
    assert status.condition is Condition.STALE
    assert "up() starts it again, down() removes it" in status.note
    assert "'ottla cluster up --name c' starts it again" in describe(status)
    assert not status.up


def test_a_start_that_was_cut_short_is_stale_and_one_under_way_is_not(tmp_path: Path, sleeper: ProcessId) -> None:
    folder = ClusterFolder(tmp_path, "c")
    folder.save(_state(Phase.STARTING, sleeper))
    assert read_status(folder).condition is Condition.STALE
    with folder.locked(timeout=1):
        assert read_status(folder).condition is Condition.STARTING


def test_a_cluster_whose_program_is_gone_is_orphaned(tmp_path: Path, sleeper: ProcessId) -> None:
    dead = spawn([sys.executable, "-c", ""], log=tmp_path / "gone", environment=dict(os.environ))
    assert wait_until(lambda: life(dead) is Life.DEAD, timeout=10)
    folder = ClusterFolder(tmp_path, "c")
    folder.save(replace(_state(process=sleeper), owner=dead))
    status = read_status(folder)
    assert status.condition is Condition.ORPHANED
    assert f"pid {dead.pid}" in status.note


def test_a_recycled_pid_is_never_hit(tmp_path: Path) -> None:
    other = ProcessId(os.getpid(), "at another time")
    assert life(other) is Life.DEAD
    assert send(other, signal.SIGKILL) is False
    ClusterFolder(tmp_path, "c").save(_state(process=other))
    assert LocalCluster("c", dir=tmp_path).down() is True


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux has the ticks since boot")
def test_a_clock_that_is_set_changes_no_process(sleeper: ProcessId, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: 0.0)
    assert ProcessId.of(sleeper.pid) == sleeper
    assert life(sleeper) is Life.RUNNING


def test_a_frozen_process_is_distinguished_from_a_running_one(sleeper: ProcessId) -> None:
    send(sleeper, signal.SIGSTOP)
    assert wait_until(lambda: life(sleeper) is Life.FROZEN, timeout=5)
    send(sleeper, signal.SIGCONT)
    assert wait_until(lambda: life(sleeper) is Life.RUNNING, timeout=5)


def test_a_frozen_process_can_be_ended_gracefully(sleeper: ProcessId) -> None:
    send(sleeper, signal.SIGSTOP)
    end([sleeper], grace=10)
    assert life(sleeper) is Life.DEAD


def test_a_process_that_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = spawn(STUBBORN, log=log, environment=dict(os.environ))
    assert wait_until(lambda: log.read_text() == "up\n", timeout=10)
    end([process], grace=0.2)
    assert life(process) is Life.DEAD


def test_a_program_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    with pytest.raises(LocalClusterError, match="could not start"):
        spawn([str(tmp_path / "nothing")], log=tmp_path / "log", environment={})


def test_two_commands_on_one_cluster_do_not_collide(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path, "c")
    entered, release = threading.Event(), threading.Event()

    def hold() -> None:
        with folder.locked(timeout=1):
            entered.set()
            release.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    assert entered.wait(10)
    with (
        pytest.raises(LocalClusterError, match="another command has been working on cluster 'c'"),
        folder.locked(timeout=0.1),
    ):
        pass
    release.set()
    holder.join()
    with folder.locked(timeout=1):
        assert folder.busy()
    assert not folder.busy()


def test_a_full_disk_is_an_error_and_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ClusterFolder(tmp_path, "c")
    before = _state()
    folder.save(before)

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with (
        pytest.raises(LocalClusterError, match=r"cluster 'c' in .*No space left on device"),
        folder.locked(timeout=1),
    ):
        folder.save(replace(before, phase=Phase.KEPT))
    assert [path.name for path in folder.path.iterdir()] == ["state.json"]
    assert folder.load() == before


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LocalClusterError, match="Not a directory"):
        LocalCluster("c", dir=tmp_path / "file" / "clusters").down()


def test_a_process_keeps_nothing_open_that_its_starter_got_from_a_shell(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    process = spawn(SLEEP, log=tmp_path / "log", environment=dict(os.environ))
    try:
        os.close(writer)
        assert select.select([reader], [], [], 5)[0] == [reader]
        assert os.read(reader, 1) == b""  # the end: no other process holds the other side
    finally:
        end([process], grace=0)
        os.close(reader)


def test_the_guard_sees_that_a_program_is_dead_before_its_parent_does(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path, "c")
    with subprocess.Popen(SLEEP, stdout=subprocess.DEVNULL) as owner:
        known = ProcessId.of(owner.pid)
        assert known is not None
        folder.save(replace(_state(), owner=known))
        guard = start_guard(folder, known, environment=dict(os.environ))
        try:
            owner.kill()  # not waited for: it stays a zombie, and its pid stays taken
            assert wait_until(lambda: not folder.path.exists(), timeout=20)
        finally:
            end([guard], grace=0)


def test_another_redis_on_the_port_is_not_taken_for_ours(tmp_path: Path) -> None:
    environment = dict(os.environ)
    (port,) = free_ports(1, random.Random())
    first = start_redis(find_redis(environment), tmp_path / "first", port=port, environment=environment)
    try:
        wait_for_redis(first, tmp_path / "first", port=port, timeout=10)
        second = start_redis(find_redis(environment), tmp_path / "second", port=port, environment=environment)
        with pytest.raises(PortTaken, match=str(port)):
            wait_for_redis(second, tmp_path / "second", port=port, timeout=10)
    finally:
        end([first], grace=0)
    third = start_redis(find_redis(environment), tmp_path / "second", port=port, environment=environment)
    end([third], grace=0)
    with pytest.raises(LocalClusterError, match="ended during startup") as caught:  # an old log line is not blamed
        wait_for_redis(third, tmp_path / "second", port=port, timeout=10)
    assert not isinstance(caught.value, PortTaken)


def _said(port: int, *commands: str) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall("".join(f"{command}\r\n" for command in (*commands, "QUIT")).encode())
        received = b""
        while chunk := connection.recv(1 << 16):
            received += chunk
        return received


def _redis_on_a_free_port(folder: Path) -> tuple[ProcessId, int]:
    """Other tests take ports at the same time, so a free port may be taken a moment later."""
    environment = dict(os.environ)
    while True:
        (port,) = free_ports(1, random.Random())
        running = start_redis(find_redis(environment), folder, port=port, environment=environment)
        try:
            wait_for_redis(running, folder, port=port, timeout=30)
        except PortTaken:
            continue
        return running, port


def test_no_other_account_can_use_the_redis(tmp_path: Path) -> None:
    """They reach its port, but cannot read its password, neither in a file nor in the process list."""
    environment, folder = dict(os.environ), tmp_path / "c" / 'a "redis"'
    before = os.umask(0)
    try:
        running, port = _redis_on_a_free_port(folder)
    finally:
        os.umask(before)
    try:
        secret = password(folder)
        assert len(secret) > 30
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {
            path.name: path.stat().st_mode & 0o077
            for path in folder.rglob("*")
            if path.is_file() and secret.encode() in path.read_bytes()
        } == {
            "password": 0,
            "redis.conf": 0,
        }
        assert secret not in " ".join(psutil.Process(running.pid).cmdline())
        assert b"NOAUTH" in _said(port, "EVAL 'return 1' 0")
        assert b"WRONGPASS" in _said(port, "AUTH wrong")
        with closing(open_store(RedisState(port).url(password_file(folder)), "etl")) as store:
            assert store.found(Charter()) == Charter()
        for command in ("CONFIG GET dir", "MODULE LIST", "DEBUG JMAP", "REPLICAOF NO ONE"):
            assert b"unknown command" in _said(port, f"AUTH {secret}", command)
    finally:
        end([running], grace=0)
    again = start_redis(find_redis(environment), folder, port=port, environment=environment)
    try:
        wait_for_redis(again, folder, port=port, timeout=10)
        assert password(folder) == secret, "those who know it go on"
    finally:
        end([again], grace=0)


def test_the_password_is_not_sent_to_another_process_that_has_the_port(tmp_path: Path) -> None:
    environment = dict(os.environ)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        port = server.getsockname()[1]
        running = start_redis(find_redis(environment), tmp_path / "redis", port=port, environment=environment)
        with pytest.raises(PortTaken):
            wait_for_redis(running, tmp_path / "redis", port=port, timeout=10)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_kept_cluster_moves_when_its_redis_lost_its_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = _state(Phase.KEPT)
    assert state.redis is not None
    taken = state.redis.port
    monkeypatch.setattr(lifecycle, "is_free", lambda port: port != taken)
    monkeypatch.setattr(lifecycle, "start_nodes", lambda state, *_, **__: state)
    tools = lifecycle.Tools(Java(Path("java"), (), {}), Path("redis"))
    folder = ClusterFolder(tmp_path, "c")
    moved = lifecycle.start_cluster(state, folder, tools=tools, deadline=Deadline.after(1), rng=random.Random(5))
    assert moved.redis is not None
    assert moved.redis.port != taken


def test_what_runs_on_in_a_deleted_folder_is_ended_by_the_next_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis, _ = _redis_on_a_free_port(tmp_path / "c" / "redis")
    try:
        shutil.rmtree(tmp_path / "c")
        monkeypatch.setenv("PATH", str(tmp_path))  # no Java is enough here
        monkeypatch.delenv("JAVA_HOME", raising=False)
        with pytest.raises(LocalClusterError, match="Java"):
            LocalCluster("c", dir=tmp_path).up()
        assert life(redis) is Life.DEAD
    finally:
        end([redis], grace=0)


def test_after_a_failed_format_no_further_one_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    def fail(state: ClusterState, node: NodeState, *_: object, **__: object) -> None:
        begun.append(node.id)
        time.sleep(0.02)
        raise LocalClusterError("no")

    monkeypatch.setattr(lifecycle, "format_storage", fail)
    state = ClusterRequest(brokers=50, cache_dir=Path("cache")).new_state("c", random.Random(3))
    tools = lifecycle.Tools(Java(Path("java"), (), {}), None)
    folder = ClusterFolder(tmp_path, "c")
    with pytest.raises(LocalClusterError, match="no"):
        lifecycle.start_nodes(state, folder, state.nodes, tools=tools, deadline=Deadline.after(5))
    assert len(begun) < 50


def test_a_lock_ends_with_the_process_that_held_it(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from ottla.cluster.state import ClusterFolder\n"
        "with ClusterFolder(Path(sys.argv[1]), 'c').locked(timeout=1): print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert ClusterFolder(tmp_path, "c").busy()
        holder.kill()
    assert not ClusterFolder(tmp_path, "c").busy()


def test_what_is_not_running_says_how_to_start_it(tmp_path: Path) -> None:
    with pytest.raises(LocalClusterError, match="does not exist: start it with up"):
        _ = LocalCluster("c", dir=tmp_path).bootstrap
    with pytest.raises(LocalClusterError, match="cluster 'c' is absent"):
        LocalCluster.attach("c", tmp_path)


def test_files_with_passwords_are_for_their_user_alone(tmp_path: Path) -> None:
    state = ClusterRequest(brokers=1, secure=True, cache_dir=Path("cache")).new_state("c", random.Random(3))
    folder = ClusterFolder(tmp_path / "base", "c")
    folder.path.mkdir(parents=True)
    folder.path.chmod(0o755)  # as an earlier version created it
    folder.node(1).mkdir()
    folder.properties(1).write_text("")
    before = os.umask(0)
    try:
        folder.save(state)
        write_properties(state, state.nodes[0], folder)
    finally:
        os.umask(before)
    assert state.users["alice"] in folder.properties(1).read_text()
    assert folder.load() == state
    for path, mode in ((folder.path, 0o700), (folder.path / "state.json", 0o600), (folder.properties(1), 0o600)):
        assert stat.S_IMODE(path.stat().st_mode) == mode, path


def test_a_lock_goes_with_its_cluster(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path, "c")
    with folder.locked(timeout=1):
        folder.create()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "c.lock"]
    with folder.locked(timeout=1):
        folder.remove()
    assert list(tmp_path.iterdir()) == []


_COUNTING = """
import sys
from pathlib import Path
from ottla.cluster.state import ClusterFolder
base, rounds = Path(sys.argv[1]), int(sys.argv[2])
folder = ClusterFolder(base, "c")
for _ in range(rounds):
    with folder.locked(timeout=60):
        count = base.parent / "count"
        count.write_text(str(int(count.read_text()) + 1))
"""


def test_commands_exclude_one_another_although_lock_files_come_and_go(tmp_path: Path) -> None:
    (tmp_path / "count").write_text("0")
    command = [sys.executable, "-c", _COUNTING, str(tmp_path / "base"), "100"]
    running = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    assert (tmp_path / "count").read_text() == "300"
