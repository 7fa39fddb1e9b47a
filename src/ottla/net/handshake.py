"""The first words on a connection: which versions the broker speaks, and who we are.

A fresh connection and the security settings come in; the broker's versions and the end of the SASL session go
out. Every failure here is a ConnectFailed or AuthenticationFailed that says what to change.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ottla._version import VERSION
from ottla.config import Address, Sasl, Security
from ottla.errors import (
    Advice,
    AuthenticationFailed,
    ConnectFailed,
    ConnectionLost,
    ErrorCode,
    NetworkError,
    RequestTimedOut,
    SecurityMismatch,
    UnsupportedFormat,
    WireError,
)
from ottla.net.deadline import Deadline
from ottla.net.frames import TlsAnswered
from ottla.net.pending import Pending
from ottla.wire import messages

if TYPE_CHECKING:
    import ssl

API_VERSIONS = 18
SASL_HANDSHAKE = 17
SASL_AUTHENTICATE = 36

Versions = Mapping[int, tuple[int, int]]


class _Speaks(Protocol):
    address: Address

    def submit_message(self, message: messages.Message, *, deadline: Deadline) -> Pending: ...


class HandshakeResult(NamedTuple):
    """What the handshake found out."""

    versions: Versions
    expires_at: float | None
    suspicion: str


def introduce(connection: _Speaks, *, security: Security, deadline: Deadline) -> HandshakeResult:
    """ApiVersions, then SASL if it is asked for."""
    try:
        versions = _ask_versions(connection, deadline)
        expires_at = None
        if security.sasl is not None:
            expires_at = _authenticate(connection, security.sasl, versions=versions, deadline=deadline)
    except (ConnectionLost, RequestTimedOut, WireError) as exc:
        raise _explain(connection.address, exc, security) from exc
    hint = "" if security.sasl is not None else f": {Advice.USE_SASL}"
    return HandshakeResult(versions, expires_at, hint)


def _ask_versions(connection: _Speaks, deadline: Deadline) -> Versions:
    """KIP-511: a broker that does not know our version answers in version 0 and names its own."""
    _, highest = messages.supported_versions(API_VERSIONS)
    error, offered = _api_versions(connection, highest, deadline)
    if error is ErrorCode.unsupported_version:
        theirs = offered.get(API_VERSIONS, (0, 0))
        error, offered = _api_versions(connection, min(highest, max(0, theirs[1])), deadline)
    if error is not ErrorCode.none:
        raise ConnectFailed(connection.address, f"ApiVersions was refused: {error.name.upper()}")
    return offered


def _api_versions(connection: _Speaks, version: int, deadline: Deadline) -> tuple[ErrorCode, Versions]:
    entity = messages.request_type(API_VERSIONS, version)
    fields = {"client_software_name": "ottla", "client_software_version": VERSION}
    body = connection.submit_message(messages.compose(entity, fields), deadline=deadline).result()
    # The error comes first in every version, and with it the rest is in version 0.
    refused = body[:2] == ErrorCode.unsupported_version.to_bytes(2, "big")
    response = messages.decode_response(API_VERSIONS, 0 if refused else version, body)
    ranges = {int(api.api_key): (int(api.min_version), int(api.max_version)) for api in response.api_keys}
    return response.error_code, MappingProxyType(ranges)


def _authenticate(connection: _Speaks, settings: Sasl, *, versions: Versions, deadline: Deadline) -> float | None:
    """Runs the dialogue; when the session ends, by the monotonic clock, if the broker says so (KIP-368)."""
    from ottla.net import sasl

    address = connection.address
    name = sasl.mechanism(settings)
    answer = _ask(connection, SASL_HANDSHAKE, 1, {"mechanism": name}, deadline)
    _check_mechanism(answer, name, address)
    version = min(versions.get(SASL_AUTHENTICATE, (0, 0))[1], messages.supported_versions(SASL_AUTHENTICATE)[1])
    try:
        dialogue = sasl.dialogue(settings)
        words = next(dialogue)
        while True:
            answer = _ask(connection, SASL_AUTHENTICATE, version, {"auth_bytes": words}, deadline)
            if answer.error_code is not ErrorCode.none:
                raise AuthenticationFailed(address, _refusal(name, answer))
            words = dialogue.send(answer.auth_bytes)
    except StopIteration:
        lifetime = answer.session_lifetime.total_seconds() if version >= 1 else 0.0
        return time.monotonic() + lifetime if lifetime > 0 else None
    except sasl.SaslError as exc:
        raise AuthenticationFailed(address, f"{name}: {exc}") from exc


def _ask(connection: _Speaks, api_key: int, version: int, fields: Mapping[str, Any], deadline: Deadline) -> Any:
    message = messages.compose(messages.request_type(api_key, version), fields)
    return connection.submit_message(message, deadline=deadline).response()


def _check_mechanism(answer: Any, name: str, address: Address) -> None:
    if answer.error_code is ErrorCode.unsupported_sasl_mechanism:
        offered = ", ".join(answer.mechanisms) or "none"
        raise AuthenticationFailed(address, f"the broker does not offer SASL {name}; it offers: {offered}")
    if answer.error_code is ErrorCode.illegal_sasl_state:
        raise AuthenticationFailed(address, f"this listener does not use SASL: {Advice.NO_SASL}")
    if answer.error_code is not ErrorCode.none:
        raise AuthenticationFailed(address, f"SASL {name}: {answer.error_code.name.upper()}")


def _refusal(name: str, answer: Any) -> str:
    detail = answer.error_message or answer.error_code.name.upper()
    return f"SASL {name} was refused: {detail}"


def _explain(address: Address, exc: NetworkError | WireError, security: Security) -> ConnectFailed:
    """A failure before the first real request, in terms of what is probably set wrongly."""
    import ssl

    if isinstance(exc.__cause__, TlsAnswered):
        return SecurityMismatch(address, str(exc.__cause__))
    if isinstance(exc, ConnectionLost) and isinstance(exc.__cause__, WireError):
        return ConnectFailed(address, str(exc.__cause__))
    cut = exc.__cause__ is None or isinstance(exc.__cause__, ConnectionError | ssl.SSLEOFError)
    if isinstance(exc.__cause__, ssl.SSLError) and not cut:
        # With TLS 1.3 the broker judges our certificate after the handshake is over for us.
        return SecurityMismatch(address, f"TLS: {_alert(exc.__cause__, security)}")
    if isinstance(exc, RequestTimedOut):
        return ConnectFailed(address, f"the connection was accepted, but {exc.reason}")
    if isinstance(exc, WireError):
        kind = "an unsupported" if isinstance(exc, UnsupportedFormat) else "an unreadable"
        return ConnectFailed(address, f"{kind} answer to the first request: {exc}")
    hint = f": does the port speak TLS? Then {Advice.USE_TLS}" if security.tls is None and cut else ""
    return ConnectFailed(address, f"{exc.reason} during the first request{hint}")


def _alert(exc: ssl.SSLError, security: Security) -> str:
    text = (exc.reason or str(exc)).replace("_", " ").lower()
    has_none = security.tls is None or security.tls.cert_file is None
    # Java calls a certificate that it was not given a bad one.
    is_asked = "certificate required" in text or ("bad certificate" in text and has_none)
    return text + (f": {Advice.CERTIFICATE}" if is_asked else "")
