"""A TCP proxy in front of each broker, whose faults a test changes while it runs.

Clients connect to `Proxies.bootstrap` and stay behind the proxies: the ports in the brokers' answers are replaced,
which keeps the length of each answer. It reads whole frames, so that a fault can meet the answers to one API only, and
never changes a record.
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
    """What happens to the answers of a broker; change the fields at any time."""

    cut: float = 0.0
    """The chance that the connection is reset instead of an answer to `api` being complete: the broker has written,
    nobody hears of it, or half of it."""
    api: int = PRODUCE
    """Whose answers are cut."""
    passes: int | None = 0
    """So many bytes of such an answer come through; None for a random part of it."""
    hole: bool = False
    """Answers are swallowed, the connection stays up."""
    delay: float = 0.0
    """Seconds by which each answer is late."""
    drip: float = 0.0
    """Bytes a second; 0 for no limit."""

    def heal(self) -> None:
        """No faults."""
        self.cut, self.passes, self.hole, self.delay, self.drip = 0.0, 0, False, 0.0, 0.0


class Proxy:
    """In front of one broker."""

    def __init__(self, broker_port: int, *, seed: int) -> None:
        self.faults = Faults()
        self.cuts = 0
        """Answers that were cut off."""
        self.swallowed = 0
        """Answers that fell into the hole."""
        self.dripped = 0
        """Answers that came in drips."""
        self.ports: dict[bytes, bytes] = {}
        """Addresses in answers, and what clients shall see instead."""
        self.chance = random.Random(seed)
        self._broker_port = broker_port
        self._listener = socket.create_server((_HOST, 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._relays: set[_Relay] = set()
        self._closing = False
        self._thread = threading.Thread(target=self._accept, name=f"proxy-{self.port}", daemon=True)

    def start(self) -> None:
        """Lets clients in."""
        self._thread.start()

    def reset(self) -> None:
        """Ends every connection with RST."""
        with self._lock:
            relays = list(self._relays)
        for relay in relays:
            relay.reset()

    def close(self) -> None:
        """Ends everything."""
        self._closing = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._listener.close()
        self.reset()
        for relay in list(self._relays):
            relay.join()

    def left(self, relay: _Relay) -> None:
        """The connection is over."""
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
        self._asked: deque[int] = deque()
        """The APIs of the requests that have no answer yet: answers come in the order of the requests."""
        self._ended = threading.Event()
        self._outward = threading.Thread(target=self._run, args=(self._requests,), daemon=True)
        self._homeward = threading.Thread(target=self._run, args=(self._answers,), daemon=True)
        for end in (client, broker):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start(self) -> None:
        """Begins to pass on."""
        self._homeward.start()
        self._outward.start()  # last: it waits for the other one in the end

    def reset(self) -> None:
        """Ends both halves with RST; the threads see it and end."""
        # Of the client only the reading half, or it would see an orderly end before the RST; towards the broker both,
        # since a frozen one may keep a thread in `sendall`.
        for end, halves in ((self._client, socket.SHUT_RD), (self._broker, socket.SHUT_RDWR)):
            try:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                end.shutdown(halves)
            except OSError:
                pass
        self._ended.set()

    def join(self) -> None:
        """Waits for the threads."""
        self._outward.join(10)
        self._homeward.join(10)

    def _run(self, direction: object) -> None:
        assert callable(direction)
        try:
            direction()
        except OSError:
            pass
        self.reset()
        if threading.current_thread() is self._outward:
            self._homeward.join()
            self._client.close()
            self._broker.close()
            self._proxy.left(self)

    def _requests(self) -> None:
        while (frame := _frame(self._client)) is not None:
            self._asked.append(int.from_bytes(frame[4:6], "big"))
            self._broker.sendall(frame)

    def _answers(self) -> None:
        while (frame := _frame(self._broker)) is not None:
            api = self._asked.popleft()
            for address, shown in self._proxy.ports.items():
                frame = frame.replace(address, shown)
            if not self._deliver(frame, api):
                return

    def _deliver(self, frame: bytes, api: int) -> bool:
        """Passes an answer on, as far as the faults allow; whether the connection goes on."""
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
    """One in front of each broker of a bootstrap list; a context manager."""

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
        """No faults anywhere."""
        for proxy in self.proxies:
            proxy.faults.heal()

    def wait_for_cuts(self, count: int, *, seconds: float = 60.0) -> None:
        """Waits until so many answers were cut off."""
        deadline = time.monotonic() + seconds
        while self.cuts < count:
            assert time.monotonic() < deadline, f"only {self.cuts} of {count} answers were cut in {seconds} s"
            time.sleep(0.005)


def _address(port: int) -> bytes:
    """As it is in answers: the end of the host's string, then 4 bytes."""
    return _HOST.encode() + port.to_bytes(4, "big")


def _frame(end: socket.socket) -> bytes | None:
    """The next frame with its size, or None when the connection ends."""
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
