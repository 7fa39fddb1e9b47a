"""Python workers: idle ones end silently, and none compiles Spark's modules again."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
from tests.waiting import eventually

from ottla.spark.daemon import without_archive


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder with a short path: a socket's path may have 107 characters, and pytest's folders use most of them."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


# A worker without a JVM: at its second task the socket is closed, and it tries to write to it, as Spark's does.
WORKER = """
{load}

def main(infile, outfile):
    outfile.write(b"done" if infile.read(1) else b"gone")
"""


@pytest.mark.parametrize(
    ("module", "load", "is_silent"),
    [
        ("pyspark.daemon", "", False),
        ("ottla.spark.daemon", "", True),
        ("pyspark.daemon", "import ottla.spark.source", True),  # those that plan queries
        ("pyspark.daemon", "import ottla.spark.sink", True),  # those that commit
    ],
)
def test_an_idle_worker_whose_socket_is_closed_ends_in_silence(
    short_path: Path, module: str, load: str, is_silent: bool
) -> None:
    """Plays Spark's side. The case with Spark's own daemon shows that the traceback is real."""
    (short_path / "pyspark_play.py").write_text(WORKER.format(load=load))
    settings = {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(short_path), os.environ.get("PYTHONPATH")])),
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(short_path),
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
        "SPARK_REUSE_WORKER": "1",
    }
    stderr_file = short_path / "stderr"
    with (
        stderr_file.open("wb") as stderr,
        subprocess.Popen(
            [sys.executable, "-m", module, "pyspark_play"],
            env={**os.environ, **settings},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
        ) as daemon,
    ):
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        (length,) = struct.unpack("!i", daemon.stdout.read(4))
        path = daemon.stdout.read(length).decode()
        with socket.socket(socket.AF_UNIX) as spark:
            spark.connect(path)
            (number,) = struct.unpack("!i", spark.recv(4, socket.MSG_WAITALL))
            worker = psutil.Process(number)
            spark.send(b"1")
            assert spark.recv(4, socket.MSG_WAITALL) == b"done"
        eventually(lambda: not worker.is_running(), "the worker to end", seconds=60)
        daemon.stdin.close()
        daemon.wait(60)
    assert ("BrokenPipeError" in stderr_file.read_text()) is not is_silent, stderr_file.read_text()


def test_an_archive_of_another_spark_stays() -> None:
    package, archive = "/lib/site-packages", "/lib/site-packages/pyspark/python/lib/pyspark.zip"
    assert without_archive(["", archive, "/lib", package]) == ["", "/lib", package]
    assert without_archive([archive, "/lib"]) == [archive, "/lib"]
    elsewhere = "/opt/spark/python/lib/pyspark.zip"
    assert without_archive([elsewhere, package]) == [elsewhere, package]
