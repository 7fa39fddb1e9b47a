"""Runs one life of a spool again and again, and kills it or fails its disk at each file operation in turn.

`python -m tests.produce.spool.kills DIRECTORY EVERY` with the shim preloaded prints one JSON object: what went wrong.
Each run is a forked child that reports through a pipe what was promised to it; what it leaves behind must keep the
promises.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ottla.errors import SpoolFailed, SpoolFull
from ottla.produce.spool import Store, Ticket

from .batches import entry, numbers

SHIM = ctypes.CDLL(None)
KILL, KILL_HALF_DONE, REFUSE, SHORTEN = 1, 2, 3, 4
MODES = {"error": (REFUSE, errno.EIO), "full": (REFUSE, errno.ENOSPC), "killed": (KILL, 0)}
HALF_A_WRITE = {"killed in the middle": (KILL_HALF_DONE, 0), "short, then full": (SHORTEN, errno.ENOSPC)}
WRITES = ("pwrite", "pwritev")
REFUSED = (SpoolFailed, SpoolFull)
WHOLE, PARTS = 6, {106, 107, 108}


@dataclass
class Promises:
    """What was promised to a child: numbers that are kept, that may be kept, and that must not come back."""

    kept: set[int] = field(default_factory=set)
    open: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)

    def note(self, line: str) -> None:
        action, _, number = line.partition(" ")
        n = int(number) if number else -1
        if action == "putting":
            self.open.add(n)
        elif action == "put":
            self.open.discard(n)
            self.kept.add(n)
        elif action == "finishing":
            self.kept.discard(n)
            self.open.add(n)
        elif action == "settled":
            self.gone |= self.open
            self.open.clear()


class Life:
    """One scripted run. A call that fails is made once more: the disk fails only once."""

    def __init__(self, path: Path, tell: Callable[[str], None]) -> None:
        self.path = path
        self.tell = tell
        self.tickets: dict[int, Ticket] = {}
        self.store = self.opened()

    def opened(self) -> Store:
        try:
            return Store.open(self.path, fsync=True, segment_bytes=4096)
        except SpoolFailed:
            return Store.open(self.path, fsync=True, segment_bytes=4096)

    def put(self, n: int, supersedes: int = 0) -> None:
        new = entry(n, size_bytes=700, supersedes=supersedes)
        self.tell(f"putting {n}")
        try:
            self.tickets[n] = self.store.put(new)
        except REFUSED:
            self.tickets[n] = self.store.put(new)
        self.tell(f"put {n}")

    def replace(self, old: int, new: int) -> None:
        """Exactly one of the two is there from now on; the new one once it is durable."""
        ticket = self.tickets.pop(old)
        self.tell(f"finishing {old}")
        self.put(new, supersedes=ticket.id)

    def cut(self, whole: int, *parts: int) -> None:
        """The whole is there, or all its parts."""
        ticket = self.tickets.pop(whole)
        new = [entry(n, size_bytes=300) for n in parts]
        self.tell(f"finishing {whole}")
        for n in parts:
            self.tell(f"putting {n}")
        try:
            tickets = self.store.put_parts(ticket, new)
        except REFUSED:
            tickets = self.store.put_parts(ticket, new)
        self.tickets.update(zip(parts, tickets, strict=True))
        for n in parts:
            self.tell(f"put {n}")

    def durable(self) -> None:
        try:
            self.store.durable()
        except SpoolFailed as exc:
            again = {t.id for t in exc.doubtful}
            for n, ticket in list(self.tickets.items()):
                if ticket.id in again:
                    self.put(n, supersedes=ticket.id)
            self.store.durable()

    def finish(self, *done: int) -> None:
        for n in done:
            self.tell(f"finishing {n}")
        self.store.done(self.tickets.pop(n) for n in done)

    def settle(self) -> None:
        self.store.settle()
        self.store.settle()  # a disk that failed once is tried again
        self.tell("settled")

    def close(self) -> None:
        try:
            self.store.close()
        except SpoolFailed:
            pass  # fsync at the end: there is no one left to put the entries again

    def run(self) -> None:
        for n in range(8):
            self.put(n)
        self.durable()
        self.finish(0, 1, 2, 5)
        self.settle()
        self.replace(3, 103)
        self.replace(4, 104)
        self.durable()
        self.cut(WHOLE, *sorted(PARTS))
        self.settle()
        for n in range(10, 70):  # few of many stay, in many segments: compaction moves them together
            self.put(n)
            if n % 8 == 0:
                self.durable()
            if n % 4:
                self.finish(n)
        self.settle()
        self.settle()
        self.close()
        self.store = self.opened()
        self.tickets = {s.header.base_sequence: s.ticket for s in self.store.inherited}
        self.put(80)
        self.finish(*(n for n in list(self.tickets) if n < 60))
        self.settle()
        self.close()


def run_child(path: Path, step: int, mode: str) -> tuple[Promises, int, str]:
    """Run one life in its own child. Returns what was promised, how it ended, and what was hit."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        status = 70
        try:
            fault, code = (MODES | HALF_A_WRITE)[mode]
            SHIM.shim_arm(str(path).encode(), step, fault, code)
            Life(path, lambda line: _say(writer, line)).run()
            _say(writer, f"hit {SHIM.shim_last().decode()}")
            status = 0 if SHIM.shim_seen() >= step else 3
        except BaseException as exc:
            _say(writer, f"failed {type(exc).__name__}: {exc}")
        finally:
            os._exit(status)
    os.close(writer)
    promises, hit = Promises(), ""
    with open(reader) as lines:
        for line in lines:
            if line.startswith(("hit", "failed")):
                hit = line.strip()
            else:
                promises.note(line.strip())
    _, ended = os.waitpid(child, 0)
    return promises, ended, hit


