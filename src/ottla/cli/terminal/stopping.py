"""Signals for commands that finish their work before they end: Ctrl-C, SIGTERM, SIGHUP.

The first signal is only noted: the command checks `asked` and ends cleanly. The second one raises KeyboardInterrupt
wherever the command is, and restores the former handlers, so that a third one ends it at once.
"""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopping:
    """Catches signals while the block runs; writes `notice` at the first one."""

    def __init__(self, notice: str) -> None:
        self.asked = 0
        """The number of the first signal; 0 before it."""
        self._notice = notice
        self._before: dict[signal.Signals, Any] = {}

    @property
    def exit_code(self) -> int:
        """The exit code of a program that the signal ended, as a shell has it."""
        return 128 + self.asked

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _restore(self) -> None:
        before, self._before = self._before, {}
        for number, handler in before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            self._restore()
            raise KeyboardInterrupt
        self.asked = number
        try:  # not through the buffered stream, which may be in the middle of a write
            os.write(2, f"\n{self._notice}\n".encode())
        except OSError:
            pass
