"""Kills everything around a mirror while it runs, and checks that the copy is exact and that no reader saw a repeat.

`python -m tests.mirror.kills --kills 500` does it with two clusters of its own; the suite does it with twenty.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.brokers import mend
from tests.faults.proxy import FETCH, PRODUCE, Proxies
from tests.mirror.copies import seen
from tests.waiting import eventually

from ottla import Producer, Reader
from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.model import Isolation

PARTITIONS = 3
_SECONDS = 120.0


class Scene:
    """A source and a target behind proxies, a writer, a reader that watches the target, and the mirror."""

    def __init__(self, source: LocalCluster, target: LocalCluster, *, name: str, seed: int) -> None:
        self.source, self.target = source, target
        self.topic, self.copy = name, f"copy.{name}"
        self.chance = random.Random(seed)
        self.faults: Counter[str] = Counter()
        self.written = 0
        self.watched = 0
        self._problems: list[str] = []
        self._stopped = threading.Event()
        self._mirror: subprocess.Popen[bytes] | None = None

    @contextmanager
    def playing(self) -> Iterator[None]:
        """Everything runs in the block."""
        replicas = min(3, len(self.source.status().brokers))
        with Admin(self.source.bootstrap) as admin:
            admin.create_topic(self.topic, partitions=PARTITIONS, replicas=replicas)
        with Proxies(self.source.bootstrap) as self.source_net, Proxies(self.target.bootstrap) as self.target_net:
            options = {
                "source": self.source_net.bootstrap,
                "target": self.target_net.bootstrap,
                "topics": [self.topic],
                "name": f"kills-{self.topic}",
                "rename": "copy.{topic}",
                "replicas": min(3, len(self.target.status().brokers)),
                "journal": "mirror-kills-journal",
            }
            self._options = json.dumps(options)
            self.start_mirror()
            threads = [threading.Thread(target=work, daemon=True) for work in (self._write, self._watch)]
            for thread in threads:
                thread.start()
            try:
                yield
            finally:
                self._stopped.set()
                for thread in threads:
                    thread.join(_SECONDS)
                self.end_mirror()

    # The mirror

    def start_mirror(self) -> None:
        """Start the mirror. Returns when it has taken over."""
        command = [sys.executable, "-m", "tests.mirror.program", self._options]
        self._mirror = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._mirror.stdout is not None
        for _ in range(PARTITIONS):
            assert self._mirror.stdout.readline() == b"ready\n", f"it ended with {self._mirror.poll()}"

    def end_mirror(self) -> None:
        """End the mirror in an orderly way."""
        if self._mirror is not None:
            self._mirror.terminate()
            self._mirror.wait(_SECONDS)
            assert self._mirror.stdout is not None
            self._mirror.stdout.close()
            self._mirror = None

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait(_SECONDS)
        assert process.stdout is not None
        process.stdout.close()

    # Faults

    def kill_mirror(self) -> None:
        """SIGKILL, and the next one takes over."""
        assert self._mirror is not None
        self._kill(self._mirror)
        self.start_mirror()

    def freeze_mirror(self) -> None:
        """A frozen mirror is taken for dead; it wakes up when its successor is at work, and must do no harm."""
        zombie = self._mirror
        assert zombie is not None
        zombie.send_signal(signal.SIGSTOP)
        self.start_mirror()
        zombie.send_signal(signal.SIGCONT)
        self.wait_for_progress()
        zombie.wait(_SECONDS)
        assert zombie.returncode == 3, "it was shut out"
        assert zombie.stdout is not None
        zombie.stdout.close()

    def cut_target(self) -> None:
        """Answers of the target get lost: it has written what it does not acknowledge."""
        self._cut(self.target_net, PRODUCE)

    def cut_source(self) -> None:
        """Answers of the source get lost."""
        self._cut(self.source_net, FETCH)

    def cut_and_kill(self) -> None:
        """The acknowledgement is lost, and the mirror dies before it can ask again."""
        assert self._mirror is not None
        before = self.target_net.cuts
        for proxy in self.target_net.proxies:
            proxy.faults.api, proxy.faults.cut = PRODUCE, 1.0
        self.target_net.wait_for_cuts(before + 1)
        self._kill(self._mirror)
        self.target_net.heal()
        self.start_mirror()

    def kill_source_broker(self) -> None:
        """A broker of the source dies and comes back."""
        self._kill_broker(self.source)

    def kill_target_broker(self) -> None:
        """A broker of the target dies and comes back."""
        self._kill_broker(self.target)

    def _kill_broker(self, cluster: LocalCluster) -> None:
        number = self.chance.choice([broker.id for broker in cluster.status().brokers])
        cluster.kill(number)
        mend(cluster)

    def _cut(self, net: Proxies, api: int) -> None:
        before = net.cuts
        for proxy in net.proxies:
            proxy.faults.api, proxy.faults.cut, proxy.faults.passes = api, 0.7, self.chance.choice((0, None))
        net.wait_for_cuts(before + 3)
        net.heal()

    def break_things(self, faults: list[str]) -> None:
        """One fault after the other, each when something has been mirrored since the last."""
        for number, fault in enumerate(faults, 1):
            self.wait_for_progress()
            getattr(self, fault)()
            self.faults[fault] += 1
            assert not self._problems, self._problems
            print(f"{number} {fault}: {self.written} written, {self.watched} seen", flush=True)

    def wait_for_progress(self) -> None:
        """Wait until the watching reader has seen something new."""
        before = self.watched
        eventually(lambda: self.watched > before or self._problems, "the copy grows", seconds=_SECONDS)

    # Around it

    def _write(self) -> None:
        """Write numbered records, some of them in transactions that are aborted."""
        options = {"delivery_timeout": _SECONDS, "compression": "lz4"}
        with (
            Producer(self.source.bootstrap, **options) as plain,  # type: ignore[arg-type]
            Producer(self.source.bootstrap, transactional_id=self.topic, **options) as careful,  # type: ignore[arg-type]
        ):
            number = 0
            while not self._stopped.is_set():
                for _ in range(60):
                    plain.send(self.topic, b"%d" % number, partition=number % PARTITIONS)
                    number += 1
                plain.flush(_SECONDS)
                try:
                    with careful.transaction():
                        for _ in range(12):
                            careful.send(self.topic, b"%d" % number, partition=number % PARTITIONS)
                            number += 1
                        if self.chance.random() < 0.5:
                            raise _Abort
                except _Abort:
                    pass
                self.written = number
                self._stopped.wait(0.1)

    def _watch(self) -> None:
        """Read the copy as it grows, uncommitted data included: numbers only rise, and nothing comes twice."""
        last: dict[int, int] = {}
        positions = dict.fromkeys(range(PARTITIONS), 0)
        with Reader(self.target.bootstrap, isolation=Isolation.READ_UNCOMMITTED) as reader:
            while not self._stopped.is_set():
                try:
                    for batch in reader.read(self.copy, "earliest", None, timeout=5.0):
                        for row in batch.to_pylist():
                            partition, number = row["partition"], int(row["value"])
                            if number <= last.get(partition, -1):
                                self._problems.append(f"{number} after {last[partition]} in partition {partition}")
                            last[partition] = number
                            positions[partition] = row["offset"] + 1
                        self.watched += batch.num_rows
                        if self._stopped.is_set():
                            return
                except Exception as error:
                    last, self.watched = {}, 0  # begin again: brokers were away for too long
                    print(f"the watching reader starts over: {error}", flush=True)

    def finish(self) -> int:
        """The rest is mirrored; the copy is what a foreign reader sees in the source. Returns the records."""
        assert not self._problems, self._problems
        mend(self.source)
        mend(self.target)
        self.start_mirror_direct()
        count = 0
        for partition in range(PARTITIONS):
            expected = seen(self.source.bootstrap, self.topic, partition)
            for isolation in ("read_committed", "read_uncommitted"):
                copied = seen(self.target.bootstrap, self.copy, partition, isolation=isolation)
                assert copied == expected, f"{len(copied)} of {len(expected)} in partition {partition}"
            count += len(expected)
        return count

    def start_mirror_direct(self) -> None:
        """One run to the end of the topic, in this process and without proxies."""
        from dataclasses import replace

        from ottla.jobs.mirror_link import Link
        from ottla.jobs.mirrors import mirror

        link = Link(**json.loads(self._options))
        mirror(replace(link, source=self.source.bootstrap, target=self.target.bootstrap), take_over=True)


class _Abort(Exception):
    pass


FAULTS = {
    "kill_mirror": 8,
    "freeze_mirror": 2,
    "cut_and_kill": 3,
    "cut_target": 3,
    "cut_source": 2,
    "kill_source_broker": 1,
    "kill_target_broker": 1,
}
"""Twenty faults."""


def faults(count: int, chance: random.Random) -> list[str]:
    """A list of faults in random order, in these proportions."""
    names = [name for name, weight in FAULTS.items() for _ in range(weight)]
    chosen = (names * (count // len(names) + 1))[: max(count, 1)] if count >= len(names) else names[:count]
    chance.shuffle(chosen)
    return chosen


def main() -> None:
    """Run the long version from the command line."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="ottla-kills-") as folder,
        LocalCluster("edge", brokers=1, dir=Path(folder)) as source,
        LocalCluster("aggregate", brokers=1, dir=Path(folder)) as target,
    ):
        scene = Scene(source, target, name="kills", seed=given.seed)
        with scene.playing():
            scene.break_things(faults(given.kills, scene.chance))
        count = scene.finish()
    print(f"{sum(scene.faults.values())} faults {dict(scene.faults)}: {count:,} records, each exactly once")


if __name__ == "__main__":
    main()
