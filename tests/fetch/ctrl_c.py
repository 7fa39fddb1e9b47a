"""Ctrl-C on demand: at any of the places where the interpreter would look for a signal."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

# Where the interpreter looks for signals: at the start of functions, when it jumps back, and after calls.
_LOOKS = {"RESUME", "JUMP_BACKWARD", "CALL", "CALL_FUNCTION_EX", "CALL_KW", "SEND"}


class Interrupter:
    """Raises KeyboardInterrupt where a signal could, at the `at`-th such place in these files since the last one."""

    def __init__(self, files: tuple[str, ...]) -> None:
        self.files = files
        self.at = 0
        self.seen = 0
        self._looked = False

    def during(self, work: Callable[[], Any], at: int) -> tuple[Any, bool]:
        """What the work returned, and whether it was interrupted."""
        self.at, self.seen, self._looked = at, 0, False
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            return work(), False
        except KeyboardInterrupt:
            return None, True
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if not code.co_filename.endswith(self.files):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            if self._looked:
                self._looked = False
                self.seen += 1
                if self.seen == self.at:
                    raise KeyboardInterrupt
            self._looked = dis.opname[code.co_code[frame.f_lasti]] in _LOOKS
        return self._trace
