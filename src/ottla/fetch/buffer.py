"""Where fetched pieces wait for whoever reads them, and the memory that they may take.

A loop puts pieces on the buffer and asks before it fetches more; a reader takes them off, in the order in which they
came, and says when it has used one up. Threads may share it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from ottla.fetch.cursor import Cursor, Failed, Piece, ResponseMemory
from ottla.net.deadline import Deadline

Item = Piece | Failed


class FetchBuffer:
    """Holds at most about `limit_bytes`; `room` is called when there is some again."""

    def __init__(self, limit_bytes: int, *, room: Callable[[], None]) -> None:
        self._limit = self._widest = limit_bytes
        self._room = room
        self._items: deque[Item] = deque()
        # Not a Condition: Ctrl-C in the midst of its wait leaves its lock in a wrong state, and a RuntimeError behind.
        self._lock = threading.RLock()
        self._wakeup = threading.Lock()
        """Free when there is something new; one reader at a time waits for it."""
        self._out: list[Piece] = []
        """Taken, and not used up."""
        self._reserved = 0
        self._used = 0
        """What is reserved, and all memorys of which something is here or with the reader."""
        self._wants_room = False
        self._rung = False

    @property
    def used_bytes(self) -> int:
        """What is on the buffer, in use, or on its way."""
        return self._used

    def narrow(self, limit_bytes: int) -> None:
        """Holds less than it could, until `widen`."""
        self._limit = min(self._widest, limit_bytes)

    def widen(self) -> None:
        """Holds as much as it was made for."""
        with self._lock:
            self._limit = self._widest
            self._wants_room = False
        self._room()

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
            self._reserved += taken
            self._used += taken
            return taken

    def settle(self, reserved: int, memory: ResponseMemory | None) -> None:
        """What was reserved has come: it takes what the memory takes, if any piece of that was kept."""
        kept = memory.size_bytes if memory is not None and memory.pieces else 0
        with self._lock:
            self._reserved -= reserved
            self._used += kept - reserved
            if kept < reserved and self._wants_room:
                self._wants_room = False
                self._room()

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
            if deadline is None or deadline.expired():
                return None
            self.wait(deadline)

    def wait(self, deadline: Deadline) -> None:
        """Until there may be something new. One reader at a time."""
        self._wakeup.acquire(timeout=deadline.remaining())

    def following(self, piece: Piece, most: int) -> list[Piece]:
        """The pieces of the same answer that would be taken next; `piece` was taken last."""
        found: list[Piece] = []
        with self._lock:
            for item in self._items:
                if not isinstance(item, Piece) or item.memory is not piece.memory or len(found) >= most:
                    break
                if item.cursor.open and not item.cursor.paused:
                    found.append(item)
        return found

    def is_ready(self) -> bool:
        """Whether `take` would return at once."""
        with self._lock:
            return self._rung or any(item.cursor.open and not item.cursor.paused for item in self._items)

    def ring(self) -> None:
        """A reader that waits looks at other things. Signal handlers may ring."""
        self._rung = True
        self._wake()

    def used_up(self, piece: Piece) -> None:
        """The reader has no more use for the bytes of the piece."""
        with self._lock:
            self._out = [other for other in self._out if other is not piece]
            self._drop(piece)

    def abandon(self) -> None:
        """The reader was interrupted, and has none of the pieces that it took; `recount` follows."""
        self._out = []

    def recount(self) -> None:
        """What is used is what is here, with the reader, or on its way. Between two turns of the loop."""
        with self._lock:
            pieces = {id(item): item for item in (*self._items, *self._out) if isinstance(item, Piece)}
            memorys = {id(piece.memory): piece.memory for piece in pieces.values()}
            for memory in memorys.values():
                memory.pieces = 0
            for piece in pieces.values():
                piece.memory.pieces += 1
            self._used = self._reserved + sum(memory.size_bytes for memory in memorys.values())
            self._wants_room = False
        self._room()

    def recover(self) -> None:
        """The loop was interrupted: nothing is on its way any more, and cursors go on behind what is here."""
        with self._lock:
            self._reserved = 0
            for item in self._items:
                item.cursor.checkpoint = item.checkpoint()
        self.recount()

    def discard(self, cursors: Iterable[Cursor]) -> None:
        """Takes all pieces of these off. That one failed stays: it would not be told again."""
        gone = frozenset(cursors)
        with self._lock:
            kept: deque[Item] = deque()
            for item in self._items:
                if item.cursor not in gone or isinstance(item, Failed):
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
            self._wakeup.release()
        except RuntimeError:
            pass  # it is free: whoever comes next does not wait

    def _first(self) -> Item | None:
        """The first item that counts; those of paused cursors stay."""
        number = 0
        while number < len(self._items):
            item = self._items[number]
            if item.cursor.open and item.cursor.paused:
                number += 1
                continue
            if not item.cursor.open:
                del self._items[number]
                self._drop(item)
                continue
            item.cursor.checkpoint = item.checkpoint()  # first this: after an interrupt the item counts twice, or not at all
            if isinstance(item, Piece):
                self._out.append(item)
            del self._items[number]
            return item
        return None

    def _drop(self, item: Item) -> None:
        if isinstance(item, Piece):
            item.memory.pieces -= 1
            if item.memory.pieces == 0:
                self._used -= item.memory.size_bytes
                if self._wants_room:
                    self._wants_room = False
                    self._room()
