"""Requests started without blocking, against brokers that read late, slowly, partly or never."""

from __future__ import annotations

import hashlib
import random
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trustme

from ottla.config import Address, Security, Tls
from ottla.errors import ConnectionLost, RequestTimedOut
from ottla.net import Reply
from ottla.net.connection import Connection, Pending
from ottla.net.deadline import Deadline

from .servers import METADATA, Peer, Script, frame, serving
from .test_connection import broker, connect, in_a_child, silence

MEGABYTE = 1 << 20
MORE_THAN_SOCKETS_HOLD = 24 * MEGABYTE

Open = Callable[[Script], Connection]


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(params=["plaintext", "TLS"])
def opened(request: pytest.FixtureRequest, ca: trustme.CA, tmp_path: Path) -> Iterator[Open]:
    """Open a connection to a broker that runs a script, with and without TLS."""
    serve, open_one = _secure(ca, tmp_path) if request.param == "TLS" else (None, connect)
    servers, connections, gates = [], [], []

    def opens(script: Script) -> Connection:
        gates.extend([script] if isinstance(script, Gate) else [])
        servers.append(serving(broker(script), tls=serve))
        connections.append(open_one(servers[-1].__enter__()))
        return connections[-1]

    try:
        yield opens
    finally:
        for connection in connections:
            connection.close()
        for gate in gates:
            gate.opened.set()
        for server in servers:
            server.__exit__(None, None, None)


def _secure(ca: trustme.CA, folder: Path) -> tuple[ssl.SSLContext, Callable[[Address], Connection]]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    security = Security(tls=Tls(ca_file=folder / "ca.pem"))
    return context, lambda address: Connection.open(
        address, security=security, client_id="test", deadline=Deadline.after(5)
    )


def start(connection: Connection, body: bytes, seconds: float = 20.0) -> Pending:
    return connection.start(METADATA, 12, [body], deadline=Deadline.after(seconds))


def read_frame(peer: Peer) -> tuple[int, bytearray]:
    """Return the correlation id and all bytes of the next request."""
    data = bytearray(struct.unpack(">i", peer.read(4))[0])
    space = memoryview(data)
    while space:
        count = peer.sock.recv_into(space)
        if not count:
            raise ConnectionError("the client is gone")
        space = space[count:]
    return struct.unpack_from(">i", data, 4)[0], data


def digests(peer: Peer) -> None:
    """Answer every request with the hash of its body, which starts with the word BODY."""
    while True:
        correlation_id, data = read_frame(peer)
        peer.send(frame(correlation_id, hashlib.sha256(data[-_body_size(data) :]).digest(), tagged=True))


def _body_size(data: bytearray) -> int:
    return len(data) - data.index(b"BODY")


def make_body(chance: random.Random, size: int) -> bytes:
    return b"BODY" + chance.randbytes(size)


def is_answer_to(pending: Pending, body: bytes) -> bool:
    return bytes(pending.result()) == hashlib.sha256(body).digest()


