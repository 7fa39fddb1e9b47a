"""The handshake of a new connection: ApiVersions, then SASL.

A new connection and the security settings come in; the broker's API versions and the end of the SASL session go
out. Every failure is a `ConnectFailed` or `AuthenticationFailed` that says what to change.
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


class _Submits(Protocol):
    address: Address

    def submit_message(self, message: messages.Message, *, deadline: Deadline) -> Pending: ...


class HandshakeResult(NamedTuple):
    """The outcome of a handshake."""

    versions: Versions
    expires_at: float | None
    """When the SASL session ends, by `time.monotonic`; None if never."""
    close_hint: str
    """What to suspect if the broker closes the connection before its first response."""


def introduce(connection: _Submits, *, security: Security, deadline: Deadline) -> HandshakeResult:
    """Request the broker's versions, then authenticate if SASL is configured.

    Raises `ConnectFailed`, `SecurityMismatch` or `AuthenticationFailed`.
    """
    try:
        versions = _ask_versions(connection, deadline)
        expires_at = None
        if security.sasl is not None:
            expires_at = _authenticate(connection, security.sasl, versions=versions, deadline=deadline)
    except (ConnectionLost, RequestTimedOut, WireError) as exc:
        raise _explain(connection.address, exc, security) from exc
    hint = "" if security.sasl is not None else f": {Advice.USE_SASL}"
    return HandshakeResult(versions, expires_at, hint)


def _ask_versions(connection: _Submits, deadline: Deadline) -> Versions:
    """A broker that does not know our version of ApiVersions answers in version 0 and names its own (KIP-511)."""
    _, highest = messages.supported_versions(API_VERSIONS)
    error, offered = _api_versions(connection, highest, deadline)
    if error is ErrorCode.unsupported_version:
        theirs = offered.get(API_VERSIONS, (0, 0))
        error, offered = _api_versions(connection, min(highest, max(0, theirs[1])), deadline)
    if error is not ErrorCode.none:
        raise ConnectFailed(connection.address, f"the broker refused ApiVersions: {error.name.upper()}")
    return offered


def _api_versions(connection: _Submits, version: int, deadline: Deadline) -> tuple[ErrorCode, Versions]:
    entity = messages.request_type(API_VERSIONS, version)
    fields = {"client_software_name": "ottla", "client_software_version": VERSION}
    body = connection.submit_message(messages.compose(entity, fields), deadline=deadline).result()
    # The error code comes first in every version; with this one the rest is encoded in version 0.
    refused = body[:2] == ErrorCode.unsupported_version.to_bytes(2, "big")
    response = messages.decode_response(API_VERSIONS, 0 if refused else version, body)
    ranges = {int(api.api_key): (int(api.min_version), int(api.max_version)) for api in response.api_keys}
    return response.error_code, MappingProxyType(ranges)


def _authenticate(connection: _Submits, settings: Sasl, *, versions: Versions, deadline: Deadline) -> float | None:
    """Run the SASL exchange. Returns when the session ends, by the monotonic clock, or None (KIP-368)."""
    from ottla.net import sasl

    address = connection.address
    name = sasl.mechanism(settings)
    response = _ask(connection, SASL_HANDSHAKE, 1, {"mechanism": name}, deadline)
    _check_mechanism(response, name, address)
    version = min(versions.get(SASL_AUTHENTICATE, (0, 0))[1], messages.supported_versions(SASL_AUTHENTICATE)[1])
    try:
        dialogue = sasl.dialogue(settings)
        auth_bytes = next(dialogue)
        while True:
            response = _ask(connection, SASL_AUTHENTICATE, version, {"auth_bytes": auth_bytes}, deadline)
            if response.error_code is not ErrorCode.none:
                raise AuthenticationFailed(address, _refusal(name, response))
            auth_bytes = dialogue.send(response.auth_bytes)
    except StopIteration:  # both sides are satisfied
        lifetime = response.session_lifetime.total_seconds() if version >= 1 else 0.0
        return time.monotonic() + lifetime if lifetime > 0 else None
    except sasl.SaslError as exc:
        raise AuthenticationFailed(address, f"{name}: {exc}") from exc


def _ask(connection: _Submits, api_key: int, version: int, fields: Mapping[str, Any], deadline: Deadline) -> Any:
    message = messages.compose(messages.request_type(api_key, version), fields)
    return connection.submit_message(message, deadline=deadline).response()


def _check_mechanism(response: Any, name: str, address: Address) -> None:
    if response.error_code is ErrorCode.unsupported_sasl_mechanism:
        offered = ", ".join(response.mechanisms) or "none"
        raise AuthenticationFailed(address, f"the broker does not offer SASL {name}; it offers: {offered}")
    if response.error_code is ErrorCode.illegal_sasl_state:
        raise AuthenticationFailed(address, f"this listener does not use SASL: {Advice.NO_SASL}")
    if response.error_code is not ErrorCode.none:
        raise AuthenticationFailed(address, f"SASL {name}: {response.error_code.name.upper()}")


def _refusal(name: str, response: Any) -> str:
    detail = response.error_message or response.error_code.name.upper()
    return f"SASL {name} was refused: {detail}"


def _explain(address: Address, exc: NetworkError | WireError, security: Security) -> ConnectFailed:
    """Explain a failure of the handshake by the setting that is probably wrong."""
    import ssl

    if isinstance(exc.__cause__, TlsAnswered):
        return SecurityMismatch(address, str(exc.__cause__))
    if isinstance(exc, ConnectionLost) and isinstance(exc.__cause__, WireError):
        return ConnectFailed(address, str(exc.__cause__))
    cut = exc.__cause__ is None or isinstance(exc.__cause__, ConnectionError | ssl.SSLEOFError)
    if isinstance(exc.__cause__, ssl.SSLError) and not cut:
        # With TLS 1.3 the broker checks our certificate after the handshake is over for this side.
        return SecurityMismatch(address, f"TLS: {_alert(exc.__cause__, security)}")
    if isinstance(exc, RequestTimedOut):
        return ConnectFailed(address, f"the connection was accepted, but {exc.reason}")
    if isinstance(exc, WireError):
        kind = "an unsupported" if isinstance(exc, UnsupportedFormat) else "an unreadable"
        return ConnectFailed(address, f"{kind} response to the first request: {exc}")
    hint = f": does the port speak TLS? Then {Advice.USE_TLS}" if security.tls is None and cut else ""
    return ConnectFailed(address, f"{exc.reason} during the first request{hint}")


def _alert(exc: ssl.SSLError, security: Security) -> str:
    text = (exc.reason or str(exc)).replace("_", " ").lower()
    has_certificate = security.tls is not None and security.tls.cert_file is not None
    # Java calls a missing certificate a bad one.
    is_missing = "certificate required" in text or ("bad certificate" in text and not has_certificate)
    return text + (f": {Advice.CERTIFICATE}" if is_missing else "")
