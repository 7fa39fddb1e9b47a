"""Receivers take what real sockets bring: in order, whole, from many senders, and they end without losing anything."""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import trustme
from tests.waiting import eventually

from ottla.errors import ConfigError
from ottla.gateway.counts import Counts
from ottla.gateway.receiving import sockets
from ottla.gateway.receiving.cutting import Framing, SyslogCutting
from ottla.gateway.receiving.datagrams import DatagramReceiver
from ottla.gateway.receiving.streams import StreamLimits, StreamReceiver
from ottla.gateway.tls import ServerTls
from ottla.wire.kernels.framing import CUT, DESYNCHRONISED, TRUNCATED, WHOLE

from .recording import Recording


class _Stand:
    """A receiver on a socket, with what it received and counted."""

    def __init__(self) -> None:
        self.recording = Recording()
        self.counts = Counts()
        self._open = ExitStack()

    def datagrams(self, sock: socket.socket, **settings: object) -> DatagramReceiver:
        given = {"most_bytes": 1000} | settings
        receiver = DatagramReceiver(sock, self.recording, counts=self.counts, **given)  # type: ignore[arg-type]
        self._open.enter_context(closing(receiver))
        receiver.start()
        return receiver

    def stream(self, sock: socket.socket | None = None, **settings: object) -> StreamReceiver:
        cutter = SyslogCutting(Framing.DETECT, most_bytes=1000)
        sock = sock or sockets.stream_listener("127.0.0.2", 0)
        receiver = StreamReceiver(sock, self.recording, cutter=cutter, counts=self.counts, **settings)  # type: ignore[arg-type]
        self._open.enter_context(closing(receiver))
        receiver.start()
        return receiver

    def close(self) -> None:
        self.recording.gate.set()
        self._open.close()


@pytest.fixture
def stand() -> Iterator[_Stand]:
    with closing(_Stand()) as made:
        yield made


def _connected(receiver: StreamReceiver) -> socket.socket:
    return socket.create_connection(receiver.socket.getsockname()[:2], timeout=30)


def _udp() -> socket.socket:
    return sockets.udp_socket("127.0.0.1", 0)


def _has(stand: _Stand, *contents: bytes) -> Callable[[], bool]:
    return lambda: sorted(stand.recording.contents) == sorted(contents)


def test_datagrams_arrive_whole_in_order_and_with_their_sender(stand: _Stand) -> None:
    receiver = stand.datagrams(_udp())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for number in range(300):
            sender.sendto(b"%d" % number + b"x" * (number % 50), receiver.socket.getsockname())
    expected = [(b"%d" % number + b"x" * (number % 50), WHOLE, "127.0.0.1") for number in range(300)]
    eventually(lambda: stand.recording.messages == expected, "all datagrams")
    assert stand.counts.get("received") == 300
    assert stand.recording.calls < 300, "they are handed over together"


def test_senders_are_told_apart_also_by_ipv6(stand: _Stand) -> None:
    receiver = stand.datagrams(sockets.udp_socket("::", 0))
    port = receiver.socket.getsockname()[1]
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_INET, "127.0.0.2")):
        with socket.socket(family, socket.SOCK_DGRAM) as sender:
            sender.bind((host, 0))
            sender.sendto(host.encode(), (host if family == socket.AF_INET6 else "127.0.0.1", port))
    expected = {(host.encode(), WHOLE, host) for host in ("127.0.0.1", "::1", "127.0.0.2")}
    eventually(lambda: set(stand.recording.messages) == expected, lambda: str(stand.recording.messages))


def test_a_datagram_that_is_too_large_is_cut_and_marked(stand: _Stand) -> None:
    receiver = stand.datagrams(_udp(), most_bytes=100)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for size in (99, 100, 101, 5000, 0, 1):
            sender.sendto(b"x" * size, receiver.socket.getsockname())
    expected = [(min(size, 100), TRUNCATED if size > 100 else WHOLE) for size in (99, 100, 101, 5000, 0, 1)]
    eventually(lambda: [(len(text), mark) for text, mark, _ in stand.recording.messages] == expected, "all six")