def serve_until(connection: Connection, condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """The select loop of an owner."""
    deadline = Deadline.after(seconds)
    while not condition() and not connection.closed:
        assert not deadline.expired()
        wanted = select.POLLIN | (select.POLLOUT if connection.unsent_bytes else 0)
        poller = select.poll()
        poller.register(connection.fileno(), wanted)
        poller.poll(1000)
        connection.pump()


class Gate:
    """A broker that reads nothing before it is opened."""

    def __init__(self, then: Script) -> None:
        self.opened = threading.Event()
        self._then = then

    def __call__(self, peer: Peer) -> None:
        if self.opened.wait(20):
            self._then(peer)


def test_requests_queue_up_without_waiting_and_arrive_whole_and_in_order(opened: Open) -> None:
    chance = random.Random(1)
    bodies = [make_body(chance, size) for size in [*[MORE_THAN_SOCKETS_HOLD // 4] * 4, *[100] * 50, 3 * MEGABYTE]]
    seen: list[int] = []

    def record(peer: Peer) -> None:
        for _ in bodies:
            correlation_id, data = read_frame(peer)
            seen.append(correlation_id)
            peer.send(frame(correlation_id, hashlib.sha256(data[-_body_size(data) :]).digest(), tagged=True))
        silence(peer)

    gate = Gate(record)
    connection = opened(gate)
    started = time.monotonic()
    pendings = [start(connection, body) for body in bodies]
    assert connection.pump() == 0
    assert time.monotonic() - started < 3
    assert connection.unsent_bytes > MEGABYTE
    assert connection.in_flight == len(bodies)
    assert pendings[-1].sent is None
    gate.opened.set()
    serve_until(connection, lambda: all(pending.done for pending in pendings))
    assert connection.unsent_bytes == 0
    assert seen == [pending.correlation_id for pending in pendings] == sorted(seen)
    assert all(is_answer_to(pending, body) for pending, body in zip(pendings, bodies, strict=True))


def test_a_small_request_goes_out_at_once(opened: Open) -> None:
    connection = opened(digests)
    pending = start(connection, b"BODY")
    assert connection.unsent_bytes == 0
    assert pending.sent is not None
    assert connection.pump(Deadline.after(5)) == 1
    assert is_answer_to(pending, b"BODY")


def test_a_socket_that_takes_little_at_a_time_sends_everything(opened: Open) -> None:
    chance = random.Random(2)
    bodies = [make_body(chance, chance.choice([1, 5000, 70_000, 400_000])) for _ in range(40)]
    connection = opened(digests)
    connection._pipeline._transport._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    pendings = [start(connection, body) for body in bodies]
    assert connection.unsent_bytes
    serve_until(connection, lambda: all(pending.done for pending in pendings))
    assert all(is_answer_to(pending, body) for pending, body in zip(pendings, bodies, strict=True))


def test_waiting_for_a_started_request_sends_the_rest_of_it(opened: Open) -> None:
    gate = Gate(digests)
    connection = opened(gate)
    bodies = [make_body(random.Random(3), MORE_THAN_SOCKETS_HOLD // 2) for _ in range(2)]
    pendings = [start(connection, body) for body in bodies]
    assert connection.unsent_bytes
    gate.opened.set()
    assert is_answer_to(pendings[1], bodies[1])
    assert pendings[0].done


def test_pump_with_a_deadline_sends_as_well(opened: Open) -> None:
    gate = Gate(digests)
    connection = opened(gate)
    pending = start(connection, make_body(random.Random(4), MORE_THAN_SOCKETS_HOLD))
    assert connection.unsent_bytes
    gate.opened.set()
    assert connection.pump(Deadline.after(20)) == 1
    assert pending.error is None


def test_a_request_that_waits_lets_what_was_started_go_first(opened: Open) -> None:
    gate = Gate(digests)
    connection = opened(gate)
    first, second = make_body(random.Random(5), MORE_THAN_SOCKETS_HOLD), b"BODY second"
    begun = start(connection, first)
    with pytest.raises(RequestTimedOut, match=r"other requests were still being sent 0\.1 s on"):
        connection.submit(METADATA, 12, [second], deadline=Deadline.after(0.1))
    assert not connection.closed
    assert connection.in_flight == 1
    gate.opened.set()
    submitted = connection.submit(METADATA, 12, [second], deadline=Deadline.after(20))
    assert connection.unsent_bytes == 0
    assert is_answer_to(begun, first)
    assert is_answer_to(submitted, second)


def test_threads_that_start_and_threads_that_submit_do_not_mix_up_their_frames(opened: Open) -> None:
    connection = opened(digests)
    finished = threading.Event()

    def serves() -> None:
        serve_until(connection, finished.is_set, 60)

    def many(seed: int) -> int:
        chance = random.Random(seed)
        send = connection.start if seed % 2 else connection.submit
        bodies = [make_body(chance, chance.choice([10, 3000, 20_000, 300_000])) for _ in range(30)]
        pendings = [send(METADATA, 12, [body[:7], body[7:]], deadline=Deadline.after(60)) for body in bodies]
        return sum(is_answer_to(pending, body) for pending, body in zip(pendings, bodies, strict=True))

    with ThreadPoolExecutor(7) as pool:
        server = pool.submit(serves)
        assert list(pool.map(many, range(6))) == [30] * 6
        finished.set()
        # The loop may be waiting for events: a last response wakes it.
        start(connection, b"BODY")
        server.result(20)


def test_a_deadline_that_passes_before_all_is_sent_ends_the_connection(opened: Open) -> None:
    connection = opened(Gate(silence))
    patient = start(connection, bytes(MORE_THAN_SOCKETS_HOLD))
    hasty = start(connection, b"small", 0.2)
    assert connection.pump(Deadline.after(10)) == 2
    assert connection.closed
    with pytest.raises(RequestTimedOut, match=r"Metadata v12 was not taken by the broker within 0\.2 s"):
        hasty.result()
    with pytest.raises(ConnectionLost, match="was not taken by the broker"):
        patient.result()
    assert connection.unsent_bytes == 0
    assert connection.fileno() == -1
    with pytest.raises(ConnectionLost):
        start(connection, b"more")


def resets_in_the_middle(peer: Peer) -> None:
    peer.read(MEGABYTE)
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def ends_in_the_middle(peer: Peer) -> None:
    peer.read(MEGABYTE)


@pytest.mark.parametrize("script", [resets_in_the_middle, ends_in_the_middle])
def test_a_broker_that_closes_in_the_middle_of_a_frame_fails_what_was_started(opened: Open, script: Script) -> None:
    connection = opened(script)
    called: list[Pending] = []
    for reply in (Reply.DUE, Reply.DUE, Reply.NONE):
        body = [bytes(MORE_THAN_SOCKETS_HOLD)]
        try:
            connection.start(METADATA, 12, body, deadline=Deadline.after(20), reply=reply, answered=called.append)
        except ConnectionLost:
            break  # noticed already
    serve_until(connection, lambda: connection.closed)
    assert called
    assert all(isinstance(pending.error, ConnectionLost) for pending in called)
    assert connection.unsent_bytes == connection.in_flight == 0


def test_a_request_without_answer_is_done_when_the_socket_has_taken_it(opened: Open) -> None:
    gate = Gate(silence)
    connection = opened(gate)
    called: list[Pending] = []

    def post(body: bytes) -> Pending:
        deadline = Deadline.after(20)
        return connection.start(0, 9, [body], deadline=deadline, reply=Reply.NONE, answered=called.append)

    small = post(b"small")
    assert small.done
    assert bytes(small.result()) == b""
    large = post(bytes(MORE_THAN_SOCKETS_HOLD))
    assert not large.done
    assert connection.in_flight == 0
    assert called == [small]
    gate.opened.set()
    assert connection.pump(Deadline.after(20)) == 1
    assert called == [small, large]
    assert large.error is None


def test_a_request_without_answer_that_is_not_taken_in_time_fails(opened: Open) -> None:
    connection = opened(Gate(silence))
    deadline = Deadline.after(0.2)
    post = connection.start(0, 9, [bytes(MORE_THAN_SOCKETS_HOLD)], deadline=deadline, reply=Reply.NONE)
    assert connection.pump(Deadline.after(10)) == 1
    assert isinstance(post.error, RequestTimedOut)
    assert connection.closed


def test_an_unanswered_request_between_answered_ones_keeps_the_order() -> None:
    def skips_one(peer: Peer) -> None:
        read_frame(peer)
        digests(peer)

    with serving(broker(skips_one)) as address, connect(address) as connection:
        connection.start(METADATA, 12, [b"BODY 0"], deadline=Deadline.after(5), reply=Reply.NONE)
        pendings = [start(connection, b"BODY %d" % number) for number in range(3)]
        assert all(is_answer_to(pending, b"BODY %d" % number) for number, pending in enumerate(pendings))


@pytest.mark.parametrize("reply", list(Reply))
def test_an_answer_may_start_the_next_request(reply: Reply) -> None:
    done: list[int] = []

    def reads(peer: Peer) -> None:
        digests(peer) if reply is Reply.DUE else silence(peer)

    with serving(broker(reads)) as address, connect(address) as connection:

        def follow(pending: Pending) -> None:
            done.append(pending.correlation_id)
            if len(done) < 50:
                begin()

        def begin() -> None:
            connection.start(METADATA, 12, [b"BODY"], deadline=Deadline.after(10), reply=reply, answered=follow)

        begin()
        serve_until(connection, lambda: len(done) == 50)
        assert done == list(range(1, 51))


def test_closing_fails_what_is_not_sent_yet(opened: Open) -> None:
    connection = opened(Gate(silence))
    pending = start(connection, bytes(MORE_THAN_SOCKETS_HOLD))
    connection.close()
    assert isinstance(pending.error, ConnectionLost)
    assert connection.unsent_bytes == 0
    assert connection.fileno() == -1


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_cannot_start_anything() -> None:
    with serving(broker(digests)) as address, connect(address) as connection:
        assert in_a_child(lambda: print(start(connection, b"BODY child"))) == 0
        assert is_answer_to(start(connection, b"BODY parent"), b"BODY parent")


def test_an_interrupt_in_the_middle_of_sending_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(broker(silence)) as address, connect(address) as connection:
        pending = start(connection, b"first")

        def interrupted(views: list[memoryview]) -> int:
            raise KeyboardInterrupt

        monkeypatch.setattr(connection._pipeline._transport, "send", interrupted)
        with pytest.raises(KeyboardInterrupt):
            start(connection, b"second")
        assert connection.closed
        assert isinstance(pending.error, ConnectionLost)
