"""Where fetched pieces wait for whoever reads them, and the memory that they may take.

A loop puts pieces on the shelf and asks before it fetches more; a reader takes them off, in the order in which they
came, and says when it has used one up. Threads may share it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from ottla.fetch.course import Course, Failed, Parcel, Piece
from ottla.net.deadline import Deadline

Item = Piece | Failed


class Shelf:
    """Holds at most about `limit_bytes`; `room` is called when there is some again."""

    def __init__(self, limit_bytes: int, *, room: Callable[[], None]) -> None:
        self._limit = limit_bytes
        self._room = room
        self._items: deque[Item] = deque()
        # Not a Condition: Ctrl-C in the midst of its wait leaves its lock in a wrong state, and a RuntimeError behind.
        self._lock = threading.RLock()
        self._bell = threading.Lock()
        """Free when there is something new; one reader at a time waits for it."""
        self._used = 0
        self._wants_room = False
        self._rung = False

    @property
    def used_bytes(self) -> int:
        """What is on the shelf, in use, or on its way."""
        return self._used

    def reserve(self, wanted: int, *, least: int) -> int:
        """How many bytes may be fetched now: up to `wanted`, 0 when there is less room than `least`.

        Whoever got any gives them back through `settle`.
        """
        with self._lock:
            free = self._limit - self._used
            if free < min(least, wanted) and self._used:
                self._wants_room = True
                return 0
            taken = max(min(wanted, free), min(least, wanted))
            self._used += taken
            return taken

    def settle(self, reserved: int, parcel: Parcel | None) -> None:
        """What was reserved has come: it takes what the parcel takes, if any piece of that was kept."""
        kept = parcel.size_bytes if parcel is not None and parcel.pieces else 0
        self._add(kept - reserved)

    def put(self, item: Item) -> None:
        """At the end."""
        with self._lock:
            self._items.append(item)
        self._wake()

    def take(self, deadline: Deadline | None = None) -> Item | None:
        """The first item, after waiting for one until the deadline; None when none came, or somebody rang.

        Without a deadline it does not wait.
        """
        while True:
            with self._lock:
                found, rung = self._first(), self._rung
                if rung:
                    self._rung = False
                if found is not None or rung:
                    return found
            if deadline is None or not (left := deadline.remaining()):
                return None
            self._bell.acquire(timeout=left)

    def ring(self) -> None:
        """A reader that waits looks at other things. Signal handlers may ring."""
        self._rung = True
        self._wake()

    def used_up(self, piece: Piece) -> None:
        """The reader has no more use for the bytes of the piece."""
        with self._lock:
            self._drop(piece)

    def discard(self, course: Course) -> None:
        """Takes all pieces of a course off. That it failed stays: it would not be told again."""
        with self._lock:
            kept: deque[Item] = deque()
            for item in self._items:
                if item.course is not course or isinstance(item, Failed):
                    kept.append(item)
                    continue
                self._drop(item)
            self._items = kept

    def clear(self) -> None:
        """Nothing is left."""
        with self._lock:
            while self._items:
                self._drop(self._items.popleft())

    def _wake(self) -> None:
        try:
            self._bell.release()
        except RuntimeError:
            pass  # it is free: whoever comes next does not wait

    def _first(self) -> Item | None:
        """The first item that counts; those of paused courses stay."""
        paused: list[Item] = []
        found: Item | None = None
        while self._items and found is None:
            item = self._items.popleft()
            if not item.course.open:
                self._drop(item)
            elif item.course.paused:
                paused.append(item)
            else:
                found = item
        self._items.extendleft(reversed(paused))
        return found

    def _drop(self, item: Item) -> None:
        if isinstance(item, Piece):
            item.parcel.pieces -= 1
            if item.parcel.pieces == 0:
                self._used -= item.parcel.size_bytes
                if self._wants_room:
                    self._wants_room = False
                    self._room()

    def _add(self, size_bytes: int) -> None:
        with self._lock:
            self._used += size_bytes
            if size_bytes < 0 and self._wants_room:
                self._wants_room = False
                self._room()
