"""Ctrl-C and its relatives for commands that have something to bring to an end first.

The first signal is only noted: the command looks at `asked` and ends in order. The second one raises KeyboardInterrupt
wherever the command is, and gives the signals back to whoever had them, so that a third one ends it at once.
"""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopping:
    """Catches the signals while the block runs; `notice` is written when the first one comes."""

    def __init__(self, notice: str) -> None:
        self.asked = 0
        """The number of the first signal, 0 while there was none."""
        self._notice = notice
        self._before: dict[signal.Signals, Any] = {}

    @property
    def exit_code(self) -> int:
        """As a shell has it for a program that the signal has ended."""
        return 128 + self.asked

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._came) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _restore(self) -> None:
        before, self._before = self._before, {}
        for number, handler in before.items():
            signal.signal(number, handler)

    def _came(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            self._restore()
            raise KeyboardInterrupt
        self.asked = number
        try:  # not through the buffered stream, which may be in the middle of a write
            os.write(2, f"\n{self._notice}\n".encode())
        except OSError:
            pass