def test_what_the_system_drops_is_counted_exactly(stand: _Stand) -> None:
    receiver = stand.datagrams(sockets.udp_socket("127.0.0.1", 0, receive_bytes=1 << 12), linger=0.0)
    stand.recording.gate.clear()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(500):
            sender.sendto(b"x" * 500, receiver.socket.getsockname())
        stand.recording.gate.set()
        eventually(lambda: not select.select([receiver.socket], [], [], 0)[0], "what is in the buffer")
        sender.sendto(b"last", receiver.socket.getsockname())
    eventually(lambda: b"last" in stand.recording.contents, "the last one, which brings the count")
    dropped = stand.counts.get("dropped_by_system")
    assert dropped > 0
    assert len(stand.recording.messages) + dropped == 501


def test_a_unix_socket_makes_senders_wait_instead_of_losing_anything(stand: _Stand, tmp_path: Path) -> None:
    stand.datagrams(sockets.unix_socket(tmp_path / "s", socket.SOCK_DGRAM, mode=0o222))
    stand.recording.gate.clear()
    done = threading.Event()

    def send() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(str(tmp_path / "s"))
            for number in range(5000):
                sender.send(b"%d" % number)
        done.set()

    thread = threading.Thread(target=send)
    thread.start()
    assert not done.wait(0.1), "the sender waits for the receiver"
    stand.recording.gate.set()
    thread.join(30)
    eventually(lambda: stand.recording.contents == [b"%d" % number for number in range(5000)], "all of them, in order")


