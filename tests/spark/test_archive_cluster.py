"""The archive on a standalone cluster of two workers, one of which freezes, wakes up as a zombie, and then dies."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil  # type: ignore[import-untyped]
import pyspark
import pytest
from tests.spark.archive_kills import Victim, check, family, fill, is_writing
from tests.waiting import eventually

from ottla.cluster import LocalCluster

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(600)]
_HOME = Path(pyspark.__file__).parent
_SECONDS = 240.0


class Standalone:
    """A master and two workers of one core each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.workers: list[subprocess.Popen[bytes]] = []
        self.master = ""

    @contextmanager
    def running(self) -> Iterator[Standalone]:
        with ExitStack() as stack:
            port = _free_port()
            self.master = f"spark://127.0.0.1:{port}"
            master = ("Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
            stack.enter_context(self._started("master", *master))
            eventually(lambda: _listens(port), "the master to listen", seconds=_SECONDS)
            for name in ("one", "two"):
                options = ("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g")
                folder = ("--work-dir", str(self._folder / name))
                process = stack.enter_context(self._started(name, "Worker", *options, *folder, self.master))
                self.workers.append(process)
            for name in ("one", "two"):
                log = self._folder / f"{name}.log"
                eventually(
                    lambda log=log: re.search("Successfully registered", log.read_text()),  # type: ignore[misc]
                    lambda log=log: log.read_text(),  # type: ignore[misc]
                    seconds=_SECONDS,
                )
            yield self

    @contextmanager
    def _started(self, name: str, kind: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        command = [
            str(_HOME / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{'master' if kind == 'Master' else 'worker'}.{kind}",
        ]
        environment = {
            **os.environ,
            "SPARK_HOME": str(_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
        }
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen([*command, *options], stdout=log, stderr=log, env=environment)
        try:
            yield process
        finally:
            family(process.pid, kill=True)
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_frozen_worker_that_wakes_up_and_one_that_dies_change_nothing(kafka: LocalCluster, tmp_path: Path) -> None:
    topic, total = "spark-archive-cluster", 36_000
    fill(kafka.bootstrap, topic, total)
    conf = {
        "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[2]),
        "spark.pyspark.python": sys.executable,
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "600m",
        "spark.cores.max": "2",
        # A worker that is frozen counts as lost after so long, and its tasks are given to the other one.
        "spark.executor.heartbeatInterval": "1s",
        "spark.network.timeout": "12s",
        "spark.network.timeoutInterval": "2s",
        "spark.storage.blockManagerHeartbeatTimeoutMs": "12000",
    }
    with Standalone(tmp_path).running() as cluster:
        victim = Victim(kafka.bootstrap, topic, tmp_path, master=cluster.master, conf=conf, formats=("parquet",))
        with victim.running() as program:
            frozen = _freeze_one(cluster)
            before = victim.archived()
            eventually(lambda: victim.archived() > before or program.poll() is not None, "the retry", seconds=_SECONDS)
            assert victim.archived() > before, (tmp_path / "program.log").read_text()[-3000:]
            for one in reversed(frozen.machine):
                one.resume()
            eventually(lambda: not is_writing(frozen.task), "the zombie to finish", seconds=_SECONDS)
            family(frozen.worker.pid, kill=True)
            assert program.wait(_SECONDS) == 0, (tmp_path / "program.log").read_text()[-3000:]
        check(victim, total=total)


class Frozen(NamedTuple):
    """A worker that is stopped, with all its processes, in the middle of a task."""

    worker: subprocess.Popen[bytes]
    task: psutil.Process
    machine: list[psutil.Process]


def _freeze_one(cluster: Standalone) -> Frozen:
    """The worker of the first task that is seen writing, as if its machine hung."""
    caught: list[Frozen] = []

    def catch() -> bool:
        for worker in cluster.workers:
            machine = family(worker.pid)
            for one in machine:
                if is_writing(one):
                    one.suspend()
                    if is_writing(one):
                        for other in machine:  # from the top: nobody may notice what happens below
                            other.suspend()
                        caught.append(Frozen(worker, one, machine))
                        return True
                    one.resume()
        return False

    eventually(catch, "a task that writes", seconds=_SECONDS)
    return caught[0]
