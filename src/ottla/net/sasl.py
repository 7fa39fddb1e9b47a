"""The client side of SASL: PLAIN, SCRAM and OAUTHBEARER.

A dialogue is a generator: it yields the bytes to send and receives the broker's answer. It ends when both sides
are satisfied, or raises `SaslError`. It knows no sockets and no Kafka messages.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Generator

from ottla.config import OAuthBearer, Plain, Sasl, Scram
from ottla.text import redacted

_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
Dialogue = Generator[bytes, bytes, None]

MIN_ITERATIONS = 4096
"""The minimum of RFC 7677. With fewer, an eavesdropper could guess the password quickly."""
MAX_ITERATIONS = 1_000_000
"""About a second of work. A hostile server must not be able to ask for more."""


class SaslError(Exception):
    """This side ended the dialogue. The text says why."""


def mechanism(sasl: Sasl) -> str:
    """Return the name of the mechanism in the protocol."""
    match sasl:
        case Plain():
            return "PLAIN"
        case Scram():
            return sasl.mechanism
        case OAuthBearer():
            return "OAUTHBEARER"


def dialogue(sasl: Sasl) -> Dialogue:
    """Return a new dialogue for one connection."""
    match sasl:
        case Plain():
            return _plain(sasl)
        case Scram():
            return scram(sasl, nonce=secrets.token_urlsafe(24))
        case OAuthBearer():
            return _oauth_bearer(sasl)


def _plain(sasl: Plain) -> Dialogue:
    yield b"\0".join((b"", sasl.username.encode(), sasl.password.encode()))


def _oauth_bearer(sasl: OAuthBearer) -> Dialogue:
    """OAUTHBEARER by RFC 7628, with extensions by KIP-342."""
    try:
        token = sasl.token()
    except Exception as exc:
        raise SaslError(f"the token callable failed: {redacted(repr(exc))}") from exc
    _check_token(token)
    pairs = "".join(f"{key}={value}\x01" for key, value in sasl.extensions)
    refusal = yield f"n,,\x01auth=Bearer {token}\x01{pairs}\x01".encode()
    if refusal:
        # The server explains the refusal as JSON and waits for this byte before it ends the exchange.
        yield b"\x01"
        raise SaslError(f"the token was refused: {refusal.decode(errors='replace')}")


def _check_token(token: object) -> None:
    """A control character in a token would forge fields of the message. The error does not show it: it is a secret."""
    if not isinstance(token, str):
        raise SaslError(f"the token callable returned {type(token).__name__}, not str")
    if not token:
        raise SaslError("the token callable returned an empty token")
    if not _TOKEN.fullmatch(token):
        raise SaslError("the token has characters other than A-Z a-z 0-9 - . _ ~ + / and = at its end (RFC 6750)")


def scram(sasl: Scram, *, nonce: str) -> Dialogue:
    """SCRAM by RFC 5802 and 7677, without channel binding. Like Kafka, without SASLprep of names and passwords."""
    algorithm = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[sasl.mechanism]
    user = sasl.username.replace("=", "=3D").replace(",", "=2C")
    client_first = f"n={user},r={nonce}"
    server_first = _text((yield f"n,,{client_first}".encode()))
    server_nonce, salt, iterations = _server_first(server_first, nonce)
    client_final = f"c=biws,r={server_nonce}"  # biws: the base64 of "n,,", no channel binding
    signed = f"{client_first},{server_first},{client_final}".encode()

    salted = hashlib.pbkdf2_hmac(algorithm, sasl.password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", algorithm)
    stored_key = hashlib.new(algorithm, client_key).digest()
    signature = hmac.digest(stored_key, signed, algorithm)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    server_final = _text((yield f"{client_final},p={base64.b64encode(proof).decode()}".encode()))

    server_key = hmac.digest(salted, b"Server Key", algorithm)
    _check_server(server_final, hmac.digest(server_key, signed, algorithm))


def _server_first(message: str, nonce: str) -> tuple[str, bytes, int]:
    """Parse and check the server's first message: the whole nonce, the salt and the iteration count."""
    _check_refusal(message)
    match = re.fullmatch(r"r=([\x21-\x2b\x2d-\x7e]+),s=([A-Za-z0-9+/=]+),i=([0-9]{1,9})(?:,.*)?", message)
    if match is None:
        raise SaslError("the broker's first SCRAM message is malformed")
    server_nonce, salt, iterations = match[1], _decode(match[2]), int(match[3])
    if not server_nonce.startswith(nonce) or len(server_nonce) == len(nonce):
        raise SaslError("the broker's SCRAM nonce does not extend ours")
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        allowed = f"{MIN_ITERATIONS} to {MAX_ITERATIONS} are allowed"
        raise SaslError(f"the broker asks for {iterations} SCRAM iterations; {allowed}")
    return server_nonce, salt, iterations


def _check_server(message: str, signature: bytes) -> None:
    _check_refusal(message)
    match = re.fullmatch(r"v=([A-Za-z0-9+/=]+)(?:,.*)?", message)
    if match is None or not hmac.compare_digest(_decode(match[1]), signature):
        raise SaslError("the broker could not prove that it knows the password: it may be an impostor")


def _check_refusal(message: str) -> None:
    if message.startswith("e="):
        raise SaslError(f"the broker refused: {message[2:]}")


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as exc:
        raise SaslError("the broker's SCRAM message has invalid base64") from exc


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError as exc:
        raise SaslError("the broker's SCRAM message is not UTF-8 text") from exc
