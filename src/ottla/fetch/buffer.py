"""The bounded buffer between the fetching loop and the reader.

The loop puts fetched pieces into the buffer and reserves memory before it fetches more. A reader takes them out in the
order in which they came, and says when it no longer needs one. It is thread-safe and does no I/O.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from ottla.fetch.cursor import Cursor, Failed, Item, Piece, ResponseMemory
from ottla.net.deadline import Deadline


class FetchBuffer:
    """Holds at most about `limit_bytes`. `room` is called when there is room again after `reserve` refused."""

    def __init__(self, limit_bytes: int, *, room: Callable[[], None]) -> None:
        self._limit = self._full_limit = limit_bytes
        self._on_room = room
        self._items: deque[Item] = deque()
        # Not a Condition: Ctrl-C in the middle of its wait can leave its lock in a wrong state, and raise RuntimeError.
        self._lock = threading.RLock()
        self._wakeup = threading.Lock()
        """Free if there may be something new. One reader at a time waits for it."""
        self._taken: list[Piece] = []
        """The pieces that the reader has taken and not used up."""
        self._reserved = 0
        self._used = 0
        """Reserved bytes, and the memory of every response with a piece here or with the reader."""
        self._wants_room = False
        self._rung = False

    @property
    def used_bytes(self) -> int:
        """The memory in use: in the buffer, with the reader, or reserved for requests in flight."""
        return self._used

    def shrink(self, limit_bytes: int) -> None:
        """Lower the limit until `restore`."""
        self._limit = min(self._full_limit, limit_bytes)

    def restore(self) -> None:
        """Return to the original limit."""
        with self._lock:
            self._limit = self._full_limit
            self._wants_room = False
        self._on_room()

    def reserve(self, size_bytes: int, *, least: int) -> int:
        """Reserve up to `size_bytes` for a request, 0 if there is less room than `least`.

        Returns how much was reserved. The caller gives it back with `settle`.
        """
        with self._lock:
            free = self._limit - self._used
            if free < min(least, size_bytes) and self._used:
                self._wants_room = True
                return 0
            reserved = max(min(size_bytes, free), min(least, size_bytes))
            self._reserved += reserved
            self._used += reserved
            return reserved

    def settle(self, reserved: int, memory: ResponseMemory | None) -> None:
        """Replace a reservation by the memory of its response, or by nothing if no piece of it is kept."""
        kept = memory.size_bytes if memory is not None and memory.pieces else 0
        with self._lock:
            self._reserved -= reserved
            self._used += kept - reserved
            if kept < reserved and self._wants_room:
                self._wants_room = False
                self._on_room()

    def put(self, item: Item) -> None:
        """Append an item and wake the reader."""
        with self._lock:
            self._items.append(item)
        self._wake()

    def take(self, deadline: Deadline | None = None) -> Item | None:
        """Take the first item, waiting until the deadline. None if none came, or `ring` was called.

        Without a deadline it does not wait.
        """
        while True:
            with self._lock:
                item, rung = self._first(), self._rung
                if rung:
                    self._rung = False
                if item is not None or rung:
                    return item
            if deadline is None or deadline.expired():
                return None
            self.wait(deadline)

    def wait(self, deadline: Deadline) -> None:
        """Block until there may be something new. Only one reader at a time."""
        self._wakeup.acquire(timeout=deadline.remaining())

    def following(self, piece: Piece, most: int) -> list[Piece]:
        """Return the pieces of the same response that `take` would return after `piece`, at most `most`."""
        pieces: list[Piece] = []
        with self._lock:
            for item in self._items:
                if not isinstance(item, Piece) or item.memory is not piece.memory or len(pieces) >= most:
                    break
                if item.cursor.open and not item.cursor.paused:
                    pieces.append(item)
        return pieces

    def is_ready(self) -> bool:
        """Whether `take` would return at once."""
        with self._lock:
            return self._rung or any(item.cursor.open and not item.cursor.paused for item in self._items)

    def ring(self) -> None:
        """Wake a reader that waits, without an item. Signal handlers may call it."""
        self._rung = True
        self._wake()

    def used_up(self, piece: Piece) -> None:
        """Release a piece that the reader has taken: it no longer needs its bytes."""
        with self._lock:
            self._taken = [other for other in self._taken if other is not piece]
            self._drop(piece)

    def abandon(self) -> None:
        """Forget the pieces that an interrupted reader has taken. `recount` must follow."""
        self._taken = []

    def recount(self) -> None:
        """Compute the memory in use again from what is here, with the reader, or in flight. Between two turns."""
        with self._lock:
            pieces = {id(item): item for item in (*self._items, *self._taken) if isinstance(item, Piece)}
            memories = {id(piece.memory): piece.memory for piece in pieces.values()}
            for memory in memories.values():
                memory.pieces = 0
            for piece in pieces.values():
                piece.memory.pieces += 1
            self._used = self._reserved + sum(memory.size_bytes for memory in memories.values())
            self._wants_room = False
        self._on_room()

    def recover(self) -> None:
        """Repair the state after the loop was interrupted.

        Nothing is in flight, and each cursor continues behind its last piece in the buffer.
        """
        with self._lock:
            self._reserved = 0
            for item in self._items:
                item.cursor.checkpoint = item.checkpoint()
        self.recount()

    def discard(self, cursors: Iterable[Cursor]) -> None:
        """Drop all pieces of these cursors. Failures stay: they would not be reported again."""
        discarded = frozenset(cursors)
        with self._lock:
            kept: deque[Item] = deque()
            for item in self._items:
                if item.cursor not in discarded or isinstance(item, Failed):
                    kept.append(item)
                    continue
                self._drop(item)
            self._items = kept

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            while self._items:
                self._drop(self._items.popleft())

    def _wake(self) -> None:
        try:
            self._wakeup.release()
        except RuntimeError:
            pass  # it is free: the next reader does not wait

    def _first(self) -> Item | None:
        """Take the first item of an open cursor, skipping paused ones."""
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
            # Before the item leaves the queue: after an interrupt it counts twice or not at all, and both are safe.
            item.cursor.checkpoint = item.checkpoint()
            if isinstance(item, Piece):
                self._taken.append(item)
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
                    self._on_room()
