"""What a node makes of a Redis that breaks off: what passes is waited for, and what never will is said at once."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme
from redis import exceptions

from ottla.cluster.ports import HOST
from ottla.config import Address, Tls
from ottla.engines.fleet import redis_link
from ottla.engines.fleet.redis_address import Kind, Place
from ottla.engines.fleet.redis_errors import meaning
from ottla.engines.fleet.store import open_store
from ottla.errors import ConfigError, OttlaError, StoreUnavailable

Answer = Callable[[socket.socket], object]


@contextmanager
def server(answer: Answer) -> Iterator[int]:
    """The port of one that does the same to every connection, and then ends it."""
    listener = socket.create_server((HOST, 0))

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                try:
                    answer(client)
                except OSError:
                    pass  # as an answer to whoever does not want it

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def trouble_at(url: str, group: str = "g") -> OttlaError:
    """What a step gets."""
    store = open_store(url, group)
    try:
        store.look()
    except OttlaError as error:
        return error
    finally:
        store.close()
    raise AssertionError(f"{url} answers")


def trouble_with(answer: Answer, ca_file: Path, host: str = "localhost") -> OttlaError:
    """The same of a server that does this, with TLS."""
    with server(answer) as port:
        return trouble_at(f"rediss://{host}:{port}?ca={ca_file}")


def closed_port() -> int:
    """An address at which no server listens."""
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def hear_and_close(client: socket.socket) -> None:
    client.recv(10_000)


def reset(client: socket.socket) -> None:
    client.recv(1)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def answer_plainly(client: socket.socket) -> None:
    client.recv(10_000)
    client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def shake_hands(context: ssl.SSLContext, then: Answer = lambda _: None) -> Answer:
    """With TLS as a server does; what comes then is said before the connection ends."""

    def answer(client: socket.socket) -> None:
        with context.wrap_socket(client, server_side=True) as secure:
            then(secure)

    return answer


@pytest.fixture
def context(authority: trustme.CA) -> ssl.SSLContext:
    """Of a server that is whom it says."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    return context


# What passes


@pytest.mark.parametrize("breaks_off", [lambda _: None, hear_and_close, reset], ids=["closes", "hears", "resets"])
def test_a_server_that_ends_the_connection_during_the_handshake_is_away(breaks_off: Answer, ca_file: Path) -> None:
    assert isinstance(trouble_with(breaks_off, ca_file), StoreUnavailable)


def test_a_server_that_ends_the_connection_after_the_handshake_is_away(context: ssl.SSLContext, ca_file: Path) -> None:
    assert isinstance(
        trouble_with(shake_hands(context, lambda connection: connection.recv(1)), ca_file), StoreUnavailable
    )


def test_a_server_that_says_goodbye_in_tls_is_away(context: ssl.SSLContext, ca_file: Path) -> None:
    def goodbye(client: socket.socket) -> None:
        assert isinstance(client, ssl.SSLSocket)
        client.recv(10_000)
        client.unwrap()

    assert isinstance(trouble_with(shake_hands(context, goodbye), ca_file), StoreUnavailable)


def test_a_server_that_is_silent_during_the_handshake_is_away(ca_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_link, "ANSWER_SECONDS", 0.2)

    def be_silent(client: socket.socket) -> None:
        while client.recv(10_000):
            pass

    trouble = trouble_with(be_silent, ca_file)
    assert isinstance(trouble, StoreUnavailable)
    assert "Timeout" in str(trouble)


# What never will


def test_a_server_that_answers_without_tls_is_a_mistake_in_the_settings(ca_file: Path) -> None:
    trouble = trouble_with(answer_plainly, ca_file)
    assert isinstance(trouble, ConfigError)
    assert "cannot agree on TLS" in str(trouble)


def test_a_server_that_refuses_the_handshake_is_a_mistake_in_the_settings(
    context: ssl.SSLContext, authority: trustme.CA, ca_file: Path
) -> None:
    context.verify_mode = ssl.CERT_REQUIRED
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # in later ones, the refusal comes after the handshake
    authority.configure_trust(context)
    trouble = trouble_with(shake_hands(context), ca_file)
    assert isinstance(trouble, ConfigError)
    assert " alert handshake failure" in str(trouble)


