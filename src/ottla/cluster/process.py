"""Processes that outlive their starter, identified by pid and start time so that a recycled pid is never hit.

Command lines and signals come in; `ProcessId` values that can be stored in a state file go out. Nothing here waits for
more than the end of a process.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from ottla.errors import LocalClusterError

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_START_TICKS = 19
"""Index of the start time in /proc/PID/stat, counted after the name, which may contain anything."""
_POLL = 0.02
"""Seconds between two looks at a condition."""


@dataclass(frozen=True, slots=True)
class ProcessId:
    """Identifies a process for good: the pid alone may be reused after its end."""

    pid: int
    started: str
    """Its start time, in a form that never changes while it runs; only for comparison."""

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """Return the process that has this pid now, or None."""
        try:
            return cls(pid, _start_of(psutil.Process(pid)))
        except psutil.Error:
            return None

    @classmethod
    def own(cls) -> ProcessId:
        """Return this process."""
        return cls(os.getpid(), _start_of(psutil.Process()))


class Life(Enum):
    """The state of a process."""

    RUNNING = "running"
    FROZEN = "frozen"
    DEAD = "dead"


def spawn(command: list[str], *, log: Path, environment: dict[str, str]) -> ProcessId:
    """Start a command in its own session, with its output appended to `log`.

    Not with `subprocess`: its objects warn if they are dropped before their process ends, and these processes are meant
    to continue. `life` also reaps them. Raises `LocalClusterError` if the command cannot be started.
    """
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.fspath(log), append, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
        *((os.POSIX_SPAWN_CLOSE, number) for number in _inherited_descriptors()),
    ]
    try:
        pid = os.posix_spawn(
            command[0],
            command,
            environment,
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGHUP),
        )
    except OSError as exc:
        raise LocalClusterError(f"could not start {command[0]}: {exc}") from exc
    # This finds even a child that has already failed: only this process can reap it.
    return ProcessId.of(pid) or ProcessId(pid, "unknown")


def life(process: ProcessId | None) -> Life:
    """Return whether it runs, is stopped by a signal, or is gone (or another process has its pid)."""
    handle = _find(process)
    if handle is None:
        return Life.DEAD
    try:
        status = handle.status()
    except psutil.Error:
        return Life.DEAD
    if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
        _reap(handle.pid)
        return Life.DEAD
    return Life.FROZEN if status == psutil.STATUS_STOPPED else Life.RUNNING


def memory_bytes(process: ProcessId | None) -> int | None:
    """Return the resident memory, or None for a process that is gone."""
    handle = _find(process)
    try:
        return handle.memory_info().rss if handle is not None else None
    except psutil.Error:
        return None


def listens(process: ProcessId | None, port: int) -> bool:
    """Return whether this process listens on the port."""
    handle = _find(process)
    try:
        sockets = handle.net_connections("tcp") if handle is not None else []
    except psutil.Error:
        return False
    return any(connection.status == psutil.CONN_LISTEN and connection.laddr.port == port for connection in sockets)


def send(process: ProcessId | None, number: signal.Signals) -> bool:
    """Send a signal. Returns False if the process is gone; raises `LocalClusterError` if it is not allowed."""
    handle = _find(process)
    if handle is None:
        return False
    try:
        handle.send_signal(number)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error as exc:
        raise LocalClusterError(f"could not signal process {handle.pid}: {exc}") from exc
    return True


def end(processes: Iterable[ProcessId | None], *, grace: float, timeout: float = 10.0) -> None:
    """End these processes: SIGTERM, then SIGKILL after `grace` seconds; with 0, SIGKILL at once.

    Raises `LocalClusterError` if one still exists `timeout` seconds after SIGKILL.
    """
    targets = [process for process in processes if life(process) is not Life.DEAD]
    if grace > 0:
        for process in targets:
            send(process, signal.SIGTERM)
            send(process, signal.SIGCONT)  # A frozen process does not handle SIGTERM.
        if wait_until(lambda: not _living(targets), timeout=grace):
            return
    for process in targets:
        send(process, signal.SIGKILL)
    if not wait_until(lambda: not _living(targets), timeout=timeout):
        pids = ", ".join(str(process.pid) for process in _living(targets))
        raise LocalClusterError(f"processes {pids} still exist {timeout:.0f} s after SIGKILL")


def wait_until(condition: Callable[[], bool], *, timeout: float) -> bool:
    """Poll a condition. Returns whether it held before the timeout."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return True


def strays(directory: Path) -> list[ProcessId]:
    """Find the processes of the cluster in `directory` in the process table, whatever its state file says.

    A broker has the folder on its command line; a Redis has it as its working directory.
    """
    process_ids = []
    for process in psutil.process_iter():
        try:
            if _belongs_to(process, directory) and process.status() != psutil.STATUS_ZOMBIE:
                process_ids.append(ProcessId(process.pid, _start_of(process)))
        except psutil.Error:
            continue
    return process_ids


def marker(directory: Path) -> str:
    """Return the Java option by which `strays` recognizes a broker."""
    return f"-Dottla.cluster={directory}"


def _belongs_to(process: psutil.Process, directory: Path) -> bool:
    name = process.name()
    if name.startswith("redis-server"):
        return Path(process.cwd()) == directory / "redis"
    return name == "java" and marker(directory) in process.cmdline()


def _inherited_descriptors() -> list[int]:
    """Return descriptors that a shell or make left open for its children: a broker would hold that pipe or lock
    forever."""
    descriptors = []
    for number in map(int, os.listdir("/dev/fd") if os.path.isdir("/dev/fd") else ()):
        try:
            if number > 2 and os.get_inheritable(number):
                descriptors.append(number)
        except OSError:
            continue  # Closed in the meantime; the listing itself used one.
    return descriptors


def _living(processes: Iterable[ProcessId | None]) -> list[ProcessId]:
    return [process for process in processes if process is not None and life(process) is not Life.DEAD]


def _start_of(process: psutil.Process) -> str:
    """Return boot id and clock ticks since boot, if available: the wall clock may be set while a broker runs."""
    try:
        after_name = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2]
        return f"{_BOOT_ID.read_text().strip()}+{after_name.split()[_START_TICKS]}"
    except (OSError, IndexError):
        return repr(process.create_time())  # Raises psutil's error for a process that is gone.


def _find(process: ProcessId | None) -> psutil.Process | None:
    if process is None:
        return None
    try:
        handle = psutil.Process(process.pid)
        return handle if _start_of(handle) == process.started else None
    except psutil.Error:
        return None


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass  # Not our child: its parent, or init, reaps it.
