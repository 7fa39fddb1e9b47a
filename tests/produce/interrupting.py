"""Interrupts a piece of work before any one of its bytecode instructions: races and Ctrl-C on demand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def interrupted(work: Callable[[], None], at: int, interruption: Callable[[], None], *, files: tuple[str, ...]) -> bool:
    """Does `work` and calls `interruption` before its instruction number `at` in `files`; whether it got that far."""
    seen = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal seen
        if not frame.f_code.co_filename.endswith(files):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            seen += 1
            if seen == at:
                interruption()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return seen >= at
