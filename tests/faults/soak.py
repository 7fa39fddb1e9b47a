"""Ten minutes of random faults: `python -m tests.faults.soak --minutes 10`.

Threads produce through proxies to three real brokers, while brokers are killed and frozen, leaders moved, and
connections cut, swallowed and slowed down. At the end confluent-kafka reads everything. The exit code is 1 if the
outcomes do not match the log, if producing did not recover after a fault, or if memory grew.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType

from tests.brokers import mend

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.config import Timeouts
from ottla.errors import OttlaError
from ottla.net import Cluster
from ottla.produce.producer import Producer

from .breaking import rotate_leaders
from .history import State, Verdict, check, read_log
from .load import Load
from .proxy import Faults, Proxies

TOPIC = "soak"
PARTITIONS = 6
BROKERS = (1, 2, 3)
GROWTH_BYTES = 24 << 20
"""More than this between the second and the last third of a run is a leak."""
_LINE_SECONDS = 10.0
_RECOVERY_SECONDS = 120.0


class Breaker:
    """All kinds of faults, by name. Each ends after a while and leaves what `mend` and `heal` repair."""

    def __init__(self, kafka: LocalCluster, proxies: Proxies, cluster: Cluster, chance: random.Random) -> None:
        self._kafka = kafka
        self._proxies = proxies
        self._cluster = cluster
        self._chance = chance
        self.kinds: dict[str, Callable[[], None]] = {
            "kill one": lambda: self._kill(chance.choice(BROKERS)),
            "kill all": lambda: self._kill(*BROKERS),
            "stop one": lambda: kafka.stop(chance.choice(BROKERS)),
            "freeze one": lambda: self._freeze(chance.choice(BROKERS)),
            "freeze all": lambda: self._freeze(*BROKERS),
            "move leaders": self._move,
            "cut answers": lambda: self._spoil(Faults(cut=0.3, passes=None)),
            "lose answers": lambda: self._spoil(Faults(cut=1.0)),
            "hole": lambda: self._spoil(Faults(hole=True)),
            "drip": lambda: self._spoil(Faults(drip=chance.choice((5, 50, 500)))),
            "delay": lambda: self._spoil(Faults(delay=chance.uniform(0.1, 1.5))),
            "reset": self._reset,
        }

    def heal(self) -> None:
        """Make everything work again."""
        self._proxies.heal()
        mend(self._kafka)

    def _kill(self, *ids: int) -> None:
        self._kafka.kill(*ids)
        time.sleep(self._chance.uniform(0, 8))

    def _freeze(self, *ids: int) -> None:
        self._kafka.freeze(*ids)
        time.sleep(self._chance.uniform(1, 10))

    def _move(self) -> None:
        for _ in range(self._chance.randrange(1, 4)):
            rotate_leaders(self._cluster, TOPIC)

    def _spoil(self, faults: Faults) -> None:
        """Apply faults in front of some of the brokers."""
        for proxy in self._chance.sample(self._proxies.proxies, self._chance.randrange(1, 4)):
            proxy.faults.cut, proxy.faults.passes = faults.cut, faults.passes
            proxy.faults.hole, proxy.faults.delay, proxy.faults.drip = faults.hole, faults.delay, faults.drip
        time.sleep(self._chance.uniform(2, 10))

    def _reset(self) -> None:
        for _ in range(20):
            self._chance.choice(self._proxies.proxies).reset()
            time.sleep(self._chance.uniform(0, 0.3))


class Watch:
    """Prints a line every ten seconds; a context manager around the run."""

    def __init__(self, load: Load, minutes: float) -> None:
        self.faults: Counter[str] = Counter()
        self.now = "nothing"
        self.memory: list[tuple[float, int]] = []
        """Seconds since the start and bytes, sampled while nothing is broken."""
        self.slowest: dict[str, float] = {}
        """Seconds from the end of a fault until everything sent before had its outcome, the longest of each kind."""
        self._load = load
        self._began = time.monotonic()
        self._seconds = minutes * 60
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch")

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    @property
    def is_over(self) -> bool:
        """Whether the time has passed."""
        return self.elapsed >= self._seconds

    def recovered(self, fault: str, seconds: float) -> None:
        """Record how long after a fault nothing from before was undecided."""
        self.slowest[fault] = max(seconds, self.slowest.get(fault, 0.0))

    def sample(self) -> None:
        """Sample the memory of this process, without the history that grows with the run."""
        kept = sum(history.size_bytes for history in self._load.histories)
        self.memory.append((self.elapsed, resident_bytes() - kept))

    def growth_bytes(self) -> int | None:
        """Growth from the second third of the run to the last; None if there are too few samples."""
        thirds: list[list[int]] = [[], [], []]
        for seconds, size in self.memory:
            thirds[min(2, int(3 * seconds / self.elapsed))].append(size)
        if not thirds[1] or not thirds[2]:
            return None
        return int(statistics.median(thirds[2]) - statistics.median(thirds[1]))

    def _run(self) -> None:
        while not self._stop.wait(_LINE_SECONDS):
            load = self._load
            acked, failed = load.told(State.ACKED), load.told(State.FAILED) + load.told(State.UNKNOWN)
            print(
                f"{self.elapsed:5.0f} s: {load.sent:,} sent, {acked:,} acknowledged, {failed:,} failed,"
                f" {load.sent - acked - failed:,} open, {self.faults.total()} faults (now: {self.now}),"
                f" {resident_bytes() / 1e6:.0f} MB",
                flush=True,
            )


def resident_bytes() -> int:
    """The memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run(breaker: Breaker, load: Load, *, watch: Watch, chance: random.Random) -> str | None:
    """Break and repair until the time is over. Returns what went wrong, or None."""
    while not watch.is_over:
        watch.now = chance.choice(list(breaker.kinds))
        try:
            breaker.kinds[watch.now]()
            watch.faults[watch.now] += 1
        finally:
            breaker.heal()
        name, watch.now = watch.now, f"recovery from {watch.now}"
        try:
            healed = load.mark()
            watch.recovered(name, load.wait_for_outcomes(healed, seconds=_RECOVERY_SECONDS))
            load.wait_for(500, since=healed, seconds=_RECOVERY_SECONDS)
        except AssertionError as error:
            return f"no progress after {name}: {error}"
        time.sleep(chance.uniform(0, 2))
        watch.sample()
    return None