def _say(writer: int, line: str) -> None:
    os.write(writer, line.encode() + b"\n")


def broken(path: Path, promises: Promises, mode: str) -> str:
    """What the next owner finds contrary to the promises; empty if all is well."""
    with Store.open(path) as store:
        entries = numbers(store)
        ids = [s.ticket.id for s in store.inherited]
        places = [(s.ticket.place, s.ticket.id) for s in store.inherited]
        wrong = [str(d) for d in store.damage if d.reason != "cut short" or not mode.startswith("killed")]
        if len(store.damage) > 1 or wrong:
            return f"damage: {store.damage}"
        store.done([store.put(entry(99))])
        store.settle()
    if places != sorted(places) or len(set(ids)) != len(ids) or len(set(entries)) != len(entries):
        return f"order or doubles: {entries}"
    if lost := promises.kept - set(entries):
        return f"lost: {sorted(lost)}"
    if back := set(entries) - promises.kept - promises.open:
        return f"came back: {sorted(back)}"
    if {3, 103} <= set(entries) or {4, 104} <= set(entries):
        return f"an entry and what superseded it: {entries}"
    if PARTS & set(entries) and ({WHOLE, *PARTS} & set(entries)) != PARTS:
        return f"neither the whole nor all its parts: {entries}"
    return ""


def attempt(path: Path, step: int, mode: str) -> tuple[str, str] | None:
    """What went wrong when operation `step` failed, and which call that was; None if there are fewer operations."""
    shutil.rmtree(path, ignore_errors=True)
    promises, ended, hit = run_child(path, step, mode)
    if os.WIFEXITED(ended) and os.WEXITSTATUS(ended) == 3:
        return None
    killed = os.WIFSIGNALED(ended) and os.WTERMSIG(ended) == signal.SIGKILL
    problem = hit if hit.startswith("failed") else broken(path, promises, mode)
    if not problem and killed != mode.startswith("killed"):
        problem = f"ended with status {ended}"
    return problem, hit.removeprefix("hit ")


def main(path: Path, every: int) -> dict[str, object]:
    """Fail each operation with an error, and each, or one of `every` some, with the other faults."""
    wrong: list[str] = []
    points: Counter[str] = Counter()
    calls: dict[int, str] = {}

    def look(step: int, mode: str) -> bool:
        outcome = attempt(path, step, mode)
        if outcome is not None:
            points[mode] += 1
            if outcome[0]:
                wrong.append(f"{mode} at operation {step}: {outcome[0]}")
            if mode == "error":
                calls[step] = outcome[1]
        return outcome is not None

    any(not look(step, "error") for step in range(1, 10_000))
    for first, mode in enumerate(("killed", "full")):
        any(not look(step, mode) for step in range(1 + first % every, 10_000, every))
    for mode in HALF_A_WRITE:
        for step in [step for step, call in calls.items() if call in WRITES][::every]:
            look(step, mode)
    return {"points": points, "calls": Counter(calls.values()), "wrong": wrong}


if __name__ == "__main__":
    SHIM.shim_last.restype = ctypes.c_char_p
    print(json.dumps(main(Path(sys.argv[1]) / "s", int(sys.argv[2]))))
