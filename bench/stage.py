"""What benchmarks with a real broker stand on: the broker, a new topic for each run, peers in processes of their own.

Nothing here knows what is measured. A topic is gone from the disk when its block ends, so that a run never holds more
than what is in use.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import confluent_kafka

from bench import harness
from bench.harness import ROOT
from ottla.admin import Admin, OffsetSpec
from ottla.cluster import LocalCluster
from ottla.cluster.java import find_java
from ottla.cluster.pinned import DEFAULT_VERSION
from ottla.model import TopicPartition

_ANSWER_SECONDS = 180.0
_DELETE_SECONDS = 30.0
_FAREWELL_SECONDS = 10.0
_PAUSE = 0.02

_SETTINGS = {
    # A deleted topic leaves the disk at once, not after a minute.
    "log.segment.delete.delay.ms": "50",
    "log.initial.task.delay.ms": "50",
    # No job writes as much: a new segment would make the broker flush the old one to the disk in the middle of a run.
    "log.segment.bytes": str((1 << 31) - 1),
    "log.retention.bytes": str(1 << 31),
}


class Stage:
    """One real broker with its data in a temporary directory. Made by `Stage.open`."""

    def __init__(self, cluster: LocalCluster, admin: Admin, folder: Path) -> None:
        self.bootstrap = cluster.bootstrap
        self.folder = folder
        self._admin = admin
        self._number = 0

    @classmethod
    @contextmanager
    def open(cls, *, heap_bytes: int | None = None, settings: Mapping[str, str] | None = None) -> Iterator[Stage]:
        """The broker runs until the end of the block; `settings` are added to those that every benchmark has."""
        with tempfile.TemporaryDirectory(prefix="ottla-bench-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            with (
                LocalCluster(
                    "bench",
                    brokers=1,
                    dir=folder / "clusters",
                    settings=_SETTINGS | dict(settings or {}),
                    heap_bytes=heap_bytes,
                ) as cluster,
                Admin(cluster.bootstrap) as admin,
            ):
                yield cls(cluster, admin, folder)

    @contextmanager
    def topic(self, partitions: int = 1) -> Iterator[str]:
        """A new topic, deleted at the end of the block."""
        self._number += 1
        name = f"bench-{self._number}"
        self._admin.create_topic(name, partitions=partitions, replicas=1)
        try:
            yield name
        finally:
            self._admin.delete_topics(name)
            self._await_removal(name)

    def records(self, topic: str, partitions: int = 1) -> int:
        """How many records the broker has in a topic."""
        wanted = [TopicPartition(topic, index) for index in range(partitions)]
        found = self._admin.list_offsets(wanted, at=OffsetSpec.LATEST)
        return sum(found[at].offset for at in wanted)

    def _await_removal(self, topic: str) -> None:
        deadline = time.monotonic() + _DELETE_SECONDS
        while any(self.folder.glob(f"clusters/**/{topic}-[0-9]*")):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the broker has not removed the files of {topic} after {_DELETE_SECONDS:.0f} s")
            time.sleep(_PAUSE)


class PeerFailed(Exception):
    """The process of a peer ended or did not answer; the text has what it wrote to standard error."""


class Peer:
    """A process that does jobs: a request goes in as a line of JSON, an answer comes out. It starts with the first."""

    def __init__(self, module: str, name: str) -> None:
        self.name = name
        self._command = [sys.executable, "-m", module, name]
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[bytes] | None = None

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request; after `PeerFailed` the next request gets a new process."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        guard = threading.Timer(_ANSWER_SECONDS, process.kill)
        guard.start()
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            guard.cancel()
            guard.join()
        if not line:
            raise PeerFailed(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process and wait for it."""
        if self._process is not None:
            try:
                self._process.communicate(timeout=_FAREWELL_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.communicate()
        if self._errors is not None:
            self._errors.close()
        self._process = self._errors = None

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                cwd=ROOT,
                text=True,
            )
        return self._process

    def _last_words(self) -> str:
        assert self._process is not None
        assert self._errors is not None
        try:
            code = self._process.wait(_FAREWELL_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip()[-2000:]
        self.close()
        return f"the process of {self.name} ended with {code}: {said}"


@contextmanager
def open_peers(module: str, names: Iterable[str]) -> Iterator[dict[str, Peer]]:
    """A process for each name, until the end of the block."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(Peer(module, name)) for name in dict.fromkeys(names)}


def told(
    skipped: dict[str, str], name: str, run: Callable[[], tuple[dict[str, Any], str | None]]
) -> dict[str, Any] | None:
    """The answer that `run` gives, or None if it has an objection or its peer failed: that is noted and told."""
    try:
        answer, wrong = run()
    except PeerFailed as failure:
        wrong = str(failure)
    if wrong is None:
        return answer
    harness.progress(f"no figure for {name}: {wrong.splitlines()[-1]}")
    skipped[name] = wrong
    return None


def versions() -> dict[str, str]:
    """Of the clients that are compared, of the broker, and of what ours stands on."""
    packages = ("ottla", "numba", "numpy", "pyarrow", "cramjam", "confluent-kafka", "aiokafka", "kafka-python")
    return harness.versions(*packages) | {
        "librdkafka": confluent_kafka.libversion()[0],
        "kafka": DEFAULT_VERSION,
        "java": _java_version(),
    }


def _java_version() -> str:
    """The Java that runs the broker and the Java client."""
    done = subprocess.run([find_java(os.environ), "-version"], capture_output=True, text=True, check=True)
    return done.stderr.partition('"')[2].partition('"')[0]