def judge(verdict: Verdict, watch: Watch, stuck: str | None) -> list[str]:
    """What is wrong with a run; empty if nothing is."""
    growth = watch.growth_bytes()
    print(f"faults: {dict(watch.faults)}")
    print("slowest recovery: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in watch.slowest.items()))
    print(f"memory: {'too few samples' if growth is None else f'{growth / 1e6:+.1f} MB'} from second to last third")
    print(f"log: {verdict}", flush=True)
    problems = [] if verdict.clean else ["the log contradicts the outcomes"]
    if stuck is not None:
        problems.append(stuck)
    if growth is not None and growth > GROWTH_BYTES:
        problems.append(f"memory grew by {growth / 1e6:.1f} MB")
    if not watch.faults or not verdict.told[State.ACKED]:
        problems.append("nothing was proved: no fault happened, or nothing was acknowledged")
    return problems


def soak(*, minutes: float, seed: int, writers: int, delivery_timeout: float) -> list[str]:
    """The whole run. Returns what is wrong."""
    chance = random.Random(seed)
    codec = chance.choice(("none", "lz4", "zstd"))
    print(f"seed {seed}, {minutes:g} minutes, {writers} threads, compression {codec}", flush=True)
    timeouts = Timeouts(connect=3, request=5)
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster("soak", brokers=3, dir=folder) as kafka,
        Cluster(kafka.bootstrap) as cluster,
        Proxies(kafka.bootstrap, seed=seed) as proxies,
        Producer(
            proxies.bootstrap, timeouts=timeouts, compression=codec, delivery_timeout=delivery_timeout
        ) as producer,
    ):
        Admin(cluster).create_topic(TOPIC, partitions=PARTITIONS, replicas=3)
        with Load(producer, TOPIC, writers=writers, pause=0.01) as load, Watch(load, minutes) as watch:
            load.wait_for(500)
            stuck = run(Breaker(kafka, proxies, cluster, chance), load, watch=watch, chance=chance)
            load.settle(300)
        log = read_log(kafka.bootstrap, TOPIC, partitions=PARTITIONS, seconds=300)
        return judge(check(load.histories, log), watch, stuck)


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="the same faults in the same order")
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--delivery-timeout", type=float, default=300.0, help="seconds; a short one has records fail")
    arguments = parser.parse_args()
    try:
        seed = random.randrange(1 << 32) if arguments.seed is None else arguments.seed
        problems = soak(
            minutes=arguments.minutes, seed=seed, writers=arguments.writers, delivery_timeout=arguments.delivery_timeout
        )
    except OttlaError as error:
        problems = [f"the run ended early: {error}"]
    print("\n".join(f"FAILED: {problem}" for problem in problems) or "PASSED")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
