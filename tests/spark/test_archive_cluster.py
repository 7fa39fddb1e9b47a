"""The archive on a standalone cluster of two workers, one of which freezes, wakes up as a zombie, and then dies."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

import psutil  # type: ignore[import-untyped]
import pytest
from tests.spark.archive_kills import Victim, check, family, fill, is_writing
from tests.spark.standalone import CONF, SECONDS, Standalone
from tests.waiting import eventually

from ottla.cluster import LocalCluster

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(600)]


def test_a_frozen_worker_that_wakes_up_and_one_that_dies_change_nothing(kafka: LocalCluster, tmp_path: Path) -> None:
    topic, total = "spark-archive-cluster", 36_000
    fill(kafka.bootstrap, topic, total)
    conf = {
        **CONF,
        # After this time a frozen worker counts as lost, and its tasks go to the other worker.
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
            eventually(lambda: victim.archived() > before or program.poll() is not None, "the retry", seconds=SECONDS)
            assert victim.archived() > before, (tmp_path / "program.log").read_text()[-3000:]
            for process in reversed(frozen.machine):
                process.resume()
            eventually(lambda: not is_writing(frozen.task), "the zombie to finish", seconds=SECONDS)
            family(frozen.worker.pid, kill=True)
            assert program.wait(SECONDS) == 0, (tmp_path / "program.log").read_text()[-3000:]
        check(victim, total=total)


class Frozen(NamedTuple):
    """A worker that was stopped, with all its processes, in the middle of a task."""

    worker: subprocess.Popen[bytes]
    task: psutil.Process
    machine: list[psutil.Process]


def _freeze_one(cluster: Standalone) -> Frozen:
    """Freeze the worker of the first task that is seen writing, as if its machine hung."""
    caught: list[Frozen] = []

    def catch() -> bool:
        for worker in cluster.workers:
            machine = family(worker.pid)
            for process in machine:
                if is_writing(process):
                    process.suspend()
                    if is_writing(process):
                        for other in machine:  # from the top, so that no parent notices its children stop
                            other.suspend()
                        caught.append(Frozen(worker, process, machine))
                        return True
                    process.resume()
        return False

    eventually(catch, "a task that writes", seconds=SECONDS)
    return caught[0]