def test_draining_takes_what_was_sent_before(stand: _Stand) -> None:
    # The linger is longer than the drains are given: they succeed only because it does not delay the end.
    udp, tcp = stand.datagrams(_udp(), linger=60.0), stand.stream(linger=60.0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender, _connected(tcp) as connection:
        for number in range(200):
            sender.sendto(b"u%d" % number, udp.socket.getsockname())
        connection.sendall(b"".join(b"<1>t%d\n" % number for number in range(200)) + b"<1>half")
        assert udp.drain(30)
        assert tcp.drain(30)
    texts = [(text, mark) for text, mark, _ in stand.recording.messages]
    assert [text for text, _ in texts if text.startswith(b"u")] == [b"u%d" % number for number in range(200)]
    lines = [entry for entry in texts if entry[0].startswith(b"<")]
    assert lines == [*((b"<1>t%d" % number, WHOLE) for number in range(200)), (b"<1>half", CUT)]


def test_who_sends_to_a_socket_that_nobody_reads_any_more_is_told(stand: _Stand, tmp_path: Path) -> None:
    receiver = stand.datagrams(sockets.unix_socket(tmp_path / "s", socket.SOCK_DGRAM, mode=0o600))
    sent = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(str(tmp_path / "s"))
        sender.setblocking(False)
        receiver.refuse_senders()
        thread = threading.Thread(target=receiver.drain, args=(30,))
        thread.start()
        while True:
            try:
                sender.send(b"%d" % sent)
                sent += 1
            except BlockingIOError:
                pass
            except BrokenPipeError:
                break
        thread.join(30)
    assert stand.recording.contents == [b"%d" % number for number in range(sent)]


def test_those_who_connected_before_a_stop_are_served(stand: _Stand) -> None:
    receiver = stand.stream()
    address = receiver.socket.getsockname()
    stand.recording.gate.clear()
    with _connected(receiver) as first:
        first.sendall(b"<1>first\n")
        eventually(lambda: receiver.connections == 1, "the first connection")
        # The thread is kept busy: these are in the queue of the system.
        others = [_connected(receiver) for _ in range(3)]
        for number, other in enumerate(others):
            other.sendall(b"<1>other %d\n" % number)
        receiver.stop_accepting()
        stand.recording.gate.set()
        eventually(_has(stand, b"<1>first", *(b"<1>other %d" % number for number in range(3))), "all four")
        eventually(lambda: receiver.socket.fileno() < 0, "the end of the listening socket")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        first.sendall(b"<1>still\n")
        eventually(lambda: b"<1>still" in stand.recording.contents, "open connections go on")
        for other in others:
            other.close()


def test_many_connections_are_cut_each_on_its_own(stand: _Stand) -> None:
    receiver = stand.stream()
    connections = [_connected(receiver) for _ in range(30)]
    for piece in (b"<1>a", b" message of ", b"%d\n<2>n", b"ext %d\n"):
        for number, connection in enumerate(connections):
            connection.sendall(piece % number if b"%" in piece else piece)
    expected = [text % number for number in range(30) for text in (b"<1>a message of %d", b"<2>next %d")]
    eventually(_has(stand, *expected), "two messages of each")
    for connection in connections:
        connection.close()
    eventually(lambda: receiver.connections == 0, "their end")
    assert stand.counts.get("connections_ended", reason="closed") == 30


def test_a_connection_that_is_cut_in_a_message_leaves_what_came_marked(stand: _Stand) -> None:
    receiver = stand.stream()
    with _connected(receiver) as connection:
        connection.sendall(b"<1>whole\n100 <2>half of it")
    eventually(lambda: len(stand.recording.messages) == 2, "both")
    assert [(text, mark) for text, mark, _ in stand.recording.messages] == [
        (b"<1>whole", WHOLE),
        (b"100 <2>half of it", CUT),
    ]


def test_a_lost_stream_ends_only_its_own_connection(stand: _Stand) -> None:
    receiver = stand.stream()
    with _connected(receiver) as good, _connected(receiver) as bad:
        good.sendall(b"<1>before\n")
        bad.sendall(b"<1>fine\n12345678 wrong")
        assert bad.recv(1) == b"", "the connection is closed"
        good.sendall(b"<1>after\n")
        eventually(_has(stand, b"<1>before", b"<1>fine", b"12345678 wrong", b"<1>after"), "all")
    assert (b"12345678 wrong", DESYNCHRONISED, "127.0.0.1") in stand.recording.messages
    assert stand.counts.get("connections_ended", reason="desynchronised") == 1


def test_a_sender_that_stalls_holds_up_no_other(stand: _Stand) -> None:
    receiver = stand.stream()
    with ExitStack() as open_sockets:
        for _ in range(20):
            open_sockets.enter_context(_connected(receiver)).sendall(b"<1>never fin")
        for number in range(50):
            with _connected(receiver) as connection:
                connection.sendall(b"<2>%d\n" % number)
        eventually(lambda: sum(text.startswith(b"<2>") for text in stand.recording.contents) == 50, "the others")


def test_connections_above_the_limit_are_closed_and_counted(stand: _Stand) -> None:
    receiver = stand.stream(limits=StreamLimits(connections=2))
    with _connected(receiver), _connected(receiver) as second:
        eventually(lambda: receiver.connections == 2, "two connections")
        with _connected(receiver) as third:
            assert third.recv(1) == b""
        second.close()
        eventually(lambda: receiver.connections == 1, "room for one")
        with _connected(receiver) as fourth:
            fourth.sendall(b"<1>x\n")
            eventually(_has(stand, b"<1>x"), "the fourth")
    assert stand.counts.get("connections_refused") == 1


def test_idle_connections_end_if_that_is_wanted(stand: _Stand) -> None:
    receiver = stand.stream(limits=StreamLimits(idle_seconds=0.2))
    with _connected(receiver) as connection:
        connection.settimeout(30)
        assert connection.recv(1) == b""
    assert stand.counts.get("connections_ended", reason="idle") == 1


def test_halves_of_messages_take_only_so_much_memory(stand: _Stand) -> None:
    receiver = stand.stream(limits=StreamLimits(pending_bytes=2500))
    with ExitStack() as open_sockets:
        connections = [open_sockets.enter_context(_connected(receiver)) for _ in range(3)]
        for connection in connections:
            connection.sendall(b"<1>" + b"x" * 900)
        eventually(lambda: receiver.connections == 2, "one is closed")
    assert stand.counts.get("connections_ended", reason="pending_bytes") == 1


# TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def server_tls(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> ServerTls:
    folder = tmp_path_factory.mktemp("tls")
    cert = authority.issue_cert("localhost", "127.0.0.1")
    cert.private_key_pem.write_to_path(folder / "key.pem")
    for blob in cert.cert_chain_pems:
        blob.write_to_path(folder / "cert.pem", append=True)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    files = {"cert_file": folder / "cert.pem", "key_file": folder / "key.pem", "client_ca_file": folder / "ca.pem"}
    return ServerTls(**files, needs_certificate=True)


def _client(authority: trustme.CA, *, certificate: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if certificate:
        authority.issue_cert("client").configure_cert(context)
    return context


def test_tls_with_a_client_certificate(stand: _Stand, authority: trustme.CA, server_tls: ServerTls) -> None:
    receiver = stand.stream(tls=server_tls.context())
    message = b"<1>" + b"x" * 900 + b"\n"
    with (
        _connected(receiver) as plain,
        _client(authority, certificate=True).wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        secure.sendall(message * 1000)  # many records of TLS
        eventually(lambda: len(stand.recording.messages) == 1000, "all of them")


def test_a_client_without_a_certificate_is_refused(stand: _Stand, authority: trustme.CA, server_tls: ServerTls) -> None:
    receiver = stand.stream(tls=server_tls.context())
    context = _client(authority, certificate=False)

    def greet(plain: socket.socket) -> None:
        with context.wrap_socket(plain, server_hostname="localhost") as secure:
            secure.recv(1)

    with _connected(receiver) as plain, pytest.raises((ssl.SSLError, ConnectionError)):
        greet(plain)
    eventually(lambda: stand.counts.get("connections_ended", reason="tls") == 1, "the refusal is counted")
    assert stand.recording.messages == []


def test_a_client_that_does_not_greet_is_closed(stand: _Stand, server_tls: ServerTls) -> None:
    limits = StreamLimits(handshake_seconds=0.2)
    receiver = stand.stream(tls=server_tls.context(), limits=limits)
    with _connected(receiver) as silent, _connected(receiver) as rude:
        rude.sendall(b"<1>not TLS\n")
        silent.settimeout(30)
        assert silent.recv(1) == b""
    assert stand.counts.get("connections_ended", reason="handshake_too_slow") == 1
    eventually(lambda: stand.counts.get("connections_ended", reason="tls") == 1, "what is not TLS")


def test_a_wrong_certificate_is_one_clear_error(tmp_path: Path, server_tls: ServerTls) -> None:
    for tls in (
        ServerTls(cert_file=tmp_path / "none.pem", key_file=server_tls.key_file),
        ServerTls(cert_file=server_tls.cert_file, key_file=server_tls.cert_file),
        ServerTls(cert_file=server_tls.cert_file, key_file=server_tls.key_file, client_ca_file=tmp_path / "none.pem"),
    ):
        with pytest.raises(ConfigError, match=r"cannot be used"):
            tls.context()


def test_a_receiver_that_never_started_can_be_closed(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    recording, counts = Recording(), Counts()
    sock = sockets.unix_socket(tmp_path / "s", socket.SOCK_DGRAM, mode=0o222)
    datagrams = DatagramReceiver(sock, recording, counts=counts, most_bytes=100)
    cutter = SyslogCutting(Framing.DETECT, most_bytes=1000)
    stream = StreamReceiver(sockets.stream_listener("127.0.0.1", 0), recording, cutter=cutter, counts=counts)
    for receiver in (datagrams, stream):
        assert receiver.drain(0.1)
        receiver.close()
        receiver.close()
    assert len(os.listdir("/proc/self/fd")) == before
