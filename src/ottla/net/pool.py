"""The connection pool: one open connection per key (a broker and a channel, or a bootstrap address).

A key and an address come in, an open connection goes out: the existing one if it is alive, belongs to that address
and its SASL session does not end soon, else a new one. It does not decide which broker to use.

A signal handler may interrupt any step here and wait for another thread that needs a connection. So the only lock is
that of a slot, held while connecting. Dicts and lists are changed by single method calls, which CPython does not
interrupt.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from ottla.config import Address, Security
from ottla.errors import ConnectFailed, ConnectionLost
from ottla.net.connection import Connection
from ottla.net.deadline import Deadline
from ottla.net.interrupt import Interrupt, client_closed

_log = logging.getLogger(__name__)
_SESSION_MARGIN_SECONDS = 10.0
"""How long before the end of its SASL session a connection is replaced; a quarter of a shorter session."""


@dataclass(slots=True)
class _Slot:
    """The connection of one key. The lock is held while connecting, so that two threads do not open two."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    connections: list[Connection] = field(default_factory=list)
    """At most one. The thread that removes it from the list owns it."""
    replace_at: float | None = None
    """When its SASL session is about to end, by `time.monotonic`."""


class Pool:
    """Connections by key. Thread-safe."""

    def __init__(self, *, security: Security, client_id: str) -> None:
        self._security = security
        self._client_id = client_id
        self._slots: dict[Hashable, _Slot] = {}
        self._retired: list[Connection] = []
        self._closed = False
        self._interrupt = Interrupt()

    def get(self, key: Hashable, address: Address, *, deadline: Deadline) -> Connection:
        """Return an open connection to `address` under `key`. Raises `NetworkError` if it cannot be opened."""
        slot = self._slot(key)
        try:
            # Inside the try block: Ctrl-C may come right after the lock was acquired.
            if not slot.lock.acquire(timeout=deadline.remaining()):
                reason = f"another thread was still connecting after {deadline.seconds:.1f} s"
                raise ConnectFailed(address, reason)
            connection = self._usable(slot, address)
            if connection is None:
                connection = self._open(address, deadline)
                self._fill(slot, connection)
                _log.debug("connected to %s", address)
            return connection
        finally:
            try:  # not in a helper function: Ctrl-C may come at the start of one
                slot.lock.release()
            except RuntimeError:
                pass  # this thread did not acquire it

    def adopt(self, key: Hashable, connection: Connection) -> None:
        """Put a connection under `key`, or retire it if there is one already."""
        try:
            slot = self._slot(key)
        except ConnectionLost:
            connection.close()
            raise
        try:
            # Without waiting for a thread that is connecting: it may have a later deadline than the caller.
            is_free = slot.lock.acquire(blocking=False) and all(other.closed for other in tuple(slot.connections))
            if is_free:
                self._fill(slot, connection)
            else:
                self.retire(connection)
        finally:
            try:  # not in a helper function: Ctrl-C may come at the start of one
                slot.lock.release()
            except RuntimeError:
                pass  # this thread did not acquire it

    def drop(self, key: Hashable, connection: Connection) -> bool:
        """Remove `connection` from `key` without closing it. Returns whether it was there."""
        slot = self._slots.get(key)  # keep the slot: another thread may be about to fill it
        return slot is not None and _removed(slot.connections, connection)

    def retire(self, connection: Connection) -> None:
        """Stop handing out a connection, and close it once its requests are answered."""
        self._retired.append(connection)
        for retired in tuple(self._retired):
            if (self._closed or not (retired.in_flight or retired.unsent_bytes)) and _removed(self._retired, retired):
                retired.close()

    def alive(self, key: Hashable) -> bool:
        """Whether there is an open connection under `key`."""
        slot = self._slots.get(key)
        return slot is not None and any(not connection.closed for connection in tuple(slot.connections))

    def release(self, belongs: Callable[[Hashable], bool]) -> None:
        """Close the connections under these keys, which are no longer used."""
        for key in filter(belongs, tuple(self._slots)):
            slot = self._slots.pop(key, None)
            for connection in tuple(slot.connections) if slot is not None else ():
                connection.close()

    def close(self) -> None:
        """Close every connection, including those that are being opened. None can be opened afterwards."""
        self._closed = True
        slots, self._slots = self._slots, {}
        self._interrupt.happen()
        for slot in tuple(slots.values()):
            for connection in tuple(slot.connections):
                connection.close()
        for connection in tuple(self._retired):
            connection.close()

    def _slot(self, key: Hashable) -> _Slot:
        if self._closed:
            raise client_closed()
        return self._slots.setdefault(key, _Slot())

    def _open(self, address: Address, deadline: Deadline) -> Connection:
        return Connection.open(
            address,
            security=self._security,
            client_id=self._client_id,
            deadline=deadline,
            interrupt=self._interrupt,
        )

    def _usable(self, slot: _Slot, address: Address) -> Connection | None:
        for connection in tuple(slot.connections):
            if not connection.in_flight:
                connection.pump()  # notices if the broker closed it while it was idle
            if connection.closed:
                continue
            is_expiring = slot.replace_at is not None and time.monotonic() >= slot.replace_at
            if not is_expiring and connection.address == address:
                return connection
            if _removed(slot.connections, connection):
                self.retire(connection)
        return None

    def _fill(self, slot: _Slot, connection: Connection) -> None:
        # The slot is not empty if a signal handler connected while this thread was connecting.
        before, slot.connections[:] = tuple(slot.connections), [connection]
        slot.replace_at = None
        if connection.expires_at is not None:
            left = connection.expires_at - time.monotonic()
            slot.replace_at = connection.expires_at - min(_SESSION_MARGIN_SECONDS, left / 4)
        for replaced in before:
            if not replaced.closed:
                self.retire(replaced)
        if self._closed:  # checked last: either this thread sees it here, or `close` sees the connection
            connection.close()
            raise client_closed()


def _removed(connections: list[Connection], connection: Connection) -> bool:
    """Remove a connection. Returns False if another thread has done so."""
    try:
        connections.remove(connection)
    except ValueError:
        return False
    return True
