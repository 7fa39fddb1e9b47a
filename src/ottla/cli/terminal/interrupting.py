"""Signals for a command that mostly waits: Ctrl-C and its relatives, and a reader of its output that has gone.

While the command waits, a signal ends the waiting at once; while it works, the signal is only noted, so that what was
begun is finished. A thread watches the pipe that standard output is, since a command that has nothing to write would
not notice that nobody reads any more.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)
_Result = TypeVar("_Result")


class Interrupted(Exception):
    """A signal ended the waiting."""


class Interruption:
    """Catches the signals while the block runs, and watches the pipe, if one is given."""

    def __init__(self, pipe: int | None = None) -> None:
        self.asked = 0
        """The number of the first signal, 0 while there was none."""
        self._waits = False
        self._before: dict[signal.Signals, Any] = {}
        self._watch = _PipeWatch(pipe)

    @property
    def exit_code(self) -> int:
        """As a shell has it for a program that the signal has ended; 0 without one."""
        return 128 + self.asked if self.asked else 0

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._came) for number in _SIGNALS}
        self._watch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.stop()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raises `Interrupted` if a signal has come."""
        if self.asked:
            raise Interrupted

    def wait(self, step: Callable[[], _Result]) -> _Result:
        """What `step` returns, or `Interrupted` as soon as a signal comes."""
        try:
            try:
                self._waits = True
                self.check()
                return step()
            finally:
                self._waits = False
        except KeyboardInterrupt as error:
            self._waits = False  # it may have come just before the line above
            raise Interrupted from error

    def _came(self, number: int, frame: FrameType | None) -> None:
        # Connections send SIGPIPE, too, when a broker has closed them; only that of the watch is about the output.
        if number == signal.SIGPIPE and not self._watch.is_broken:
            return
        # A second Ctrl-C ends work, too; a broken pipe says so by itself there.
        is_impatient = bool(self.asked) and number != signal.SIGPIPE
        self.asked = self.asked or number
        if self._waits or is_impatient:
            raise KeyboardInterrupt


class _PipeWatch:
    """Sends this process SIGPIPE as soon as nobody reads the pipe any more."""

    def __init__(self, pipe: int | None) -> None:
        self.is_broken = False
        self._pipe = pipe
        self._thread: threading.Thread | None = None
        self._ends: tuple[int, int] | None = None

    def start(self) -> None:
        if self._pipe is None:
            return
        self._ends = os.pipe()
        self._thread = threading.Thread(
            target=self._run, args=(self._pipe, self._ends[0]), name="ottla-pipe-watch", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        if self._thread is not None and self._ends is not None:
            os.close(self._ends[1])
            self._thread.join()
            os.close(self._ends[0])

    def _run(self, pipe: int, end: int) -> None:
        poll = select.poll()
        poll.register(pipe, 0)  # errors alone, and those are always reported
        poll.register(end, select.POLLIN)
        if end not in dict(poll.poll()):
            self.is_broken = True
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGPIPE)


def output_pipe() -> int | None:
    """Standard output, if it is a pipe or a socket."""
    try:
        output = sys.stdout.fileno()
        mode = os.fstat(output).st_mode
    except (AttributeError, OSError, ValueError):
        return None
    return output if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else None
