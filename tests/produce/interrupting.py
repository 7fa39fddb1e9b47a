"""Interrupts a piece of work before any one of its bytecode instructions: races and Ctrl-C on demand."""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any


@functools.cache
def exits(code: CodeType) -> frozenset[int]:
    """Where the block of a `with` statement is being left, from the last instruction of the block to the call that
    leaves it. The interpreter handles no signal there, so that a lock is never left locked."""
    found: set[int] = set()
    listed = list(dis.get_instructions(code))
    for at, instruction in enumerate(listed):
        leaving = listed[at : at + 3]
        if len(leaving) == 3 and all(one.opname == "LOAD_CONST" and one.argval is None for one in leaving):
            found |= {one.offset for one in listed[at : at + 5]}
        elif instruction.opname == "WITH_EXCEPT_START":
            found.add(instruction.offset)
    return frozenset(found)


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
