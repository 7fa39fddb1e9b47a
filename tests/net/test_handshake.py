"""The SASL handshake on the wire, and sessions that expire."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from ottla.config import Address, Plain, Scram, Security
from ottla.errors import AuthenticationFailed, ConnectFailed, ErrorCode
from ottla.net.connection import Connection
from ottla.net.deadline import Deadline
from ottla.net.pool import Pool

from .servers import API_VERSIONS, Peer, Script, api_versions, frame, serving
from .test_connection import answers

PLAIN = Security(sasl=Plain("me", "secret"))


def connect(address: Address, security: Security = PLAIN) -> Connection:
    return Connection.open(address, security=security, client_id="t", deadline=Deadline.after(5))


def sasl_broker(handshake: dict[str, Any], *authenticate: dict[str, Any]) -> Script:
    def script(peer: Peer) -> None:
        asked = peer.request()
        assert asked[0] == API_VERSIONS
        peer.answer(asked, api_versions(SaslHandshake=(0, 1), SaslAuthenticate=(0, 2)))
        peer.answer(peer.request(), {"error_code": ErrorCode.none, "mechanisms": ("PLAIN",), **handshake})
        for fields in authenticate:
            peer.answer(peer.request(), {**accepted(0), **fields})
        answers(peer)

    return script


def accepted(lifetime: float) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "auth_bytes": b"",
        "session_lifetime": timedelta(seconds=lifetime),
    }


def refusal(script: Script, security: Security = PLAIN) -> str:
    with serving(script) as address, pytest.raises(AuthenticationFailed) as caught:
        connect(address, security)
    return str(caught.value)


def test_a_mechanism_that_the_broker_does_not_offer_is_named_with_those_it_does() -> None:
    refusing = sasl_broker(
        {"error_code": ErrorCode.unsupported_sasl_mechanism, "mechanisms": ("GSSAPI", "OAUTHBEARER")}
    )
    assert "does not offer SASL PLAIN; it offers: GSSAPI, OAUTHBEARER" in refusal(refusing)


def test_the_brokers_own_words_are_in_a_refusal() -> None:
    words = {"error_code": ErrorCode.sasl_authentication_failed, "error_message": "no such person"}
    assert "SASL PLAIN was refused: no such person" in refusal(sasl_broker({}, words))


def test_a_broker_that_cannot_prove_itself_is_not_trusted() -> None:
    security = Security(sasl=Scram("me", "secret", "SCRAM-SHA-256"))
    impostor = sasl_broker({}, {"auth_bytes": b"r=x,s=c2FsdA==,i=4096"})
    assert "SCRAM-SHA-256: the broker's SCRAM nonce does not extend ours" in refusal(impostor, security)


def test_hostile_bytes_in_an_authentication_are_an_error() -> None:
    def hostile(peer: Peer) -> None:
        peer.answer(peer.request(), api_versions(SaslHandshake=(0, 1), SaslAuthenticate=(0, 2)))
        peer.send(frame(peer.request()[2], b"\0\0\x7f\xff\xff\xff"))
        peer.wait_until_closed()

    with serving(hostile) as address, pytest.raises(ConnectFailed, match="unreadable response"):
        connect(address)


def test_the_end_of_a_session_is_known_and_unlimited_sessions_have_none() -> None:
    with serving(sasl_broker({}, accepted(60)), sasl_broker({}, accepted(0))) as address:
        with connect(address) as connection:
            assert connection.expires_at is not None
            assert 50 < connection.expires_at - time.monotonic() <= 60
        with connect(address) as connection:
            assert connection.expires_at is None


def test_a_connection_is_replaced_before_its_session_ends() -> None:
    pool = Pool(security=PLAIN, client_id="t")
    with serving(sasl_broker({}, accepted(0.4))) as address:
        first = pool.get("key", address, deadline=Deadline.after(5))
        assert pool.get("key", address, deadline=Deadline.after(5)) is first
        assert first.expires_at is not None
        wait = Deadline(first.expires_at - 0.05)
        while not wait.expired():
            time.sleep(0.01)
        second = pool.get("key", address, deadline=Deadline.after(5))
        assert second is not first
        assert first.closed
        assert not second.closed
        pool.close()
        assert second.closed
