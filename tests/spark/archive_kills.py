"""Kills archives on Spark at random moments and checks that they are complete: `python -m tests.spark.archive_kills`.

One program archives a topic as Parquet and as a Delta table and copies it into another topic. Its driver or its Python
workers are killed with SIGKILL, repeatedly, and it is restarted until everything is copied. Then every record must be
in each copy exactly once, by offset and by fingerprint.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.fetch.reader import Reader
from ottla.lake.contents import fingerprint
from ottla.lake.lake import Lake
from ottla.lake.verifying import Checked, verify_brokers, verify_files
from ottla.produce.producer import Producer

FORMATS = ("parquet", "delta")
_SECONDS = 240.0
_PROJECT = Path(__file__).parents[2]
"""Workers import the job from here."""
_CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
}


@dataclass
class Victim:
    """The archives, the program that fills them, and what was done to it."""

    bootstrap: str
    topic: str
    folder: Path
    master: str = "local[2,8]"
    """Two tasks at a time, each of which may fail seven times."""
    conf: dict[str, str] = field(default_factory=dict)
    kills: list[str] = field(default_factory=list)
    formats: tuple[str, ...] = FORMATS
    copy: str = ""
    """The topic into which the records are also copied."""
    copied: list[int] = field(default_factory=list)
    """How many records the copy had at each kill of the driver."""

    def path(self, form: str) -> Path:
        return self.folder / form

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """The program in its own process group; nothing of it outlives the block."""
        settings = {
            "bootstrap": self.bootstrap,
            "topic": self.topic,
            "master": self.master,
            "archives": {form: str(self.path(form)) for form in self.formats},
            "copy": self.copy,
            "checkpoint": str(self.folder / "checkpoint"),
            "conf": {**_CONF, "spark.local.dir": str(self.folder / "spark"), **self.conf},
        }
        with (self.folder / "program.log").open("ab") as log:
            program = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.archive_play", json.dumps(settings)],
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=_PROJECT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_PROJECT), os.environ.get("PYTHONPATH", "")])},
            )
        try:
            yield program
        finally:
            family(program.pid, kill=True)
            program.wait()

    def archived(self) -> int:
        """Offsets that are recorded, over all archives."""
        lakes = [Lake.find(self.path(form)) for form in self.formats]
        return sum(sum(lake.positions().values()) for lake in lakes if lake is not None)

    def is_copying(self) -> bool:
        """Whether there is a query that copies, and has begun."""
        return not self.copy or any((self.folder / "checkpoint" / "offsets").glob("[0-9]*"))

    def kill_driver(self, program: subprocess.Popen[bytes]) -> None:
        """Kill everything at once: the driver's Python, its JVM (also the executor), the workers."""
        family(program.pid, kill=True)
        program.wait()
        self.kills.append("driver")
        if self.copy:
            with Reader(self.bootstrap, isolation="read_committed") as reader:
                self.copied.append(reader.count(self.copy))

    def kill_worker(self, program: subprocess.Popen[bytes]) -> None:
        """Kill a Python process that has a staged file open, if there is one."""
        writing = [member for member in family(program.pid) if is_writing(member)]
        if writing:
            random.choice(writing).kill()
            self.kills.append("worker")


def family(pid: int, *, kill: bool = False) -> list[psutil.Process]:
    """A process and all its descendants, in any process group; `kill` kills them from the top."""
    try:
        top = psutil.Process(pid)
        members = [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
    for member in members if kill else ():
        try:
            member.kill()
        except psutil.NoSuchProcess:
            pass
    return members


def is_writing(process: psutil.Process) -> bool:
    """Whether the process is a worker in the middle of an archive job."""
    try:
        return any(file.path.endswith(".staged") for file in process.open_files())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def fill(bootstrap: str, topic: str, count: int) -> None:
    """A topic of three partitions with records that differ."""
    numbers = range(count)
    keys = pa.array([f"{n}".encode() for n in numbers], pa.binary())
    values = pa.array([None if n % 13 == 0 else os.urandom(40).hex().encode() for n in numbers], pa.binary())
    with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        admin.create_topic(topic, partitions=3)
        producer.send_table(topic, pa.table({"key": keys, "value": values}))


def harass(victim: Victim, kills: int, chance: random.Random) -> None:
    """Kill the program `kills` times, then let it finish."""
    until = time.monotonic() + _SECONDS + 60 * kills
    while time.monotonic() < until:
        with victim.running() as program:
            before = victim.archived()
            while program.poll() is None and time.monotonic() < until:
                if len(victim.kills) >= kills:
                    assert program.wait(_SECONDS) == 0, "the last run failed"
                    return
                time.sleep(chance.uniform(0.0, 0.3))
                if victim.archived() == before and not any(is_writing(member) for member in family(program.pid)):
                    continue  # it is still starting: a kill would prove nothing
                if len(victim.kills) % 3 == 1:  # both kinds; the driver less often, because Spark has to start again
                    if victim.is_copying():
                        victim.kill_driver(program)
                else:
                    victim.kill_worker(program)
            if program.poll() == 0:
                return
    raise AssertionError(f"not done in time; killed: {victim.kills}")


def check(victim: Victim, *, total: int) -> None:
    """Check that every record is in every archive exactly once, by every reader."""
    with Reader(victim.bootstrap) as reader:
        logged = reader.fingerprint(victim.topic)
        assert logged.count == total
        for form in victim.formats:
            lake = Lake.open(victim.path(form))
            lake.recover()
            table = ds.dataset(lake.path, format="parquet", partitioning="hive").to_table()
            pairs = table.select(["partition", "offset"]).group_by(["partition", "offset"]).aggregate([])
            assert (table.num_rows, pairs.num_rows) == (total, total), form
            assert fingerprint(table) == logged, form
            assert [str(finding) for finding in verify_files(lake, Checked(), deep=True)] == []
            assert [str(finding) for finding in verify_brokers(lake, reader, Checked())] == []
            if form == "delta":
                _check_delta(lake, total)
        if victim.copy:
            with Reader(victim.bootstrap, isolation="read_committed") as committed:
                assert committed.fingerprint(victim.copy) == logged, "the copy"
            assert min(victim.copied) < total, f"no kill came before the copy was complete: {victim.copied}"


def _check_delta(lake: Lake, total: int) -> None:
    import deltalake

    table = pa.table(deltalake.DeltaTable(lake.path).to_pyarrow_table(columns=["partition", "offset"]))
    assert (
        table.num_rows,
        pc.count_distinct(pc.add(pc.multiply(table["offset"], 16), table["partition"])).as_py(),
    ) == (
        total,
        total,
    )


def main() -> None:
    """The long version."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    seed = random.randrange(1 << 30) if given.seed is None else given.seed
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory() as folder, LocalCluster("kills", brokers=1, dir=Path(folder) / "kafka") as kafka:
        fill(kafka.bootstrap, "archive-kills", given.records)
        victim = Victim(kafka.bootstrap, "archive-kills", Path(folder))
        harass(victim, given.kills, random.Random(seed))
        check(victim, total=given.records)
    print(f"{given.records} records in both archives exactly once after {len(victim.kills)} kills: {victim.kills}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main()
