"""`ottla work run --processes N`: child processes, each a node, that end with their parent.

Children report their counts through a pipe, and the parent stops them through it. If the parent dies, the pipe closes,
and a child finishes the units in hand. Signals of the terminal go to the parent only.
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

from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.work.node import HandlerNode, Tally, TallySink, Task
from ottla.errors import ConfigError, OttlaError

_POLL_SECONDS = 0.2
_GRACE_SECONDS = 15.0
"""How long children may take to give units back."""
_RESTART_SECONDS = 1.0
"""Pause before a killed process is replaced."""
_PARENT_SIGNALS = (signal.SIGINT, signal.SIGHUP)


class _Order(Enum):
    """What the parent sends to a child."""

    STOP = "finish what you have"
    NOW = "give it back"


class _Error(NamedTuple):
    """Why a child ended."""

    text: str
    is_usage: bool


class _Child:
    """A child process, and what it has reported."""

    def __init__(self, task: Task) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.tally = Tally()
        self.error: _Error | None = None
        self.process: BaseProcess = context.Process(target=_child, args=(task, theirs), name="ottla-work")
        with _ignored():
            self.process.start()
        theirs.close()

    def send(self, order: _Order) -> None:
        try:
            self._pipe.send(order)
        except OSError:
            pass  # it has ended

    def receive(self) -> None:
        """Take in the reports that have arrived."""
        try:
            while self._pipe.poll():
                report = self._pipe.recv()
                if isinstance(report, _Error):
                    self.error = report
                else:
                    self.tally = report
        except (OSError, EOFError):
            pass

    def end(self, seconds: float) -> None:
        """Wait for the process, and kill it if it does not end in time."""
        self.process.join(seconds)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.receive()
        self._pipe.close()


class WorkerProcesses:
    """The child processes of this one."""

    def __init__(self, task: Task, count: int, say: Callable[[str], None]) -> None:
        self._task = task
        self._count = count
        self._say = say
        self._children: list[_Child] = []
        self._ended = Tally()

    @property
    def tally(self) -> Tally:
        """The sum of all children."""
        total = self._ended
        for child in self._children:
            total = total.plus(child.tally)
        return total

    def run(self, is_stopped: Callable[[], object]) -> None:
        """Run until all children have ended. Raises the error of a child that failed."""
        stopped = False
        try:
            self._children += [_Child(self._task) for _ in range(self._count)]
            while self._children:
                multiprocessing.connection.wait([child.process.sentinel for child in self._children], _POLL_SECONDS)
                for child in self._children:
                    child.receive()
                if is_stopped() and not stopped:
                    stopped = True
                    self._send(_Order.STOP)
                for child in [child for child in self._children if not child.process.is_alive()]:
                    self._handle_exit(child, replaced=not stopped)
        finally:
            self._send(_Order.NOW)
            until = time.monotonic() + _GRACE_SECONDS
            for child in list(self._children):
                self._remove(child, max(0.0, until - time.monotonic()))

    def _send(self, order: _Order) -> None:
        for child in self._children:
            child.send(order)

    def _handle_exit(self, child: _Child, *, replaced: bool) -> None:
        self._remove(child, 0.0)
        code = child.process.exitcode or 0
        if child.error is not None:
            raise (UsageError if child.error.is_usage else CommandFailed)(child.error.text)
        if code > 0:
            raise CommandFailed(f"a worker process ended with exit code {code}")
        if code < 0 and replaced:
            self._say(f"a worker process was killed by signal {-code}; starting another")
            time.sleep(_RESTART_SECONDS)
            self._children.append(_Child(self._task))

    def _remove(self, child: _Child, seconds: float) -> None:
        child.end(seconds)
        self._children.remove(child)
        self._ended = self._ended.plus(child.tally)


@contextmanager
def _ignored() -> Iterator[None]:
    """Ignore the signals while a child starts: it inherits that before it can ignore them itself."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _PARENT_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _child(task: Task, pipe: Connection) -> None:
    """Run a node in a child process."""
    stop = _Flag()
    signal.signal(signal.SIGTERM, stop.set)
    counter = TallySink()
    try:
        with HandlerNode(task, counter) as node:
            _work(node, pipe, counter, stop)
    except (OttlaError, UsageError) as error:
        text = error.message if isinstance(error, UsageError) else str(error)
        _send(pipe, _Error(text, isinstance(error, UsageError | ConfigError)))
    _send(pipe, counter.tally)


class _Flag:
    is_set = False

    def set(self, number: int, frame: FrameType | None) -> None:
        self.is_set = True


def _work(node: HandlerNode, pipe: Connection, counter: TallySink, stop: _Flag) -> None:
    """Run until the node ends, or the parent stops it or dies."""
    has_parent = True
    while not node.wait(_POLL_SECONDS):
        if has_parent:
            has_parent = _send(pipe, counter.tally)
            order = _receive_order(pipe)
            if order is _Order.NOW:
                return
            stop.is_set |= order is not None
        if stop.is_set or not has_parent:
            node.stop()


def _receive_order(pipe: Connection) -> _Order | None:
    """Return the last order of the parent; STOP if it has died."""
    order: _Order | None = None
    try:
        while pipe.poll() and order is not _Order.NOW:
            order = pipe.recv()
    except (OSError, EOFError):
        return order or _Order.STOP
    return order


def _send(pipe: Connection, report: object) -> bool:
    try:
        pipe.send(report)
    except OSError:
        return False
    return True