def test_a_certificate_that_is_not_trusted_is_a_mistake_in_the_settings(context: ssl.SSLContext, ca_file: Path) -> None:
    trouble = trouble_with(shake_hands(context), ca_file, HOST)
    assert isinstance(trouble, ConfigError)
    assert "certificate is not trusted" in str(trouble)


@pytest.mark.parametrize("name", ["ca", "cert"])
def test_a_file_without_a_certificate_is_a_mistake_in_the_settings(name: str, tmp_path: Path) -> None:
    path = tmp_path / "nonsense.pem"
    path.write_text("nonsense")
    key = f"&key={path}" if name == "cert" else ""
    with pytest.raises(ConfigError, match=r"the fleet's store rediss://localhost:\d+ cannot be used: .*nonsense\.pem"):
        open_store(f"rediss://localhost?{name}={path}{key}", "g")


# What is the caller's own


def hand_made() -> ssl.SSLError:
    """Without the `reason` that those of OpenSSL have."""
    return ssl.SSLError("a handler's own trouble")


def refused_by_a_web_server() -> ssl.SSLError:
    """What a handler's HTTPS call may raise."""
    with server(answer_plainly) as port, socket.create_connection((HOST, port)) as plain:
        try:
            ssl.create_default_context().wrap_socket(plain, server_hostname="localhost")
        except ssl.SSLError as error:
            return error
    raise AssertionError("it has TLS")


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
@pytest.mark.parametrize("of_handler", [hand_made, refused_by_a_web_server], ids=["hand made", "openssl"])
def test_trouble_with_tls_that_a_handler_has_is_not_the_stores(
    scheme: str, of_handler: Callable[[], ssl.SSLError]
) -> None:
    mine = of_handler()
    try:
        raise mine
    except ssl.SSLError:
        trouble = trouble_at(f"{scheme}://{HOST}:{closed_port()}")
    assert isinstance(trouble, StoreUnavailable)
    assert "Connection refused" in str(trouble)
    above = trouble.__context__
    while above is not None and above is not mine:
        above = above.__context__
    assert above is mine, "it hangs together with the handler's, as exceptions do"


def test_trouble_of_the_store_is_known_while_a_handler_has_trouble_of_its_own(ca_file: Path) -> None:
    try:
        raise hand_made()
    except ssl.SSLError:
        trouble = trouble_with(answer_plainly, ca_file)
    assert isinstance(trouble, ConfigError)


# Those that no server of this machine brings about

PLACE = Place(scheme="rediss", kind=Kind.ALONE, addresses=(Address("localhost", 1),), tls=Tls())


@pytest.mark.parametrize("kind", [ssl.SSLZeroReturnError, ssl.SSLSyscallError, ssl.SSLEOFError])
def test_ends_pass_whatever_openssl_calls_them(kind: type[ssl.SSLError]) -> None:
    error = exceptions.ConnectionError("it broke off")
    error.__cause__ = kind(6, "TLS/SSL connection has been closed (EOF) (_ssl.c:1006)")
    assert isinstance(meaning(error, PLACE, None), StoreUnavailable)


def test_an_answer_without_tls_is_known_where_python_has_no_name_for_it() -> None:
    """As in https://github.com/cherrypy/cherrypy/issues/2026, with OpenSSL 3.2."""
    error = exceptions.ConnectionError("it broke off")
    error.__cause__ = ssl.SSLError(1, "[SSL] record layer failure (_ssl.c:1033)")
    assert isinstance(meaning(error, PLACE, None), ConfigError)


@pytest.mark.parametrize(
    "answer", [b"-NOAUTH Authentication required.", b"-ERR Protocol error: unauthenticated bulk length"]
)
def test_a_server_that_wants_a_password_says_so_in_several_ways(answer: bytes) -> None:
    def refuse(client: socket.socket) -> None:
        while client.recv(65_536):
            client.sendall(answer + b"\r\n")

    with server(refuse) as port:
        error = trouble_at(f"redis://{HOST}:{port}")
    assert isinstance(error, ConfigError)
    assert "it rejects the user and password in its address, or requires them" in str(error)
