"""`ottla work` as programs: signals, child processes, a terminal, and a live table, on real brokers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.admin.members import fill
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.engines.fleet.store import open_store
from ottla.engines.fleet.units import Snapshot

from .commands import SECONDS, program
from .shops import Shop, offsets, shop
from .test_consume_process import terminal

__all__ = ["shop"]

pytestmark = [pytest.mark.broker, pytest.mark.slow]

TOPIC = "cli-work-process"
COUNTS = {0: 150, 1: 150}


@pytest.fixture(scope="module")
def bootstrap(kafka: LocalCluster) -> Iterator[str]:
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic(TOPIC, partitions=2, replicas=1)
        fill(kafka.bootstrap, TOPIC, COUNTS)
        yield kafka.bootstrap
        admin.delete_topics(TOPIC)


class Place:
    """A group in a file of the test."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self.store = f"sqlite:///{folder}/fleet.db"
        self.where = ("--store", self.store, "--group", folder.name, "--bootstrap", bootstrap)
        self.group = folder.name

    def run(self, handler: str, *more: str) -> tuple[str, ...]:
        """The command."""
        fixed = ("--topic", TOPIC, "--from", "earliest", "--unit-records", "50", "--takes", "unit")
        return ("work", "run", "--handler", handler, *fixed, *self.where, *more)

    def look(self) -> Snapshot:
        store = open_store(self.store, self.group)
        with contextlib.closing(store):
            return store.look()


@pytest.fixture
def place(tmp_path: Path, bootstrap: str) -> Iterator[Place]:
    yield Place(tmp_path, bootstrap)
    (tmp_path / "go").touch()  # whoever still waits ends


def _ended(started: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    out, err = started.communicate(timeout=SECONDS)
    return started.returncode, out.decode(), err.decode()


def test_ctrl_c_lets_units_in_hand_be_finished(shop: Shop, place: Place) -> None:
    with program(*place.run(shop.handler("waits"), "--json")) as started:
        eventually(shop.begun, "no unit was begun", seconds=SECONDS)
        started.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            started.wait(0.5)
        shop.let_go()
        returned, out, err = _ended(started)
    assert returned == 130, err
    assert err.strip() == "stopping: finishing the units in hand; press Ctrl-C again to give them back"
    assert json.loads(out)["done"] == 1
    assert len(shop.seen()) == 50
    seen = place.look()
    assert (seen.counts.done, seen.out, seen.planner, seen.nodes) == (1, (), None, ())


@pytest.mark.parametrize("processes", [1, 2])
def test_a_second_signal_gives_them_back_at_once(shop: Shop, place: Place, processes: int) -> None:
    with program(*place.run(shop.handler("waits"), "--processes", str(processes))) as started:
        eventually(lambda: len(shop.begun()) == processes, "no unit was begun", seconds=SECONDS)
        started.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            started.wait(0.5)
        started.send_signal(signal.SIGINT)
        returned, out, err = _ended(started)
    assert returned == 143, err
    assert "units in hand were given back" in err
    assert "0 units done" in out
    seen = place.look()
    assert (seen.counts.done, seen.counts.given_back, seen.out) == (0, processes, ())


def test_processes_share_the_work_are_replaced_and_end_with_their_parent(shop: Shop, place: Place) -> None:
    with program(*place.run(shop.handler("waits"), "--processes", "2", "--lease", "1")) as started:
        eventually(lambda: len(shop.begun()) == 2, "not two processes", seconds=SECONDS)
        dead = min(shop.begun())
        os.kill(dead, signal.SIGKILL)
        eventually(lambda: len(shop.begun()) == 3, "nobody took its place", seconds=SECONDS)
        started.kill()
        started.wait(SECONDS)
        children = shop.begun() - {dead}
        assert all(map(_lives, children)), "what is in hand is to be finished"
        shop.let_go()
        eventually(lambda: not any(map(_lives, children)), "children outlive their parent", seconds=SECONDS)
        _, _, err = _ended(started)
    assert err == "a worker process was killed by signal 9; starting another\n"
    seen = place.look()
    # Two were in hand. How many more are begun before a child hears of its parent's end is a matter of milliseconds.
    assert seen.counts.done >= 2
    assert (seen.counts.reclaimed, seen.out) == (1, ())
    assert len(seen.nodes) <= 1, "of the one that was killed"


def test_processes_end_by_themselves_and_errors_of_theirs_are_reported(shop: Shop, place: Place) -> None:
    with program(*place.run(shop.handler("unit"), "--processes", "2", "--until", "latest", "--json")) as started:
        returned, out, err = _ended(started)
    assert (returned, err) == (0, "")
    assert json.loads(out)["records"] == 300
    assert shop.seen() == offsets(COUNTS)
    only_in_children = "import multiprocessing\nif multiprocessing.parent_process(): 1 / 0\ndef handle(unit): ...\n"
    (shop.folder / "picky.py").write_text(only_in_children)
    with program(*place.run("picky:handle", "--processes", "2")) as started:
        returned, out, err = _ended(started)
    assert (returned, out) == (2, "")
    assert err == "error: --handler: module picky cannot be imported: ZeroDivisionError: division by zero\n"


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def test_a_terminal_shows_how_it_goes_and_a_table_can_be_watched(shop: Shop, place: Place) -> None:
    with terminal() as (theirs, seen), program(*place.run(shop.handler("waits")), stderr=theirs) as started:
        eventually(
            lambda: b"0 units done, 0 records, 0 records/s, 0 failed, lag 300" in seen, "no line", seconds=SECONDS
        )
        with program("work", "status", "--watch", "--json", *place.where) as watching:
            assert watching.stdout is not None
            first, second = (json.loads(watching.stdout.readline()) for _ in range(2))
            watching.send_signal(signal.SIGINT)
            assert watching.wait(SECONDS) == 130
        assert (first["rates"], first["out"][0]["seen_seconds"]) == (None, None)
        assert second["rates"]["done"] == 0
        assert second["out"][0]["seen_seconds"] > 0
        assert second["nodes"][0]["name"] == second["planner"]
        shop.let_go()
        eventually(lambda: b"6 units done, 300 records" in seen, "no line at the end", seconds=SECONDS)
        started.send_signal(signal.SIGINT)
        assert started.wait(SECONDS) == 130
