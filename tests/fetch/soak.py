"""Reads many gigabytes while brokers break: `python -m tests.fetch.soak --gb 5`.

Numbered records are written to three real brokers; a process of its own reads them through proxies, while brokers are
killed and frozen, leaders moved, answers cut, swallowed and slowed down. The exit code is 1 when a record
is missing or came twice, when the content differs, when no fault happened, or when memory went over its limit.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.queues import Queue

from tests.brokers import mend
from tests.faults.breaking import rotate_leaders
from tests.faults.proxy import FETCH, Faults, Proxies
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.config import Timeouts
from ottla.errors import OttlaError
from ottla.events import Event, FetchRetried, RangeLost
from ottla.fetch.options import Fetching
from ottla.fetch.reader import Reader
from ottla.model import Fingerprint
from ottla.net import Cluster

from .memory_program import memory
from .numbered import Ledger, write_numbered

TOPIC = "read-soak"
PARTITIONS = 6
BROKERS = (1, 2, 3)
MEMORY_BYTES = 32 << 20
BESIDE_BYTES = 290_000_000
"""The interpreter with numpy and pyarrow (89 MB), what is handed out, the check itself, and what allocators keep for
themselves after faults: 240 MB in all when 1 GB is read."""
TIMES = Timeouts(connect=3.0, request=5.0, total=120.0)


class Breaker:
    """Breaks something, waits a while and repairs it, again and again, on a thread of its own."""

    def __init__(self, kafka: LocalCluster, cluster: Cluster, proxies: Proxies, chance: random.Random) -> None:
        self.done: Counter[str] = Counter()
        self._chance = chance
        self._kafka = kafka
        self._proxies = proxies
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="breaker")
        self._kinds: dict[str, Callable[[], object]] = {
            "kill": lambda: kafka.kill(chance.choice(BROKERS)),
            "freeze": lambda: kafka.freeze(chance.choice(BROKERS)),
            "move": lambda: rotate_leaders(cluster, TOPIC),
            "cut": lambda: self._spoil(Faults(cut=0.3, passes=None, api=FETCH)),
            "hole": lambda: self._spoil(Faults(hole=True)),
            "drip": lambda: self._spoil(Faults(drip=chance.choice((5, 500)))),
            "delay": lambda: self._spoil(Faults(delay=chance.uniform(0.1, 1.0))),
            "reset": lambda: [proxy.reset() for proxy in proxies.proxies],  # type: ignore[func-returns-value]
        }

    def start(self) -> None:
        """Start the faults."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, with everything repaired."""
        self._stop.set()
        self._thread.join()

    def _spoil(self, faults: Faults) -> None:
        for proxy in self._chance.sample(self._proxies.proxies, self._chance.randrange(1, 4)):
            spoilt = proxy.faults
            spoilt.cut, spoilt.passes, spoilt.api = faults.cut, faults.passes, faults.api
            spoilt.hole, spoilt.delay, spoilt.drip = faults.hole, faults.delay, faults.drip

    def _run(self) -> None:
        while not self._stop.wait(self._chance.uniform(0.2, 1.0)):
            kind = self._chance.choice(list(self._kinds))
            try:
                self._kinds[kind]()
                self.done[kind] += 1
                self._stop.wait(self._chance.uniform(0.5, 5.0))
            except (OttlaError, AssertionError) as error:
                print(f"{kind} did not work: {error}", flush=True)
            finally:
                self._proxies.heal()
                mend(self._kafka)


@dataclass(frozen=True)
class Outcome:
    """The report of a reader in a separate process."""

    wrong: tuple[str, ...]
    gigabytes: float
    seconds: float
    retries: int
    peak_bytes: int


