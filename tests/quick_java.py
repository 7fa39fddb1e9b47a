"""Brokers of a test run start in half the time: their JVMs compile once, and find Kafka's classes loaded already.

A folder for the archive of classes comes in; afterwards every JVM that `ottla.cluster` starts in this process is quick,
and `variables` make those of a child process so. It changes nothing but speed.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

from ottla.cluster import LocalCluster
from ottla.cluster.jars import ensure_jars
from ottla.cluster.java import find_java
from ottla.cluster.local import default_cache_dir
from ottla.cluster.nodes import Java
from ottla.cluster.pinned import DEFAULT_VERSION

# A broker of the tests lives for seconds: code that the first compiler makes is all that it gets around to.
_SHORT_LIVED = "-XX:TieredStopAtLevel=1"
# A JVM with other classes, as an older Kafka has, does not use the archive and need not mention it.
_QUIET = ("-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
_options: list[str] = []
_plain = Java.command


def hurry(folder: Path) -> None:
    """JVMs from now on compile quickly rather than well, and take Kafka's classes from an archive in the folder.

    The archive is made if it is not there.
    """
    Java.command = _command  # type: ignore[method-assign]
    _options[:] = [_SHORT_LIVED]
    archive = folder / f"kafka-{_identity()}.jsa"
    with FileLock(folder / "lock"):
        if not archive.exists():
            _make(archive)
    _options.extend([f"-XX:SharedArchiveFile={archive}", *_QUIET])


def variables() -> dict[str, str]:
    """The environment in which a child process starts quick JVMs; each of them says so on standard error."""
    return {"JDK_JAVA_OPTIONS": " ".join(_options)}


def _command(self: Java, main: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
    return _plain(self, main, *arguments, options=[*_options, *options])


def _identity() -> str:
    """Of Java and of Kafka's jars: with others the archive could not be used."""
    told = subprocess.run([find_java(os.environ), "-version"], capture_output=True, check=True).stderr
    jars = ensure_jars(DEFAULT_VERSION, default_cache_dir())
    files = [(str(jar), jar.stat().st_size, jar.stat().st_mtime_ns) for jar in jars]
    return hashlib.sha256(repr((told, files)).encode()).hexdigest()[:16]


def _make(archive: Path) -> None:
    """One broker starts and stops: at its end the JVM writes what it has loaded."""
    unfinished = archive.with_suffix(".new")
    _options.append(f"-XX:ArchiveClassesAtExit={unfinished}")
    try:
        with tempfile.TemporaryDirectory() as folder, LocalCluster("archive", secure=True, dir=folder) as cluster:
            cluster.stop(1)
    finally:
        _options.pop()
    unfinished.rename(archive)
