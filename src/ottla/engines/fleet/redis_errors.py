"""Maps errors of the redis package to Ottla errors with advice.

An exception comes in, an Ottla exception goes out. Nothing is sent or closed here.
"""

from __future__ import annotations

import re
import ssl

from redis import exceptions

from ottla.engines.fleet.redis_address import Place
from ottla.errors import ConfigError, FleetError, StoreIncompatible, StoreUnavailable

_CODES = {
    exceptions.AuthenticationError: "NOAUTH",
    exceptions.AuthenticationWrongNumberOfArgsError: "NOAUTH",
    exceptions.NoPermissionError: "NOPERM",
    exceptions.ReadOnlyError: "READONLY",
    exceptions.BusyLoadingError: "LOADING",
    exceptions.OutOfMemoryError: "OOM",
    exceptions.MasterDownError: "MASTERDOWN",
    exceptions.ClusterDownError: "CLUSTERDOWN",
    exceptions.MovedError: "MOVED",
    exceptions.TryAgainError: "TRYAGAIN",
}
"""Codes that the package strips from the text of these errors."""

_ROWS: dict[str, tuple[type[FleetError] | type[ConfigError], str]] = {
    "NOAUTH": (ConfigError, "it rejects the user and password in its address, or requires them"),
    "NOPERM": (ConfigError, "its user lacks the right to run scripts or to use the keys ottla:*"),
    "DENIED": (ConfigError, "it is in protected mode and only serves its own machine"),
    "DB index is out of range": (ConfigError, "it has no database with that number"),
    "MOVED": (ConfigError, "it is a node of a cluster: use the address redis+cluster://HOST:PORT,HOST:PORT"),
    "READONLY": (StoreUnavailable, "it is a read-only replica"),
    "LOADING": (StoreUnavailable, "it is loading its data from disk"),
    "MISCONF": (StoreUnavailable, "it cannot save its data to disk"),
    "OOM": (StoreUnavailable, "its memory is full"),
    "BUSY": (StoreUnavailable, "it is busy running a script"),
    "NOREPLICAS": (StoreUnavailable, "it has too few replicas"),
    "MASTERDOWN": (StoreUnavailable, "it is a replica that has lost its master"),
    "CLUSTERDOWN": (StoreUnavailable, "the cluster is down"),
    "TRYAGAIN": (StoreUnavailable, "the cluster is moving the group to another node"),
    "WRONGTYPE": (StoreIncompatible, "keys of the group hold something else"),
}

# When Redis 6 refuses a command inside a script, the code is in the middle of the text.
_KNOWN = re.compile("|".join(rf"\b{code}\b" for code in sorted(_ROWS, key=len, reverse=True)))

# Matches texts, since Python does not know the names of all errors of newer OpenSSL versions.
_NEVER_AGREED = re.compile(
    r"wrong version number|record layer failure|packet length too long|https? (proxy )?request"
    r"|unknown protocol|unsupported protocol|no protocols available|\balert\b"
)


def meaning(error: Exception, place: Place, outside: BaseException | None) -> FleetError | ConfigError:
    """Return the error to raise. `outside` is the exception that the caller was already handling, if any."""
    where, text = str(place), first_line(error)
    if (row := _ROWS.get(code(error))) is not None:
        kind, explanation = row
        reason = f"{explanation} ({text})"
        if kind is StoreUnavailable:
            return StoreUnavailable(where, reason)
        return kind(f"the fleet's store {where} cannot be used: {reason}")
    if place.tls is not None and (refused := _tls_refusal(error, outside)) is not None:
        return ConfigError(f"the fleet's store {where} and this node cannot agree on TLS: {refused}")
    if isinstance(error, exceptions.InvalidResponse | ValueError):
        return StoreIncompatible(f"the fleet's store {where} is not a Redis: {text}")
    if isinstance(error, exceptions.ResponseError):
        return StoreIncompatible(f"the fleet's store {where} lacks what a fleet needs: {text}")
    return StoreUnavailable(where, text)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its class name."""
    return (str(error) or type(error).__name__).splitlines()[0]


def code(error: Exception) -> str:
    """Return the Redis error code of a refused command, or "" if it is not one of the known codes."""
    if (code := _CODES.get(type(error))) is not None:
        return code
    if isinstance(error, exceptions.ResponseError):
        if "Protocol error: unauthenticated" in str(error):  # Redis >= 6.2.6, for a long command before AUTH
            return "NOAUTH"
        if match := _KNOWN.search(str(error)):
            return match[0]
    return ""


def _tls_refusal(error: BaseException, outside: BaseException | None) -> str | None:
    """Return why the TLS handshake can never succeed; None for errors that may pass, such as a dropped connection."""
    cause: BaseException | None = error
    while cause is not None and cause is not outside:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"the server's certificate is not trusted: {cause.verify_message} (name its CA with ?ca=FILE)"
        if isinstance(cause, ssl.SSLError) and _NEVER_AGREED.search(str(cause)):
            return f"{first_line(cause)} (one side has no TLS, or the server requires a client certificate)"
        cause = cause.__cause__ or cause.__context__
    return None
