"""Open connections, by key, so that everybody who talks to the same broker for the same purpose shares one.

A key and an address come in, an open connection goes out: the one at hand if it is alive, belongs to that address
and its session does not end soon, else a new one. It decides nothing about which broker to ask.

A signal handler may come in the middle of any step here, and wait for another thread that needs a connection. So there
is no lock but that of a slot while connecting: dicts and lists are changed by single calls of their methods, which the
interpreter does not interrupt.
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
"""A SASL session that ends sooner is not used for a new request, if it ever was longer than twice that."""


@dataclass(slots=True)
class _Slot:
    """One key's connection. The lock is held while opening, so that two threads do not open two."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    connections: list[Connection] = field(default_factory=list)
    """One at most. Who takes it out has it."""
    replace_at: float | None = None


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
        """An open connection to `address` under `key`."""
        slot = self._slot(key)
        try:
            # Inside, because Ctrl-C may come when it is acquired and nobody has heard of it.
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
            try:  # in place: Ctrl-C may come at the beginning of a function of ours
                slot.lock.release()
            except RuntimeError:
                pass  # this thread did not get it

    def adopt(self, key: Hashable, connection: Connection) -> None:
        """Puts a connection under `key`, or retires it if there is one already."""
        try:
            slot = self._slot(key)
        except ConnectionLost:
            connection.close()
            raise
        try:
            # Not waiting for a thread that is connecting there at the moment: it may have more time than the caller.
            free = slot.lock.acquire(blocking=False) and all(there.closed for there in tuple(slot.connections))
            if free:
                self._fill(slot, connection)
            else:
                self.retire(connection)
        finally:
            try:  # in place: Ctrl-C may come at the beginning of a function of ours
                slot.lock.release()
            except RuntimeError:
                pass  # this thread did not get it

    def drop(self, key: Hashable, connection: Connection) -> bool:
        """Takes `connection` from under `key` without closing it; whether it was there."""
        slot = self._slots.get(key)  # the slot stays: another thread may be about to fill it
        return slot is not None and _removed(slot.connections, connection)

    def retire(self, connection: Connection) -> None:
        """Closes it once its requests are answered: nobody gets it from now on."""
        self._retired.append(connection)
        for retired in tuple(self._retired):
            if (self._closed or not (retired.in_flight or retired.unsent_bytes)) and _removed(self._retired, retired):
                retired.close()

    def alive(self, key: Hashable) -> bool:
        """Whether there is an open connection under `key`."""
        slot = self._slots.get(key)
        return slot is not None and any(not connection.closed for connection in tuple(slot.connections))

    def release(self, belongs: Callable[[Hashable], bool]) -> None:
        """Closes the connections under these keys; nobody uses them any more."""
        for key in filter(belongs, tuple(self._slots)):
            slot = self._slots.pop(key, None)
            for connection in tuple(slot.connections) if slot is not None else ():
                connection.close()

    def close(self) -> None:
        """Closes every connection, also those that are just being opened; none is opened afterwards."""
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
                connection.pump()  # notices that the broker closed it while it was idle
            if connection.closed:
                continue
            outdated = slot.replace_at is not None and time.monotonic() >= slot.replace_at
            if not outdated and connection.address == address:
                return connection
            if _removed(slot.connections, connection):
                self.retire(connection)
        return None

    def _fill(self, slot: _Slot, connection: Connection) -> None:
        # There is one if a signal handler of this thread has connected while the thread was connecting.
        before, slot.connections[:] = tuple(slot.connections), [connection]
        slot.replace_at = None
        if connection.expires_at is not None:
            left = connection.expires_at - time.monotonic()
            slot.replace_at = connection.expires_at - min(_SESSION_MARGIN_SECONDS, left / 4)
        for replaced in before:
            if not replaced.closed:
                self.retire(replaced)
        if self._closed:  # looked at afterwards: either it is seen here, or `close` sees the connection
            connection.close()
            raise client_closed()


def _removed(connections: list[Connection], connection: Connection) -> bool:
    """Whether this call has taken it out."""
    try:
        connections.remove(connection)
    except ValueError:
        return False
    return True
