"""Interrupts a piece of work wherever a signal could come in between: by Ctrl-C, by `sys.exit`, or by anything else."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

_OURS = "ottla/engines/fleet/"
# Where the interpreter looks for signals: at the start of functions, when it jumps back, and after calls.
_LOOKS = {"RESUME", "JUMP_BACKWARD", "CALL", "CALL_FUNCTION_EX", "CALL_KW", "SEND"}


class Interrupter:
    """Does something at the `at`-th place at which a signal could be handled in the fleet's own code."""

    def __init__(self, interruption: Callable[[], object]) -> None:
        self._interruption = interruption
        self._at = 0
        self._looked = False
        self.seen = 0
        """Places that the work has come to, if it was not interrupted."""

    def during(self, work: Callable[[], Any], at: int) -> bool:
        """Whether the work got there."""
        self._at, self.seen, self._looked = at, 0, False
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            work()
        finally:
            sys.settrace(before)
        return self.seen >= at

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not _is_ours(frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            if self._looked:
                self._looked = False
                self.seen += 1
                if self.seen == self._at:
                    self._interruption()
            self._looked = dis.opname[frame.f_code.co_code[frame.f_lasti]] in _LOOKS
        return self._trace


def _is_ours(frame: FrameType) -> bool:
    """The fleet's code, and the blocks that it opens and closes."""
    name, caller = frame.f_code.co_filename, frame.f_back
    if name.endswith("/contextlib.py"):
        return caller is not None and _OURS in caller.f_code.co_filename
    return _OURS in name


def ctrl_c() -> None:
    """As Python does it."""
    raise KeyboardInterrupt
