"""Jobs run on the nodes of a fleet as they do in threads: one result per range, whichever node dies."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.engines.fleet.job_play import Killing, Play, Slow
from tests.waiting import eventually

from ottla.engines.fleet import jobs
from ottla.engines.fleet.job_notes import JobNote, job_note
from ottla.engines.fleet.store import Store, open_store
from ottla.engines.fleet.units import Charter, Move
from ottla.errors import EngineFailed, FleetConflict, InputError, StoreUnavailable
from ottla.model import OffsetRange

from .conftest import OpenStore
from .servers import RedisServer

_PROJECT = Path(__file__).parents[3]


def ranges(count: int, topic: str = "clicks") -> list[OffsetRange]:
    return [OffsetRange(topic, number % 4, number * 10, number * 10 + 10) for number in range(count)]


@contextmanager
def nodes(url: str, group: str, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that work on jobs."""
    command = [sys.executable, "-m", "tests.engines.fleet.job_play", url, group]
    started = [subprocess.Popen(command, cwd=_PROJECT) for _ in range(count)]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.parametrize("url", ["memory", "sqlite", "redis"], indirect=True)
def test_every_range_has_one_result(store: Store, tmp_path: Path) -> None:
    units = ranges(25)
    results = list(jobs.run(Slow(str(tmp_path)), units, kind=Play(), store=store, threads=2))
    assert sorted(unit for unit, _ in results) == sorted(units)
    assert store.look().partitions == ()
    assert store.notes() == {}


@pytest.mark.slow
@pytest.mark.parametrize("url", ["redis"], indirect=True)
def test_other_nodes_work_and_one_that_is_killed_is_made_up_for(
    store: Store, url: str, group: str, tmp_path: Path
) -> None:
    units = ranges(60)
    store.found(Charter(max_attempts=4, lease_seconds=2.0))
    with nodes(url, group, 2) as crew:
        eventually(lambda: len(store.look().nodes) == 2, "both are there")
        pids: list[int] = []
        results = []
        for unit, pid in jobs.run(Slow(str(tmp_path), 0.1), units, kind=Play(), store=store):
            results.append(unit)
            pids.append(pid)
            if crew[0].poll() is None and crew[0].pid in pids:
                crew[0].kill()
                crew[0].wait()
    assert sorted(results) == sorted(units)
    assert {process.pid for process in crew} < {*pids}, "each of them and this process have worked"


