"""Ottla: a node of a `Fleet` with one thread and with two; `Reader.read` of the same topic; a node that waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import ottla
from bench.peers.fleet import WAIT_SECONDS, Done, Job, Watch, burn, warmed
from ottla.engines.fleet.fleet import Fleet

_NAP = 0.01
_SETTLE_SECONDS = 3.0


def _read(job: Job) -> Done:
    with ottla.Reader(job.bootstrap) as reader:
        reader.offsets(job.topic)  # connects
        watch = Watch()
        records = sum(batch.num_rows for batch in reader.read(job.topic))
        watch.lap()
        return watch.done(records)


def _fleet(job: Job) -> Fleet:
    return Fleet(job.bootstrap, group=job.group, store=job.store, start="earliest")


def _gather(fleet: Fleet, job: Job) -> None:
    """The topic comes when all nodes are there, so that none of them begins alone."""
    fleet.start()
    deadline = time.monotonic() + WAIT_SECONDS
    while len(fleet.look().nodes) < job.nodes:
        if time.monotonic() > deadline:
            raise AssertionError(f"{len(fleet.look().nodes)} of {job.nodes} nodes came")
        time.sleep(_NAP)
    fleet.add_topics(job.topic)


class _Hand:
    """One thread that works. All hands of a node share the clock of the one that was first."""

    def __init__(self, fleet: Fleet, job: Job, watches: list[Watch]) -> None:
        self.records = 0
        self.overheads: list[float] = []
        self._fleet = fleet
        self._job = job
        self._watches = watches

    def work(self) -> None:
        """Until everything is done."""
        read_at: float | None = None
        for unit in self._fleet.units(until_end=True):
            now = time.perf_counter()
            if not self._watches:
                self._watches.append(Watch())
            if read_at is not None:
                self.overheads.append((now - read_at) * 1000)
            with unit:
                for batch in unit.read():
                    self.records += batch.num_rows
                    burn(batch.num_rows, self._job)
                read_at = time.perf_counter()
            self._watches[0].lap()


def _work(threads: int) -> Callable[[Job], Done]:
    def run(job: Job) -> Done:
        with _fleet(job) as fleet:
            _gather(fleet, job)
            watches: list[Watch] = []
            hands = [_Hand(fleet, job, watches) for _ in range(threads)]
            crew = [threading.Thread(target=hand.work) for hand in hands]
            for one in crew:
                one.start()
            for one in crew:
                one.join()
            watch = watches[0] if watches else Watch()
            overheads = [value for hand in hands for value in hand.overheads]
            return watch.done(sum(hand.records for hand in hands), overheads)

    return run


def _wait(job: Job) -> Done:
    """A node that has nothing to do: its processor time is all there is to see."""
    with _fleet(job) as fleet:
        fleet.start()
        fleet.add_topics(job.topic)
        thread = threading.Thread(target=fleet.run, args=(lambda unit: None,))
        thread.start()
        time.sleep(_SETTLE_SECONDS)
        watch = Watch()
        time.sleep(job.seconds)
        watch.lap()
        fleet.stop()
        thread.join()
        return watch.done(0)


VARIANTS = {
    "Reader.read": warmed(_read),
    "one thread": warmed(_work(1)),
    "two threads": warmed(_work(2)),
    "waiting": _wait,
}
PACED: dict[str, Callable[[Job], list[float]]] = {}
