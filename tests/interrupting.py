"""Interrupts a piece of work before any one of its bytecode instructions, or by signals: races and Ctrl-C on demand."""

from __future__ import annotations

import dis
import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

# Where the interpreter looks for signals: at the start of functions, when it jumps back, and after calls.
_LOOKS = {"RESUME", "JUMP_BACKWARD", "CALL", "CALL_FUNCTION_EX", "CALL_KW", "SEND"}

# A call that raises ends here, and no signal is handled: an exception at this place would leave the thread with a
# wrong idea of what is being handled, for good.
_AFTER_RAISING = {"PUSH_EXC_INFO", "WITH_EXCEPT_START"}


def ctrl_c() -> None:
    """As Python does it."""
    raise KeyboardInterrupt


def in_time(work: Callable[[], object], seconds: float = 60.0) -> None:
    """In another thread, which would wait for a lock that nobody gives back."""
    done: list[object] = []
    thread = threading.Thread(target=lambda: done.append(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert done, f"{work} hangs, or has failed"


@contextmanager
def watched(seconds: float = 30.0) -> Iterator[None]:
    """Fails if the block, on the main thread, takes longer: a lock that its own thread holds would be waited for in
    vain."""

    def called(_number: int, _frame: FrameType | None) -> None:
        raise AssertionError(f"it hangs for over {seconds} s")

    main = threading.main_thread().ident
    assert main == threading.get_ident()
    before = signal.signal(signal.SIGUSR1, called)
    timer = threading.Timer(seconds, signal.pthread_kill, (main, signal.SIGUSR1))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGUSR1, before)


@functools.cache
def _handlers(code: CodeType) -> list[tuple[int, int, int]]:
    return [(entry.start, entry.end, entry.target) for entry in dis._parse_exception_table(code)]  # type: ignore[attr-defined]


def _handler(code: CodeType, place: int) -> int | None:
    return next((target for start, end, target in _handlers(code) if start <= place < end), None)


class Interrupter:
    """Does something at the `at`-th place at which a signal could be handled in our own code, which is that in
    `folders`, and in the blocks that it opens and closes."""

    def __init__(self, interruption: Callable[[], object], *folders: str) -> None:
        self._interruption = interruption
        self._folders = folders
        self._at = 0
        self._looked: tuple[CodeType, int] | None = None
        """The instruction just done, if signals are handled at its end."""
        self.seen = 0
        """Places that the work has come to, if it was not interrupted."""

    def during(self, work: Callable[[], Any], at: int) -> bool:
        """Whether the work got there."""
        self._at, self.seen, self._looked = at, 0, None
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            work()
        finally:
            sys.settrace(before)
        return self.seen >= at

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not self._is_ours(frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if self._looked is not None and name not in _AFTER_RAISING and self._is_handled_alike(frame):
                self.seen += 1
                if self.seen == self._at:
                    self._looked = None
                    self._interruption()
            self._looked = (frame.f_code, frame.f_lasti) if name in _LOOKS else None
        return self._trace

    def _is_handled_alike(self, frame: FrameType) -> bool:
        """An exception that a signal raises is of the call that has just ended. Here it is of the next instruction,
        which the same handlers must enclose: the last call of a `with` block is inside, what comes after it is not."""
        assert self._looked is not None
        code, place = self._looked
        return code is not frame.f_code or _handler(code, place) == _handler(code, frame.f_lasti)

    def _is_ours(self, frame: FrameType) -> bool:
        name, caller = frame.f_code.co_filename, frame.f_back
        if name.endswith("/contextlib.py"):
            return caller is not None and self._has(caller.f_code.co_filename)
        return self._has(name)

    def _has(self, name: str) -> bool:
        return any(folder in name for folder in self._folders)


class CtrlC(Interrupter):
    """The same with Ctrl-C, for work that returns something."""

    def __init__(self, folders: Sequence[str]) -> None:
        super().__init__(ctrl_c, *folders)

    def ends(self, work: Callable[[], Any], at: int) -> tuple[Any, bool]:
        """What the work returned, and whether it was ended before that."""
        results: list[Any] = []
        try:
            self.during(lambda: results.append(work()), at)
        except KeyboardInterrupt:
            return None, True
        return results[0], False


@contextmanager
def signals(
    seconds: float, interval: float, handler: Callable[[], object], *, inside: tuple[str, ...] = ("",)
) -> Iterator[None]:
    """Calls the handler as a signal does, after so many seconds, and in these intervals from then on; only when it
    comes in the middle of code in one of these folders."""

    def called(_number: int, frame: FrameType | None) -> None:
        if frame is not None and any(folder in frame.f_code.co_filename for folder in inside):
            handler()

    before = signal.signal(signal.SIGALRM, called)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, interval)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


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
