"""Signals for a command that mostly waits: Ctrl-C, SIGTERM, SIGHUP, and a closed output pipe.

While the command waits, a signal ends the wait at once; while it works, the signal is only noted, so that the current
step is finished. A thread watches the pipe of standard output: a command that writes nothing would not notice that its
reader has gone.
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
    """A signal ended the wait."""


class Interruption:
    """Catches signals while the block runs, and watches the pipe if one is given."""

    def __init__(self, pipe: int | None = None) -> None:
        self.asked = 0
        """The number of the first signal; 0 before it."""
        self._waits = False
        self._before: dict[signal.Signals, Any] = {}
        self._watch = _PipeWatch(pipe)

    @property
    def exit_code(self) -> int:
        """The exit code of a program that the signal ended, as a shell has it; 0 without a signal."""
        return 128 + self.asked if self.asked else 0

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        self._watch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.stop()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise `Interrupted` after a signal."""
        if self.asked:
            raise Interrupted

    def wait(self, step: Callable[[], _Result]) -> _Result:
        """Return the result of `step`. Raises `Interrupted` as soon as a signal arrives."""
        try:
            try:
                self._waits = True
                self.check()
                return step()
            finally:
                self._waits = False
        except KeyboardInterrupt as error:
            self._waits = False  # it may have arrived just before the line above
            raise Interrupted from error

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # Connections that a broker has closed raise SIGPIPE, too; only the watch knows about the output.
        if number == signal.SIGPIPE and not self._watch.is_broken:
            return
        # A second Ctrl-C also ends work; a broken pipe raises its own error there.
        is_second = bool(self.asked) and number != signal.SIGPIPE
        self.asked = self.asked or number
        if self._waits or is_second:
            raise KeyboardInterrupt


class _PipeWatch:
    """Sends this process SIGPIPE as soon as the pipe has no reader."""

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
        poll.register(pipe, 0)  # only errors, which are always reported
        poll.register(end, select.POLLIN)
        if end not in dict(poll.poll()):
            self.is_broken = True
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGPIPE)


def output_pipe() -> int | None:
    """Return the descriptor of standard output if it is a pipe or a socket."""
    try:
        output = sys.stdout.fileno()
        mode = os.fstat(output).st_mode
    except (AttributeError, OSError, ValueError):
        return None
    return output if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else None
