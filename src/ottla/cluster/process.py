"""Processes that outlive their starter, named by pid and start time so that a recycled pid is never hit.

In come command lines and signals; out go `ProcessId` values that survive in a state file. Nothing here waits for
more than a process to be gone.
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
"""Where the start time is in /proc/PID/stat, counted after the name, which may contain anything."""
_POLL = 0.02


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process for good: the pid alone would mean another process once this one is gone."""

    pid: int
    started: str
    """When it started, in a form that never changes while it runs; compared, not read."""

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The process that has this pid now, or None."""
        try:
            return cls(pid, _start_of(psutil.Process(pid)))
        except psutil.Error:
            return None

    @classmethod
    def own(cls) -> ProcessId:
        """This very process."""
        return cls(os.getpid(), _start_of(psutil.Process()))


class Life(Enum):
    """What a process is doing."""

    RUNNING = "running"
    FROZEN = "frozen"
    DEAD = "dead"


def spawn(command: list[str], *, log: Path, environment: dict[str, str]) -> ProcessId:
    """Start a command in a session of its own, its output appended to `log`.

    Not through `subprocess`: its objects complain when they are dropped before their process ended, and these
    processes are meant to go on. Whoever looks at one with `life` also reaps it.
    """
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.fspath(log), append, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
        *((os.POSIX_SPAWN_CLOSE, number) for number in _handed_down()),
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
        raise LocalClusterError(f"{command[0]} could not be started: {exc}") from exc
    # Even a child that has already failed is found here: nobody but this process can have reaped it.
    return ProcessId.of(pid) or ProcessId(pid, "unknown")


def life(process: ProcessId | None) -> Life:
    """Whether it runs, is stopped by a signal, or is gone (or another process has its pid)."""
    found = _find(process)
    if found is None:
        return Life.DEAD
    try:
        status = found.status()
    except psutil.Error:
        return Life.DEAD
    if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
        _reap(found.pid)
        return Life.DEAD
    return Life.FROZEN if status == psutil.STATUS_STOPPED else Life.RUNNING


def memory_bytes(process: ProcessId | None) -> int | None:
    """Resident memory, or None for a process that is gone."""
    found = _find(process)
    try:
        return found.memory_info().rss if found is not None else None
    except psutil.Error:
        return None


def listens(process: ProcessId | None, port: int) -> bool:
    """Whether this very process has the port."""
    found = _find(process)
    try:
        sockets = found.net_connections("tcp") if found is not None else []
    except psutil.Error:
        return False
    return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in sockets)


def send(process: ProcessId | None, number: signal.Signals) -> bool:
    """Send a signal; False when the process is gone."""
    found = _find(process)
    if found is None:
        return False
    try:
        found.send_signal(number)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error as exc:
        raise LocalClusterError(f"process {found.pid} could not be signalled: {exc}") from exc
    return True


def end(processes: Iterable[ProcessId | None], *, grace: float, timeout: float = 10.0) -> None:
    """Make these processes go: SIGTERM with `grace` seconds to follow it (0 = none), then SIGKILL."""
    targets = [process for process in processes if life(process) is not Life.DEAD]
    if grace > 0:
        for process in targets:
            send(process, signal.SIGTERM)
            send(process, signal.SIGCONT)  # a frozen process would not see the first signal
        if wait_until(lambda: not _living(targets), timeout=grace):
            return
    for process in targets:
        send(process, signal.SIGKILL)
    if not wait_until(lambda: not _living(targets), timeout=timeout):
        pids = ", ".join(str(process.pid) for process in _living(targets))
        raise LocalClusterError(f"processes {pids} are still there {timeout:.0f} s after SIGKILL")


def wait_until(condition: Callable[[], bool], *, timeout: float) -> bool:
    """Poll a condition until it holds (True) or the time is over (False)."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return True


def strays(directory: Path) -> list[ProcessId]:
    """Processes of the cluster in `directory` by what they themselves show, whatever its state file says.

    A broker carries its folder on its command line; a Redis has it as its working folder.
    """
    found = []
    for process in psutil.process_iter():
        try:
            if _belongs(process, directory) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(ProcessId(process.pid, _start_of(process)))
        except psutil.Error:
            continue
    return found


def marker(directory: Path) -> str:
    """The Java option by which `strays` knows a broker."""
    return f"-Dottla.cluster={directory}"


def _belongs(process: psutil.Process, directory: Path) -> bool:
    name = process.name()
    if name.startswith("redis-server"):
        return Path(process.cwd()) == directory / "redis"
    return name == "java" and marker(directory) in process.cmdline()


def _handed_down() -> list[int]:
    """Descriptors that a shell or make left open for its children: a broker would keep that pipe or lock for ever."""
    found = []
    for number in map(int, os.listdir("/dev/fd") if os.path.isdir("/dev/fd") else ()):
        try:
            if number > 2 and os.get_inheritable(number):
                found.append(number)
        except OSError:
            continue  # closed since; the listing itself had one
    return found


def _living(processes: Iterable[ProcessId | None]) -> list[ProcessId]:
    return [process for process in processes if process is not None and life(process) is not Life.DEAD]


def _start_of(process: psutil.Process) -> str:
    """Boot and clock ticks since then, where the system tells: its wall clock may be set while a broker runs."""
    try:
        after_name = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2]
        return f"{_BOOT_ID.read_text().strip()}+{after_name.split()[_START_TICKS]}"
    except (OSError, IndexError):
        return repr(process.create_time())  # raises psutil's error for a process that is gone


def _find(process: ProcessId | None) -> psutil.Process | None:
    if process is None:
        return None
    try:
        found = psutil.Process(process.pid)
        return found if _start_of(found) == process.started else None
    except psutil.Error:
        return None


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass  # somebody else's child: its parent, or init, reaps it
