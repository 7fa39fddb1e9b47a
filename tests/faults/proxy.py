"""A TCP proxy in front of each broker. A test changes its faults while it runs.

Clients connect to `Proxies.bootstrap` and stay behind the proxies: the ports in the brokers' answers are replaced,
which keeps the length of each answer. It reads whole frames, so that a fault can affect the answers to one API only,
and never changes a record.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass
from types import TracebackType

PRODUCE = 0
FETCH = 1
_HOST = "127.0.0.1"
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: closing sends RST."""


@dataclass(slots=True)
class Faults:
    """What happens to the answers of a broker. Change the fields at any time."""

    cut: float = 0.0
    """The chance that the connection is reset before an answer to `api` is complete: the broker has written, but the
    client does not learn of it."""
    api: int = PRODUCE
    """Whose answers are cut."""
    passes: int | None = 0
    """How many bytes of such an answer come through; None for a random part of it."""
    hole: bool = False
    """Answers are swallowed; the connection stays up."""
    delay: float = 0.0
    """Seconds by which each answer is late."""
    drip: float = 0.0
    """Bytes per second; 0 for no limit."""

    def heal(self) -> None:
        """Remove all faults."""
        self.cut, self.passes, self.hole, self.delay, self.drip = 0.0, 0, False, 0.0, 0.0


class Proxy:
    """The proxy of one broker."""

    def __init__(self, broker_port: int, *, seed: int) -> None:
        self.faults = Faults()
        self.cuts = 0
        """Answers that were cut off."""
        self.swallowed = 0
        """Answers that were swallowed."""
        self.dripped = 0
        """Answers that came byte by byte."""
        self.ports: dict[bytes, bytes] = {}
        """Addresses in answers, and what clients see instead."""
        self.chance = random.Random(seed)
        self._broker_port = broker_port
        self._listener = socket.create_server((_HOST, 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._relays: set[_Relay] = set()
        self._closing = False
        self._thread = threading.Thread(target=self._accept, name=f"proxy-{self.port}", daemon=True)

    def start(self) -> None:
        """Start accepting clients."""
        self._thread.start()

    def reset(self) -> None:
        """Close every connection with RST."""
        with self._lock:
            relays = list(self._relays)
        for relay in relays:
            relay.reset()

    def close(self) -> None:
        """Close everything."""
        self._closing = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._listener.close()
        self.reset()
        for relay in list(self._relays):
            relay.join()

    def remove(self, relay: _Relay) -> None:
        """Remove a connection that has ended."""
        with self._lock:
            self._relays.discard(relay)

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection((_HOST, self._broker_port), timeout=5)
            except OSError:
                client.close()
                continue
            broker.settimeout(None)
            relay = _Relay(self, client, broker)
            with self._lock:
                self._relays.add(relay)
            relay.start()


class _Relay:
    """One connection, with a thread for each direction."""

    def __init__(self, proxy: Proxy, client: socket.socket, broker: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._broker = broker
        self._open_requests: deque[int] = deque()
        """The APIs of unanswered requests: answers come in the order of the requests."""
        self._ended = threading.Event()
        self._to_broker = threading.Thread(target=self._run, args=(self._requests,), daemon=True)
        self._to_client = threading.Thread(target=self._run, args=(self._answers,), daemon=True)
        for end in (client, broker):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start(self) -> None:
        """Start forwarding."""
        self._to_client.start()
        self._to_broker.start()  # last: it waits for the other one at the end

    def reset(self) -> None:
        """Close both halves with RST. The threads notice and end."""
        # Of the client's connection only the reading half, or the client would see an orderly end before the RST. Of
        # the broker's both, since a frozen broker may keep a thread in `sendall`.
        for end, halves in ((self._client, socket.SHUT_RD), (self._broker, socket.SHUT_RDWR)):
            try:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                end.shutdown(halves)
            except OSError:
                pass
        self._ended.set()

    def join(self) -> None:
        """Wait for the threads."""
        self._to_broker.join(10)
        self._to_client.join(10)

    def _run(self, direction: object) -> None:
        assert callable(direction)
        try:
            direction()
        except OSError:
            pass
        self.reset()
        if threading.current_thread() is self._to_broker:
            self._to_client.join()
            self._client.close()
            self._broker.close()
            self._proxy.remove(self)

    def _requests(self) -> None:
        while (frame := _frame(self._client)) is not None:
            self._open_requests.append(int.from_bytes(frame[4:6], "big"))
            self._broker.sendall(frame)

    def _answers(self) -> None:
        while (frame := _frame(self._broker)) is not None:
            api = self._open_requests.popleft()
            for address, shown in self._proxy.ports.items():
                frame = frame.replace(address, shown)
            if not self._deliver(frame, api):
                return

    def _deliver(self, frame: bytes, api: int) -> bool:
        """Forward an answer, as far as the faults allow. Returns whether the connection stays open."""
        proxy, faults = self._proxy, self._proxy.faults
        if faults.delay:
            self._ended.wait(faults.delay)
        if faults.hole:
            proxy.swallowed += 1
        elif api == faults.api and faults.cut > proxy.chance.random():
            passes = proxy.chance.randrange(len(frame)) if faults.passes is None else faults.passes
            proxy.cuts += 1
            self._client.sendall(frame[:passes])
            return False
        elif faults.drip:
            proxy.dripped += 1
            self._drip(frame)
        else:
            self._client.sendall(frame)
        return True

    def _drip(self, frame: bytes) -> None:
        for number in range(len(frame)):
            rate = self._proxy.faults.drip
            self._client.sendall(frame[number : number + 1])
            if rate and self._ended.wait(1 / rate):
                return


class Proxies:
    """One proxy in front of each broker of a bootstrap list; a context manager."""

    def __init__(self, bootstrap: str, *, seed: int = 0) -> None:
        ports = [int(address.rpartition(":")[2]) for address in bootstrap.split(",")]
        self.proxies = [Proxy(port, seed=seed + number) for number, port in enumerate(ports)]
        shown = {_address(port): _address(proxy.port) for port, proxy in zip(ports, self.proxies, strict=True)}
        for proxy in self.proxies:
            proxy.ports = shown

    def __enter__(self) -> Proxies:
        for proxy in self.proxies:
            proxy.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for proxy in self.proxies:
            proxy.close()

    @property
    def bootstrap(self) -> str:
        """Where clients connect."""
        return ",".join(f"{_HOST}:{proxy.port}" for proxy in self.proxies)

    @property
    def cuts(self) -> int:
        """Answers that were cut off."""
        return sum(proxy.cuts for proxy in self.proxies)

    def heal(self) -> None:
        """Remove all faults everywhere."""
        for proxy in self.proxies:
            proxy.faults.heal()

    def wait_for_cuts(self, count: int, *, seconds: float = 60.0) -> None:
        """Wait until this many answers were cut off."""
        deadline = time.monotonic() + seconds
        while self.cuts < count:
            assert time.monotonic() < deadline, f"only {self.cuts} of {count} answers were cut in {seconds} s"
            time.sleep(0.005)


def _address(port: int) -> bytes:
    """An address as it is in answers: the end of the host's string, then 4 bytes."""
    return _HOST.encode() + port.to_bytes(4, "big")


def _frame(end: socket.socket) -> bytes | None:
    """The next frame with its size, or None if the connection ends."""
    size = _exactly(end, 4)
    body = None if size is None else _exactly(end, int.from_bytes(size, "big"))
    return None if size is None or body is None else size + body


def _exactly(end: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        more = end.recv(min(1 << 18, count - len(data)))
        if not more:
            return None
        data += more
    return bytes(data)
