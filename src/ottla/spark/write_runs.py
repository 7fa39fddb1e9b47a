"""Names for the transactions of one batch write, by which a later write finds those that a killed one has left open.

An open transaction holds up all readers of committed data until its timeout, for minutes. So the names say which
process ran the write: a later one on the same machine ends those whose process is gone. Where drivers move from
machine to machine, a name that the user gives does the same, for every later write of that name. Reads what the
kernel tells of processes; ends nothing itself.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_TASK = re.compile(r"\d+-\d+")
_RUN = re.compile(r"(\d+)\.(\d+)-[0-9a-f]{32}-\d+-\d+")


@dataclass(frozen=True, slots=True)
class Naming:
    """`prefix` is how the ids of a write begin; of those that begin with `scope`, `is_over` tells what is left over."""

    prefix: str
    scope: str
    is_over: Callable[[str], bool]


def naming(name: str | None) -> Naming:
    """For a write that begins now, with the name that the user has given it, or by its process."""
    if name is not None:
        start = f"{name}-"
        return Naming(start, start, lambda found: _TASK.fullmatch(found.removeprefix(start)) is not None)
    scope = f"ottla-write-{_machine()}-"
    # Whoever asks is a worker of Spark's, which may end before the write; its parent lives as long as the driver.
    driver = os.getppid()
    prefix = f"{scope}{driver}.{_started(driver)}-{uuid.uuid4().hex}-"
    return Naming(prefix, scope, lambda found: _is_over(found.removeprefix(scope)))


def _is_over(rest: str) -> bool:
    match = _RUN.fullmatch(rest)
    return match is not None and _started(int(match[1])) != int(match[2])


def _machine() -> str:
    """The same for processes that can see each other: this boot of this host, and the same namespace of processes."""
    seen = [socket.gethostname(), _read("/proc/sys/kernel/random/boot_id"), _link("/proc/self/ns/pid")]
    return hashlib.sha256("\n".join(seen).encode()).hexdigest()[:12]


def _started(process: int) -> int:
    """When a process began, in ticks since boot; 0 for one that is not there."""
    status = _read(f"/proc/{process}/stat")
    fields = status.rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 and fields[0] not in ("Z", "X") else 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
