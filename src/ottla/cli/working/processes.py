"""`ottla work run --processes N`: so many child processes, each of them a node, that end with their parent.

A task comes in; the parent hears how far its children are, and tells them to stop through a pipe. When the parent
dies, the pipe ends, and a child finishes what it has in hand. Signals of the terminal are left to the parent.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import NamedTuple

from ottla.cli import Failure, Misuse
from ottla.cli.working.running import Counting, Running, Tally, Task
from ottla.errors import ConfigError, OttlaError

_LOOK_SECONDS = 0.2
_GRACE_SECONDS = 15.0
"""For units that are given back."""
_AGAIN_SECONDS = 1.0
"""Until a process that was killed is replaced."""
_LEFT_TO_PARENT = (signal.SIGINT, signal.SIGHUP)


class _Word(Enum):
    """What a parent says."""

    STOP = "finish what you have"
    NOW = "give it back"


class _Error(NamedTuple):
    """Why a child has ended."""

    text: str
    is_misuse: bool


class _Child:
    """One process, and what it has told."""

    def __init__(self, task: Task) -> None:
        context = multiprocessing.get_context("spawn")
        self._line, theirs = context.Pipe()
        self.tally = Tally()
        self.error: _Error | None = None
        self.process: BaseProcess = context.Process(target=_child, args=(task, theirs), name="ottla-work")
        with _ignored():
            self.process.start()
        theirs.close()

    def say(self, word: _Word) -> None:
        try:
            self._line.send(word)
        except OSError:
            pass  # it has ended

    def listen(self) -> None:
        """Takes in what has come."""
        try:
            while self._line.poll():
                told = self._line.recv()
                if isinstance(told, _Error):
                    self.error = told
                else:
                    self.tally = told
        except (OSError, EOFError):
            pass

    def end(self, seconds: float) -> None:
        """It is gone afterwards, whatever it does."""
        self.process.join(seconds)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.listen()
        self._line.close()


class Processes:
    """The children of this process."""

    def __init__(self, task: Task, count: int, say: Callable[[str], None]) -> None:
        self._task = task
        self._count = count
        self._say = say
        self._children: list[_Child] = []
        self._ended = Tally()

    @property
    def tally(self) -> Tally:
        """Of all together."""
        total = self._ended
        for child in self._children:
            total = total.plus(child.tally)
        return total

    def run(self, is_asked: Callable[[], object]) -> None:
        """Until all have come to their end; `is_asked` says whether they shall."""
        stopped = False
        try:
            self._children += [_Child(self._task) for _ in range(self._count)]
            while self._children:
                multiprocessing.connection.wait([one.process.sentinel for one in self._children], _LOOK_SECONDS)
                for child in self._children:
                    child.listen()
                if is_asked() and not stopped:
                    stopped = True
                    self._tell(_Word.STOP)
                for child in [one for one in self._children if not one.process.is_alive()]:
                    self._gone(child, replaced=not stopped)
        finally:
            self._tell(_Word.NOW)
            until = time.monotonic() + _GRACE_SECONDS
            for child in list(self._children):
                self._take_off(child, max(0.0, until - time.monotonic()))

    def _tell(self, word: _Word) -> None:
        for child in self._children:
            child.say(word)

    def _gone(self, child: _Child, *, replaced: bool) -> None:
        self._take_off(child, 0.0)
        code = child.process.exitcode or 0
        if child.error is not None:
            raise (Misuse if child.error.is_misuse else Failure)(child.error.text)
        if code > 0:
            raise Failure(f"a process that worked has ended with {code}")
        if code < 0 and replaced:
            self._say(f"a process was ended by signal {-code}; another one takes its place")
            time.sleep(_AGAIN_SECONDS)
            self._children.append(_Child(self._task))

    def _take_off(self, child: _Child, seconds: float) -> None:
        child.end(seconds)
        self._children.remove(child)
        self._ended = self._ended.plus(child.tally)


@contextmanager
def _ignored() -> Iterator[None]:
    """Children inherit that Ctrl-C is not for them, before they can say so themselves."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _LEFT_TO_PARENT}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _child(task: Task, line: Connection) -> None:
    """What runs in a child."""
    stopping = _Flag()
    signal.signal(signal.SIGTERM, stopping.raised)
    counting = Counting()
    try:
        with Running(task, counting) as running:
            _work(running, line, counting, stopping)
    except (OttlaError, Misuse) as error:
        text = error.message if isinstance(error, Misuse) else str(error)
        _send(line, _Error(text, isinstance(error, Misuse | ConfigError)))
    _send(line, counting.tally)


class _Flag:
    is_up = False

    def raised(self, number: int, frame: FrameType | None) -> None:
        self.is_up = True


def _work(running: Running, line: Connection, counting: Counting, stopping: _Flag) -> None:
    """Until the end, or until the parent says so or is gone."""
    has_parent = True
    while not running.is_over(_LOOK_SECONDS):
        if has_parent:
            has_parent = _send(line, counting.tally)
            word = _heard(line)
            if word is _Word.NOW:
                return
            stopping.is_up |= word is not None
        if stopping.is_up or not has_parent:
            running.stop()


def _heard(line: Connection) -> _Word | None:
    """What the parent says; that it is gone means to stop."""
    word: _Word | None = None
    try:
        while line.poll() and word is not _Word.NOW:
            word = line.recv()
    except (OSError, EOFError):
        return word or _Word.STOP
    return word


def _send(line: Connection, told: object) -> bool:
    try:
        line.send(told)
    except OSError:
        return False
    return True
