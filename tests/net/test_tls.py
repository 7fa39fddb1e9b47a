"""TLS with our own certificates: which ones are accepted or refused, and the error texts."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trustme

from ottla.config import PLAINTEXT, Address, Security, Tls
from ottla.errors import ConfigError, ConnectFailed, SecurityMismatch
from ottla.net import Cluster
from ottla.net.connection import Connection
from ottla.net.deadline import Deadline

from .servers import Peer, frame, metadata_fields, response, serving
from .test_connection import answers, broker, question, silence


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def ca_file(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    ca.cert_pem.write_to_path(str(path))
    return path


def server_side(ca: trustme.CA, *names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(*names).configure_cert(context)
    return context


def connect(address: Address, tls: Tls | None, seconds: float = 5.0) -> Connection:
    security = PLAINTEXT if tls is None else Security(tls=tls)
    return Connection.open(address, security=security, client_id="t", deadline=Deadline.after(seconds))


@pytest.fixture(scope="module")
def secure(ca: trustme.CA) -> Iterator[Address]:
    """A broker whose certificate is for 127.0.0.1 and localhost."""
    with serving(broker(answers), tls=server_side(ca, "127.0.0.1", "localhost")) as address:
        yield address


def test_a_certificate_of_a_trusted_authority_is_accepted(secure: Address, ca_file: Path) -> None:
    with connect(secure, Tls(ca_file=ca_file)) as connection:
        assert connection.request(question(), deadline=Deadline.after(5)).cluster_id == "1"


def test_a_relative_path_is_that_of_the_directory_in_which_the_client_was_made(
    secure: Address, ca_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ca_file.parent)
    with Cluster([secure], security=Security(tls=Tls(ca_file=ca_file.name))) as cluster:
        monkeypatch.chdir(tmp_path)
        assert cluster.metadata(deadline=Deadline.after(10)).cluster_id == "1"


def test_an_unknown_authority_is_refused(secure: Address) -> None:
    with pytest.raises(SecurityMismatch, match=r"certificate is not accepted: .*; set Tls\(ca_file=\.\.\.\)"):
        connect(secure, Tls())


def test_a_certificate_for_another_name_is_refused_by_default(ca: trustme.CA, ca_file: Path) -> None:
    with serving(broker(answers), tls=server_side(ca, "elsewhere.example")) as address:
        with pytest.raises(SecurityMismatch, match=r"not valid for '127\.0\.0\.1'.*by a name in the certificate"):
            connect(address, Tls(ca_file=ca_file))
        with connect(address, Tls(ca_file=ca_file, check_hostname=False)) as connection:
            assert connection.request(question(), deadline=Deadline.after(5)).cluster_id == "1"


def test_unchecked_host_names_do_not_mean_unchecked_certificates(secure: Address) -> None:
    with pytest.raises(SecurityMismatch):
        connect(secure, Tls(check_hostname=False))


def test_a_plaintext_client_on_a_tls_port_gets_an_error_that_says_so(secure: Address) -> None:
    # Python's TLS server closes without an alert, Kafka's sends one: both texts name TLS.
    with pytest.raises(ConnectFailed, match="TLS"):
        connect(secure, None)


def test_a_tls_client_on_a_plaintext_port_gets_an_error_that_says_so(ca_file: Path) -> None:
    def answers_plainly(peer: Peer) -> None:
        peer.read(5)
        peer.send(frame(0, b"not TLS at all"))
        silence(peer)

    def closes(peer: Peer) -> None:
        peer.read(5)

    with serving(answers_plainly) as address, pytest.raises(SecurityMismatch, match="TLS handshake failed"):
        connect(address, Tls(ca_file=ca_file))
    text = r"closed during the TLS handshake: is this a listener without TLS\?"
    with serving(closes) as address, pytest.raises(ConnectFailed, match=text):
        connect(address, Tls(ca_file=ca_file))


def test_a_handshake_that_is_never_answered_ends_at_the_deadline(ca_file: Path) -> None:
    with serving(silence) as address:
        started = time.monotonic()
        with pytest.raises(ConnectFailed, match=r"no TLS handshake: no answer within 0\.3 s"):
            connect(address, Tls(ca_file=ca_file), 0.3)
        assert time.monotonic() - started < 3


def test_a_client_certificate_is_shown_and_its_absence_explained(ca: trustme.CA, ca_file: Path, tmp_path: Path) -> None:
    demanding = server_side(ca, "127.0.0.1")
    ca.configure_trust(demanding)
    demanding.verify_mode = ssl.CERT_REQUIRED
    identity = ca.issue_cert("client@example.org")
    identity.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "client.pem"))
    with serving(broker(answers), tls=demanding) as address:
        with connect(address, Tls(ca_file=ca_file, cert_file=tmp_path / "client.pem")) as connection:
            assert connection.request(question(), deadline=Deadline.after(5)).cluster_id == "1"
        with pytest.raises(ConnectFailed, match=r"certificate required: set Tls\(cert_file"):
            connect(address, Tls(ca_file=ca_file))


@pytest.mark.parametrize("settings", [{"ca_file": "nowhere.pem"}, {"cert_file": "nowhere.pem"}])
def test_a_file_that_cannot_be_read_is_named(secure: Address, settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.pem"):
        connect(secure, Tls(**settings))  # type: ignore[arg-type]


def test_threads_share_a_tls_connection(secure: Address, ca_file: Path) -> None:
    with connect(secure, Tls(ca_file=ca_file)) as connection, ThreadPoolExecutor(8) as pool:

        def many(_: int) -> None:
            pendings = [connection.submit_message(question(), deadline=Deadline.after(20)) for _ in range(25)]
            for pending in pendings:
                assert pending.response().cluster_id == str(pending.correlation_id)

        list(pool.map(many, range(8)))
        assert connection.in_flight == 0


def test_large_frames_pass_both_ways_at_once(ca: trustme.CA, ca_file: Path) -> None:
    payload = os.urandom(3_000_000)

    def echoes(peer: Peer) -> None:
        while True:
            size = int.from_bytes(peer.read(4), "big")
            data = peer.read(size)
            peer.send(frame(int.from_bytes(data[4:8], "big"), data[-len(payload) :], tagged=True))

    context = server_side(ca, "127.0.0.1")
    with serving(broker(echoes), tls=context) as address, connect(address, Tls(ca_file=ca_file)) as connection:
        body = [b"small", payload[:10], payload[10:]]
        pendings = [connection.submit(3, 12, body, deadline=Deadline.after(20)) for _ in range(4)]
        assert all(pending.result() == payload for pending in pendings)


def test_pump_leaves_nothing_behind_in_the_tls_layer(ca: trustme.CA, ca_file: Path) -> None:
    """Several responses in one TLS record make the socket readable only once."""

    def bundles(peer: Peer) -> None:
        asked = [peer.request() for _ in range(5)]
        peer.send(b"".join(response(request, metadata_fields("x" * 20_000)) for request in asked))
        silence(peer)

    context = server_side(ca, "127.0.0.1")
    with serving(broker(bundles), tls=context) as address, connect(address, Tls(ca_file=ca_file)) as connection:
        for _ in range(5):
            connection.submit_message(question(), deadline=Deadline.after(5))
        done = 0
        while done < 5:
            count = connection.pump(Deadline.after(5))
            assert count
            done += count
