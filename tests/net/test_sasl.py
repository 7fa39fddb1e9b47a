"""SASL dialogues against published test vectors, an independent server implementation, and hostile servers."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from ottla.config import OAuthBearer, Plain, Scram, ScramMechanism
from ottla.net import sasl

# RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
USER = Scram("user", "pencil", "SCRAM-SHA-256")


def started(server_first: bytes) -> sasl.Dialogue:
    dialogue = sasl.scram(USER, nonce=NONCE)
    next(dialogue)
    dialogue.send(server_first)
    return dialogue


def test_the_vector_of_the_rfc_is_reproduced() -> None:
    dialogue = sasl.scram(USER, nonce=NONCE)
    assert next(dialogue) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert dialogue.send(SERVER_FIRST) == CLIENT_FINAL
    with pytest.raises(StopIteration):
        dialogue.send(SERVER_FINAL)


@pytest.mark.parametrize(("mechanism", "algorithm"), [("SCRAM-SHA-256", "sha256"), ("SCRAM-SHA-512", "sha512")])
def test_a_server_that_keeps_only_the_stored_key_is_convinced(mechanism: ScramMechanism, algorithm: str) -> None:
    salt, iterations, password = b"salt", 4096, "päss,word="
    salted = hashlib.pbkdf2_hmac(algorithm, password.encode(), salt, iterations)
    stored_key = hashlib.new(algorithm, hmac.digest(salted, b"Client Key", algorithm)).digest()
    server_key = hmac.digest(salted, b"Server Key", algorithm)

    dialogue = sasl.dialogue(Scram("a=b,c", password, mechanism))
    client_first = next(dialogue).decode().removeprefix("n,,")
    assert client_first.startswith("n=a=3Db=2Cc,r=")
    nonce = client_first.partition(",r=")[2] + "more"
    server_first = f"r={nonce},s={base64.b64encode(salt).decode()},i={iterations}"
    without_proof, _, proof = dialogue.send(server_first.encode()).decode().partition(",p=")
    signed = f"{client_first},{server_first},{without_proof}".encode()
    signature = hmac.digest(stored_key, signed, algorithm)
    client_key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
    assert hashlib.new(algorithm, client_key).digest() == stored_key
    final = base64.b64encode(hmac.digest(server_key, signed, algorithm))
    with pytest.raises(StopIteration):
        dialogue.send(b"v=" + final)


@pytest.mark.parametrize(
    ("server_first", "reason"),
    [
        (b"r=somebody-elses-nonce,s=c2FsdA==,i=4096", "does not extend ours"),
        (b"r=rOprNGfwEbeRWgbNEkqO,s=c2FsdA==,i=4096", "does not extend ours"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=c2FsdA==,i=1", "1 SCRAM iterations; 4096 to 1000000 are allowed"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=c2FsdA==,i=999999999", "999999999 SCRAM iterations"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=c2FsdA==,i=9999999999", "malformed"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=c2FsdA,i=4096", "base64"),
        (b"e=unknown-user", "refused: unknown-user"),
        (b"", "malformed"),
        (b"\xff\xfe", "not UTF-8 text"),
    ],
)
def test_a_first_message_that_is_wrong_or_weak_is_refused(server_first: bytes, reason: str) -> None:
    with pytest.raises(sasl.SaslError, match=reason):
        started(server_first)


@pytest.mark.parametrize("final", [b"v=" + base64.b64encode(b"x" * 32), b"", b"v=", b"v=\xff", b"v=abc"])
def test_a_server_that_does_not_know_the_password_is_not_trusted(final: bytes) -> None:
    with pytest.raises(sasl.SaslError, match=r"impostor|not UTF-8 text|base64"):
        started(SERVER_FIRST).send(final)


def test_an_error_in_the_last_message_is_reported() -> None:
    with pytest.raises(sasl.SaslError, match="invalid-proof"):
        started(SERVER_FIRST).send(b"e=invalid-proof")


def test_nonces_are_fresh() -> None:
    assert next(sasl.dialogue(USER)) != next(sasl.dialogue(USER))


def test_plain_sends_user_and_password() -> None:
    assert next(sasl.dialogue(Plain("me", "secret"))) == b"\0me\0secret"


def test_a_bearer_token_and_its_extensions_are_sent_and_a_refusal_is_acknowledged() -> None:
    dialogue = sasl.dialogue(OAuthBearer(lambda: "abc", (("tenant", "x"),)))
    assert next(dialogue) == b"n,,\x01auth=Bearer abc\x01tenant=x\x01\x01"
    assert dialogue.send(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(sasl.SaslError, match="invalid_token"):
        dialogue.send(b"")


def test_a_token_callable_that_fails_is_named() -> None:
    def token() -> str:
        raise RuntimeError("no network")

    with pytest.raises(sasl.SaslError, match="no network"):
        next(sasl.dialogue(OAuthBearer(token)))


@pytest.mark.parametrize("token", ["", "abc\x01auth=Bearer other", "abc\n", "a b", "abc=d", "ž", None, b"abc"])
def test_what_is_no_token_is_not_sent_and_not_shown(token: object) -> None:
    dialogue = sasl.dialogue(OAuthBearer(lambda: token))  # type: ignore[arg-type, return-value]
    with pytest.raises(sasl.SaslError, match="token") as caught:
        next(dialogue)
    assert "abc" not in str(caught.value)


def test_a_token_callable_that_fails_tells_no_secret() -> None:
    def failing() -> str:
        raise RuntimeError("POST https://me:s3cret@idp/token?client_secret=s3cret failed")

    with pytest.raises(sasl.SaslError, match=r"https://\*\*\*@idp/token\?client_secret=\*\*\* failed"):
        next(sasl.dialogue(OAuthBearer(failing)))