@pytest.mark.parametrize("url", ["memory"], indirect=True)
def test_an_error_of_our_own_is_raised_as_it_is(store: Store, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nobody can do this") as caught:
        list(jobs.run(Slow(str(tmp_path)), ranges(3, "refused"), kind=Play(), store=store))
    assert "was worked on" in caught.value.__notes__[0]
    assert store.notes() == {}


@pytest.mark.parametrize("url", ["memory"], indirect=True)
def test_any_other_error_is_retried_and_then_raised(store: Store, tmp_path: Path) -> None:
    assert len(list(jobs.run(Slow(str(tmp_path)), ranges(3, "hard"), kind=Play(), store=store))) == 3
    with pytest.raises(EngineFailed, match=r"failed 4 times, most recently on .*: ValueError: it always fails"):
        list(jobs.run(Slow(str(tmp_path)), ranges(3, "impossible"), kind=Play(), store=store))


@pytest.mark.parametrize("url", ["memory"], indirect=True)
def test_a_job_that_exits_has_failed_and_the_node_works_on(store: Store, tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match=r"failed 4 times, most recently on .*: SystemExit: no more"):
        list(jobs.run(Slow(str(tmp_path)), ranges(3, "exits"), kind=Play(), store=store))


@pytest.mark.parametrize("url", ["memory"], indirect=True)
def test_unused_results_are_undone(store: Store, tmp_path: Path) -> None:
    results = jobs.run(Slow(str(tmp_path)), ranges(8), kind=Play(), store=store, threads=2)
    first, _ = next(results)
    results.close()
    assert not (tmp_path / f"undone-{first.partition}-{first.start}").exists()
    assert store.look().partitions == ()
    assert store.notes() == {}


@pytest.mark.parametrize("url", ["memory"], indirect=True)
def test_one_job_at_a_time(open_one: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_LEAD_SECONDS", 0.5)
    first = jobs.run(Slow(str(tmp_path), 0.05), ranges(30), kind=Play(), store=open_one())
    next(first)
    with pytest.raises(FleetConflict, match="another job runs in this group"):
        next(jobs.run(Slow(str(tmp_path)), ranges(3), kind=Play(), store=open_one()))
    assert len(list(first)) == 29


@pytest.mark.parametrize("url", ["memory"], indirect=True)
def test_what_a_killed_asker_left_is_cleared_by_the_next(store: Store, tmp_path: Path) -> None:
    store.found(Charter(max_attempts=4))
    store.note("job", b"of somebody who died")
    store.note("result/of-somebody/1", b"a result")
    store.reset(ranges(1)[0].topic_partition, 0)
    assert len(list(jobs.run(Slow(str(tmp_path)), ranges(3), kind=Play(), store=store))) == 3
    assert store.notes() == {}


@pytest.mark.parametrize("url", ["memory"], indirect=True)
def test_a_job_that_another_one_replaced_says_so_and_leaves_it_alone(store: Store, tmp_path: Path) -> None:
    results = jobs.run(Slow(str(tmp_path), 0.1), ranges(100), kind=Play(), store=store)
    next(results)
    another = JobNote(kind="play", name="another", row=dict(Play().job_row(Slow(str(tmp_path), 0.1)))).encoded()
    store.note("job", another)
    with pytest.raises(FleetConflict, match="the job is gone"):
        list(results)
    assert store.notes("job") == {"job": another}
    assert store.look().partitions != ()


class Planted:
    """Leaves a mark wherever it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self._folder / "unpickled"),)


@pytest.mark.parametrize("url", ["memory", "sqlite"], indirect=True)
def test_nothing_that_was_planted_in_the_store_is_run(open_one: OpenStore, tmp_path: Path) -> None:
    """Neither as a job, on a node that serves, nor as a result, in the process of the caller."""
    store, stopped = open_one(), threading.Event()
    planted = pickle.dumps(("name", Planted(tmp_path)))
    unit = ranges(1)[0]
    store.found(Charter(max_attempts=4))
    lease = store.lead("an intruder/planner")
    assert lease is not None
    store.note("job", planted)
    store.plan(lease, [Move(unit.topic_partition, None, unit.stop, (unit,))])
    node = threading.Thread(
        target=jobs.serve, args=(open_one(),), kwargs={"kinds": [Play()], "is_stopped": stopped.is_set}
    )
    node.start()
    try:
        eventually(lambda: store.look().counts.given_back > 0, "the node has seen the job and left it alone")
        assert store.resign(lease)
        pending = jobs.run(Slow(str(tmp_path), 0.01), ranges(10), kind=Play(), store=store)
        results = [next(pending)]
        name = job_note(store.notes("job")["job"]).name
        store.note(f"result/{name}/planted", pickle.dumps((unit, Planted(tmp_path))))
        results += list(pending)
    finally:
        stopped.set()
        node.join(30)
    assert sorted(unit for unit, _ in results) == sorted(ranges(10))
    assert not (tmp_path / "unpickled").exists()


@pytest.mark.parametrize("url", ["memory"], indirect=True)
def test_a_job_of_a_kind_that_a_node_does_not_know_is_left_to_others(store: Store, tmp_path: Path) -> None:
    class Other(Play):
        name = "other"

    stopped = threading.Event()
    node = threading.Thread(target=jobs.serve, args=(store,), kwargs={"kinds": [Other()], "is_stopped": stopped.is_set})
    node.start()
    try:
        results = list(jobs.run(Slow(str(tmp_path)), ranges(20), kind=Play(), store=store))
        assert sorted(unit for unit, _ in results) == sorted(ranges(20))
        assert store.look().counts.failed == 0
    finally:
        stopped.set()
        node.join(30)


@contextmanager
def killed_in_the_middle(tmp_path: Path, *options: str) -> Iterator[tuple[RedisServer, Store, Killing]]:
    """A Redis, a store in it, and a job that kills it in its first range; nothing is left running."""
    with RedisServer(tmp_path, *options) as server:
        store = open_store(f"redis://127.0.0.1:{server.port}", "jobs")
        yield server, store, Killing(str(tmp_path), pid=int(store_pid(server)))
        store.close()
    eventually(lambda: not _threads(), lambda: f"threads are left: {_threads()}")


def store_pid(server: RedisServer) -> str:
    lines: bytes = server.ask("INFO", "server")
    return next(line.split(":")[1] for line in lines.decode().splitlines() if line.startswith("process_id"))


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(("ottla-jobs", "ottla-fleet"))]


def test_a_store_that_is_away_when_a_range_is_done_gets_the_result_when_it_is_back(tmp_path: Path) -> None:
    with killed_in_the_middle(tmp_path, "--appendonly", "yes", "--appendfsync", "always") as (server, store, job):
        results: list[OffsetRange] = []
        asking = threading.Thread(
            target=lambda: results.extend(
                unit for unit, _ in jobs.run(job, ranges(20), kind=Play(), store=store, threads=2)
            )
        )
        asking.start()
        eventually(lambda: (tmp_path / "killed").exists(), "it was killed")
        server.kill()
        server.start()
        asking.join(60)
        assert sorted(results) == sorted(ranges(20))
        assert store.notes() == {}


def test_a_store_that_stays_away_ends_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_STORE_SECONDS", 0.5)
    with killed_in_the_middle(tmp_path) as (_, store, job), pytest.raises(StoreUnavailable):
        list(jobs.run(job, ranges(20), kind=Play(), store=store, threads=2))


def test_a_store_that_forgets_the_job_ends_it(tmp_path: Path) -> None:
    with killed_in_the_middle(tmp_path, "--save", "") as (server, store, job):
        caught: list[BaseException] = []

        def ask() -> None:
            try:
                list(jobs.run(job, ranges(20), kind=Play(), store=store, threads=2))
            except FleetConflict as error:
                caught.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        eventually(lambda: (tmp_path / "killed").exists(), "it was killed")
        server.kill()
        server.start()
        asking.join(60)
        assert "the store lost it" in str(caught[0])
