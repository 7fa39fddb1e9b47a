"""A standalone Spark cluster of two workers on this machine, for tests that must not depend on one process."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
from tests.spark.archive_kills import family
from tests.waiting import eventually

_HOME = Path(pyspark.__file__).parent
SECONDS = 240.0
CONF = {
    "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[2]),
    "spark.pyspark.python": sys.executable,
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "600m",
    "spark.cores.max": "2",
}
"""For a program that runs on it."""


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
            eventually(lambda: _listens(port), "the master to listen", seconds=SECONDS)
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
                    seconds=SECONDS,
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
