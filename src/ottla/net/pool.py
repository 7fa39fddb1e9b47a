"""Open connections, by key, so that everybody who talks to the same broker for the same purpose shares one.

A key and an address come in, an open connection goes out: the one at hand if it is alive, belongs to that address
and its session does not end soon, else a new one. It decides nothing about which broker to ask.
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
    connection: Connection | None = None
    replace_at: float | None = None


class Pool:
    """Connections by key. Thread-safe."""

    def __init__(self, *, security: Security, client_id: str) -> None:
        self._security = security
        self._client_id = client_id
        self._lock = threading.RLock()  # a signal handler may come in the middle of a call of its thread
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
            free = slot.lock.acquire(blocking=False) and (slot.connection is None or slot.connection.closed)
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
        with self._lock:
            slot = self._slots.get(key)
            if slot is None or slot.connection is not connection:
                return False
            slot.connection = None  # the slot stays: another thread may be about to fill it
            return True

    def retire(self, connection: Connection) -> None:
        """Closes it once its requests are answered: nobody gets it from now on."""
        with self._lock:
            used = [one for one in (*self._retired, connection) if one.in_flight or one.unsent_bytes]
            busy = [] if self._closed else used
            idle = [one for one in (*self._retired, connection) if one not in busy]
            self._retired = busy
        for one in idle:
            one.close()

    def alive(self, key: Hashable) -> bool:
        """Whether there is an open connection under `key`."""
        with self._lock:
            slot = self._slots.get(key)
        return slot is not None and slot.connection is not None and not slot.connection.closed

    def release(self, belongs: Callable[[Hashable], bool]) -> None:
        """Closes the connections under these keys; nobody uses them any more."""
        with self._lock:
            keys = [key for key in self._slots if belongs(key)]
            slots = [self._slots.pop(key) for key in keys]
        for slot in slots:
            if slot.connection is not None:
                slot.connection.close()

    def close(self) -> None:
        """Closes every connection, also those that are just being opened; none is opened afterwards."""
        with self._lock:
            self._closed = True
            slots, self._slots = list(self._slots.values()), {}
            retired, self._retired = self._retired, []
        self._interrupt.happen()
        for connection in [*(slot.connection for slot in slots), *retired]:
            if connection is not None:
                connection.close()

    def _slot(self, key: Hashable) -> _Slot:
        with self._lock:
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
        connection = slot.connection
        if connection is None:
            return None
        if not connection.in_flight:
            connection.pump()  # notices that the broker closed it while it was idle
        if connection.closed:
            return None
        outdated = slot.replace_at is not None and time.monotonic() >= slot.replace_at
        if outdated or connection.address != address:
            self.retire(connection)
            return None
        return connection

    def _fill(self, slot: _Slot, connection: Connection) -> None:
        # There is one if a signal handler of this thread has connected while the thread was connecting.
        before, slot.connection = slot.connection, connection
        if before is not None and not before.closed:
            self.retire(before)
        slot.replace_at = None
        if connection.expires_at is not None:
            left = connection.expires_at - time.monotonic()
            slot.replace_at = connection.expires_at - min(_SESSION_MARGIN_SECONDS, left / 4)
        with self._lock:
            closed = self._closed
        if closed:
            connection.close()
            raise client_closed()