def read_apart(
    bootstrap: str, count: int, least_seconds: float, expected: Fingerprint, outcomes: Queue[Outcome]
) -> None:
    """Read everything in at least `least_seconds`: a read that ends before anything breaks proves nothing."""
    ledger, began = Ledger(count), time.monotonic()
    lost: list[str] = []
    retries: Counter[str] = Counter()

    def hear(event: Event) -> None:
        # Events are not kept: their errors keep the frames alive in which they were raised.
        if isinstance(event, RangeLost):
            lost.append(str(event))
        if isinstance(event, FetchRetried):
            retries[type(event.error).__name__] += 1

    wrong: list[str] = []
    try:
        fetching = Fetching(memory_bytes=MEMORY_BYTES)
        with Reader(bootstrap, timeouts=TIMES, fetching=fetching, events=[hear]) as reader:
            _read_slowly(reader, ledger, count, least_seconds)
            ledger.check()
            fingerprint = reader.fingerprint(TOPIC)
        if fingerprint != expected:
            wrong.append(f"the content is {fingerprint}, undisturbed it was {expected}")
    except (OttlaError, AssertionError) as error:
        wrong.append(f"{type(error).__name__}: {error}")
    seconds = time.monotonic() - began
    outcomes.put(Outcome((*wrong, *lost), ledger.bytes / 1e9, seconds, retries.total(), memory("VmHWM")))


def _read_slowly(reader: Reader, ledger: Ledger, count: int, least_seconds: float) -> None:
    began = told_at = time.monotonic()
    for records in reader.read(TOPIC):
        ledger.add(records)
        now = time.monotonic()
        time.sleep(max(0.0, min(1.0, began + least_seconds * ledger.rows / count - now)))
        if now > told_at + 10:
            told_at = now
            line = f"{now - began:5.0f} s: {ledger.rows:,} of {count:,} records, {memory('VmRSS') / 1e6:.0f} MB"
            print(line, flush=True)


def soak(*, gb: float, seed: int, least_seconds: float) -> list[str]:
    """Do the whole run and return what is wrong."""
    chance = random.Random(seed)
    codec, size = chance.choice(("none", "lz4", "zstd")), chance.choice((100, 1000))
    count = int(gb * 1e9 / size)
    print(f"seed {seed}: {count:,} records of {size} B, compression {codec}", flush=True)
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster("read-soak", brokers=3, dir=folder) as kafka,
        Cluster(kafka.bootstrap) as cluster,
        Proxies(kafka.bootstrap, seed=seed) as proxies,
        Reader(kafka.bootstrap) as calm,
    ):
        Admin(cluster).create_topic(TOPIC, partitions=PARTITIONS, replicas=3)
        write_numbered(kafka.bootstrap, TOPIC, count, size=size, codec=codec)
        eventually(lambda: sum(calm.offsets(TOPIC, "latest").values()) == count, "all brokers have all", seconds=300)
        outcomes: Queue[Outcome] = context.Queue()
        given = (proxies.bootstrap, count, least_seconds, calm.fingerprint(TOPIC), outcomes)
        process = context.Process(target=read_apart, args=given)
        breaker = Breaker(kafka, cluster, proxies, chance)
        process.start()
        breaker.start()
        try:
            outcome = outcomes.get(timeout=20 * least_seconds + 600)
        finally:
            breaker.stop()
            process.join(10)
        return judge(outcome, breaker, proxies)


def judge(outcome: Outcome, breaker: Breaker, proxies: Proxies) -> list[str]:
    """Return what is wrong with a run, empty if nothing."""
    faults = breaker.done.total()
    print(f"read {outcome.gigabytes:.2f} GB in {outcome.seconds:.0f} s through {faults} faults: {dict(breaker.done)}")
    print(f"{outcome.retries} retries, {proxies.cuts} answers cut; memory: {outcome.peak_bytes / 1e6:.0f} MB at most,")
    print(f"the limit for what is fetched ahead is {MEMORY_BYTES / 1e6:.0f} MB", flush=True)
    wrong = list(outcome.wrong)
    if outcome.peak_bytes > MEMORY_BYTES + BESIDE_BYTES:
        wrong.append(f"memory went up to {outcome.peak_bytes / 1e6:.0f} MB")
    if not faults or not outcome.retries:
        wrong.append("nothing was proven: no fault happened, or the reader met none")
    return wrong


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fetch.soak", description=__doc__)
    parser.add_argument("--gb", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=None, help="the same faults in the same order")
    parser.add_argument("--seconds", type=float, default=120.0, help="the read takes at least so long")
    given = parser.parse_args()
    seed = random.randrange(1 << 32) if given.seed is None else given.seed
    try:
        wrong = soak(gb=given.gb, seed=seed, least_seconds=given.seconds)
    except (OttlaError, AssertionError) as error:
        wrong = [f"the run broke off: {type(error).__name__}: {error}"]
    print("\n".join(f"FAILED: {reason}" for reason in wrong) or "PASSED")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
