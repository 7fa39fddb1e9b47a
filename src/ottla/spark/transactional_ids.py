"""Transactional ids of batch writes, chosen so that a later write can find those that a killed one left open.

An open transaction blocks all readers of committed data until its timeout, for minutes. So the ids say which process
ran the write: a later write on the same machine ends those whose process is gone. If drivers move between machines, a
name given by the user serves the same purpose: every later write of that name ends them. This module reads `/proc`; it
ends nothing itself.
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
class IdScheme:
    """The transactional ids of a write begin with `prefix`.

    Of all ids that begin with `scope`, `is_over` says which belong to a write that has ended.
    """

    prefix: str
    scope: str
    is_over: Callable[[str], bool]


def id_scheme(name: str | None) -> IdScheme:
    """The ids for a write that begins now: by the user's name for it, or by its process."""
    if name is not None:
        prefix = f"{name}-"
        return IdScheme(prefix, prefix, lambda each: _TASK.fullmatch(each.removeprefix(prefix)) is not None)
    scope = f"ottla-write-{_machine()}-"
    # This process is one of Spark's workers and may end before the write. Its parent lives as long as the driver.
    driver = os.getppid()
    prefix = f"{scope}{driver}.{_start_time(driver)}-{uuid.uuid4().hex}-"
    return IdScheme(prefix, scope, lambda each: _is_over(each.removeprefix(scope)))


def _is_over(run: str) -> bool:
    match = _RUN.fullmatch(run)
    # Process ids are reused; the start time tells two processes with the same id apart.
    return match is not None and _start_time(int(match[1])) != int(match[2])


def _machine() -> str:
    """The same for processes that can see each other: this boot of this host, and this process namespace."""
    parts = [socket.gethostname(), _read("/proc/sys/kernel/random/boot_id"), _link("/proc/self/ns/pid")]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _start_time(process: int) -> int:
    """When a process started, in clock ticks since boot; 0 if it does not exist."""
    status = _read(f"/proc/{process}/stat")
    # The name in parentheses may contain spaces, so the fields are counted from behind it (see proc(5)).
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
