"""Kills a replay with SIGKILL at random moments, lets it finish, and checks that every record is there exactly once.

`python -m tests.jobs.replay_kills --kills 20` does it with brokers of its own; the suite does it three times.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import tempfile
import time
from pathlib import Path

from tests.cli.commands import PROGRAM
from tests.jobs import archived
from tests.transactions.reading import Log

from ottla.cluster import LocalCluster
from ottla.jobs.replay_notes import Notes
from ottla.model import TopicPartition

SECONDS = 180.0


def kill_and_finish(
    bootstrap: str, path: Path, target: str, *, kills: int, seed: int, rate: str, options: tuple[str, ...] = ()
) -> list[int]:
    """Kill and resume. Return the sum of all noted positions at each kill."""
    dice = random.Random(seed)
    command = [*PROGRAM, "replay", str(path), "--to", target, "--bootstrap", bootstrap, "--keep-partitions", *options]
    noted = []
    for _ in range(kills):
        before, began = _noted(path), time.monotonic()
        with subprocess.Popen([*command, "--rate", rate], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            until = time.monotonic() + SECONDS
            # Most kills come after it has started to write, the others at any moment.
            if dice.random() < 0.75:
                while _noted(path) <= before and process.poll() is None and time.monotonic() < until:
                    time.sleep(0.005)
                time.sleep(dice.uniform(0.0, 0.3))
            else:
                time.sleep(dice.uniform(0.5, 3.0))
            process.kill()
            process.wait(SECONDS)
        noted.append(_noted(path))
        print(f"killed at {noted[-1]} after {time.monotonic() - began:.1f} s", flush=True)
    done = subprocess.run(command, capture_output=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr.decode()
    return noted


def check(bootstrap: str, source: str, target: str, *, partitions: int = 3) -> int:
    """Check that our reader and confluent-kafka see every record once and in order. Return the number of records."""
    for partition in range(partitions):
        replayed, expected = (archived.contents(bootstrap, topic, partition) for topic in (target, source))
        assert replayed == expected, f"partition {partition} has {len(replayed)} records, expected {len(expected)}"
    with Log(bootstrap) as log:
        values = log.committed(target)
        assert values == log.committed(source)
    assert archived.committed(bootstrap, target) == archived.committed(bootstrap, source)
    return len(values)


def _noted(path: Path) -> int:
    total = 0
    for folder in (path / "_ottla" / "replays").glob("*"):
        for file in folder.glob("[!.]*.json"):
            topic, _, partition = file.stem.rpartition(":")
            note = Notes(str(folder)).read(TopicPartition(topic, int(partition)))
            total += 0 if note is None else note.position
    return total


def main() -> None:
    """Run the long version from the command line."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="ottla-kills-") as folder,
        LocalCluster("kills", brokers=3, dir=Path(folder) / "clusters") as cluster,
    ):
        path = Path(folder) / "lake"
        steps = [archived.rows(0, given.records // 2), archived.rows(given.records // 2, given.records // 2)]
        archived.archive(cluster.bootstrap, "killed-source", path, "--partition-by", "topic,date,hour", steps=steps)
        archived.create(cluster.bootstrap, "killed-target")
        # Slow enough that the kills come before the end on any machine.
        rate = f"{max(1, given.records // (2 * given.kills))}/s"
        noted = kill_and_finish(cluster.bootstrap, path, "killed-target", kills=given.kills, seed=given.seed, rate=rate)
        count = check(cluster.bootstrap, "killed-source", "killed-target")
    print(f"{given.kills} kills, at positions {noted}: {count:,} records, each exactly once")


if __name__ == "__main__":
    main()
