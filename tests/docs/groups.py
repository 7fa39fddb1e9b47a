"""A process that a page starts, with all that it starts itself, and the end of what is left of it.

Numbers of processes are used again within minutes on a busy machine: nothing is killed by a number that may belong to
another program by now.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress

import psutil  # type: ignore[import-untyped]


class Group:
    """The process group of a child that was started in a session of its own."""

    def __init__(self, leader: subprocess.Popen[bytes]) -> None:
        self.leader = leader
        self._left: list[psutil.Process] = []

    def interrupt(self) -> None:
        """Press Ctrl-C: all of them get SIGINT."""
        if self.leader.poll() is None:
            os.killpg(self.leader.pid, signal.SIGINT)

    def note_left(self) -> None:
        """Note who is left of the group, just after its leader has ended."""
        with suppress(ProcessLookupError):
            os.killpg(self.leader.pid, 0)
            self._left = [process for process in psutil.process_iter() if _group_of(process.pid) == self.leader.pid]

    def kill(self) -> None:
        """End all of them, and wait for the leader."""
        if self.leader.poll() is None or any(process.is_running() for process in self._left):
            # While one of them runs, the number of the group is theirs.
            with suppress(ProcessLookupError):
                os.killpg(self.leader.pid, signal.SIGKILL)
        self.leader.wait()


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None
