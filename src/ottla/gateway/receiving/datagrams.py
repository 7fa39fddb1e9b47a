"""A thread that receives datagrams from one socket and hands them over many at a time.

It waits for the first, then takes what comes within the linger, or until its slots are full. It knows no format.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable

import numpy as np

from ottla.gateway.counts import Counts
from ottla.gateway.faults import log_fault
from ottla.gateway.receiving.arrivals import Arrivals, Handler, readonly
from ottla.gateway.receiving.many import Slots
from ottla.wire.kernels.framing import SPAN_FIELDS, TRUNCATED, WHOLE

LINGER = 0.01
_log = logging.getLogger(__name__)
_SLOT_MEMORY = 64 << 20
_MOST_SLOTS = 1024
_PAUSE_SECONDS = 0.1
_WRAP = 1 << 32


class DatagramReceiver:
    """Owns the socket and the thread."""

    def __init__(
        self,
        sock: socket.socket,
        handle: Handler,
        *,
        counts: Counts,
        most_bytes: int,
        linger: float = LINGER,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.socket = sock
        self._handle = handle
        self._counts = counts
        self._linger = linger
        self._clock = clock
        slot_bytes = -(-(most_bytes + 1) // 64) * 64
        self._most_bytes = most_bytes
        slots = max(2, min(_MOST_SLOTS, _SLOT_MEMORY // slot_bytes))
        self._slots = Slots(slots, slot_bytes, family=sock.family)
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_draining = self._is_closing = False
        self._is_last = False
        self._dropped = 0
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._poll.register(self._wakeup, select.POLLIN)
        name = f"ottla-gateway-{sock.type.name.lower()}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def path(self) -> str:
        """The file of a unix socket, "" for others."""
        return os.fsdecode(self.socket.getsockname()) if self.socket.family == socket.AF_UNIX else ""

    def start(self) -> None:
        """Start to receive."""
        self._thread.start()

    def refuse_senders(self) -> None:
        """Let senders fail once what is in the socket has been taken: more would be lost."""
        self._is_last = True

    def drain(self, timeout: float) -> bool:
        """Take what is in the socket and end. Returns whether that was done in time."""
        self._is_draining = True
        self._ring()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def close(self) -> None:
        """End at once."""
        self._is_closing = True
        self._ring()
        if self._thread.ident is not None:
            self._thread.join()
        self.socket.close()
        if self._wakeup >= 0:
            os.close(self._wakeup)
            self._wakeup = -1

    def _ring(self) -> None:
        if self._wakeup >= 0:
            os.eventfd_write(self._wakeup, 1)

    def _run(self) -> None:
        while not self._is_closing:
            is_draining = self._is_draining  # read first: what arrived before it was set is taken
            if not is_draining:
                self._poll.poll()
            try:
                count = self._gather()
            except OSError as error:  # of the network, such as a message that an earlier answer was refused
                self._counts.add("receive_errors")
                _log.warning("receiving on %s failed: %s", self.socket, error)
                time.sleep(_PAUSE_SECONDS)
                continue
            if count:
                self._try_to_hand_over(count)
            elif is_draining and self._is_last:
                self._is_last = False
                self._shut()  # then what came in between is taken
            elif is_draining:
                return

    def _shut(self) -> None:
        try:
            self.socket.shutdown(socket.SHUT_RD)
        except OSError:
            pass  # a socket of the network, whose senders notice nothing anyway

    def _gather(self) -> int:
        """Fill slots until the linger is over. Returns how many are filled."""
        filled = self._slots.receive(self.socket.fileno(), 0)
        if not filled:
            return 0
        until = time.monotonic() + self._linger
        # A call takes all that is there: the next one comes after the next arrival.
        while filled < self._slots.count and not self._is_draining:
            left = until - time.monotonic()
            if left <= 0 or not self._poll.poll(left * 1000):
                break
            filled += self._slots.receive(self.socket.fileno(), filled)
        return filled

    def _try_to_hand_over(self, count: int) -> None:
        """Hand over, or count that it failed: whatever it was, the next datagrams are received."""
        try:
            self._hand_over(count)
        except Exception as error:
            self._counts.add("handler_errors", count)
            log_fault(_log, error, f"{count} datagrams from {self.socket} could not be handled")

    def _hand_over(self, count: int) -> None:
        slots = self._slots
        sizes, cut = slots.sizes(count), slots.cut(count)
        spans = np.empty((count, SPAN_FIELDS), np.int64)
        spans[:, 0] = slots.starts[:count]
        spans[:, 1] = spans[:, 0] + np.minimum(sizes, self._most_bytes)
        spans[:, 2] = np.where(cut | (sizes > self._most_bytes), TRUNCATED, WHOLE)
        names, source_of = slots.sources(count)
        self._counts.add("received", count)
        self._counts.add("received_bytes", int(sizes.sum()))
        self._count_dropped(slots.overflows(count))
        self._handle(Arrivals(readonly(slots.data), readonly(spans), names, source_of, round(self._clock() * 1000)))

    def _count_dropped(self, overflows: int | None) -> None:
        """Count what the system dropped since the last time: it tells the sum, which may wrap around."""
        if overflows is not None and overflows != self._dropped:
            self._counts.add("dropped_by_system", (overflows - self._dropped) % _WRAP)
            self._dropped = overflows
