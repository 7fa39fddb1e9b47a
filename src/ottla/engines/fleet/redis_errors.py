"""What the errors of the redis package mean for a fleet: which error of Ottla's, and which advice.

An exception comes in, another one goes out. Nothing is sent or closed here.
"""

from __future__ import annotations

import re
import ssl

from redis import exceptions

from ottla.engines.fleet.redis_address import Place
from ottla.errors import ConfigError, FleetError, StoreIncompatible, StoreUnavailable


def meaning(error: Exception, place: Place, outside: BaseException | None) -> FleetError | ConfigError:
    """The error that a caller gets; `outside` is what the caller was handling when the call began, if anything."""
    where, text = str(place), first_line(error)
    if (row := _ROWS.get(code(error))) is not None:
        kind, explanation = row
        reason = f"{explanation} ({text})"
        if kind is StoreUnavailable:
            return StoreUnavailable(where, reason)
        return kind(f"the fleet's store {where} cannot be used: {reason}")
    if place.tls is not None and (refused := _tls_refusal(error, outside)) is not None:
        return ConfigError(f"the fleet's store {where} and this node do not agree about TLS: {refused}")
    if isinstance(error, exceptions.InvalidResponse | ValueError):
        return StoreIncompatible(f"the fleet's store {where} is not a Redis: {text}")
    if isinstance(error, exceptions.ResponseError):
        return StoreIncompatible(f"the fleet's store {where} cannot do what a fleet needs: {text}")
    return StoreUnavailable(where, text)


def first_line(error: BaseException) -> str:
    """The text of an error that belongs into another one."""
    return (str(error) or type(error).__name__).splitlines()[0]


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
"""The codes that the package leaves out of the text."""

_ROWS: dict[str, tuple[type[FleetError] | type[ConfigError], str]] = {
    "NOAUTH": (ConfigError, "it refuses the user and the password in its address, or wants some"),
    "NOPERM": (ConfigError, "its user lacks the right to run scripts or to use the keys ottla:*"),
    "DENIED": (ConfigError, "it only serves its own machine, in protected mode"),
    "DB index is out of range": (ConfigError, "it has no database of that number"),
    "MOVED": (ConfigError, "it is a node of a cluster, whose address is redis+cluster://HOST:PORT,HOST:PORT"),
    "READONLY": (StoreUnavailable, "it is a replica, and only its master can be written to"),
    "LOADING": (StoreUnavailable, "it is reading its data from disk"),
    "MISCONF": (StoreUnavailable, "it cannot save its data to disk"),
    "OOM": (StoreUnavailable, "its memory is full"),
    "BUSY": (StoreUnavailable, "it is busy with somebody's script"),
    "NOREPLICAS": (StoreUnavailable, "it has too few replicas"),
    "MASTERDOWN": (StoreUnavailable, "it is a replica that has lost its master"),
    "CLUSTERDOWN": (StoreUnavailable, "the cluster is down"),
    "TRYAGAIN": (StoreUnavailable, "the cluster is moving the group to another node"),
    "WRONGTYPE": (StoreIncompatible, "keys of the group hold something else"),
}

# Where a command of a script was refused, Redis 6 has the code in the middle of its text.
_KNOWN = re.compile("|".join(rf"\b{code}\b" for code in sorted(_ROWS, key=len, reverse=True)))


def code(error: Exception) -> str:
    """The code by which a server says why it did not carry something out; empty where there is none that is known."""
    if (code := _CODES.get(type(error))) is not None:
        return code
    if isinstance(error, exceptions.ResponseError):
        if "Protocol error: unauthenticated" in str(error):  # to a long command without a password, since 6.2.6
            return "NOAUTH"
        if match := _KNOWN.search(str(error)):
            return match[0]
    return ""


# Their texts, since Python does not know the names of all errors that a newer OpenSSL has.
_NEVER_AGREED = re.compile(
    r"wrong version number|record layer failure|packet length too long|https? (proxy )?request"
    r"|unknown protocol|unsupported protocol|no protocols available|\balert\b"
)


def _tls_refusal(error: BaseException, outside: BaseException | None) -> str | None:
    """Why the two sides will never agree; None for what passes, as an end or a silence in the middle of it."""
    cause: BaseException | None = error
    while cause is not None and cause is not outside:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"the server's certificate is not trusted: {cause.verify_message} (?ca=FILE names who signed it)"
        if isinstance(cause, ssl.SSLError) and _NEVER_AGREED.search(str(cause)):
            return f"{first_line(cause)}, as where one side has no TLS, or the server wants a certificate"
        cause = cause.__cause__ or cause.__context__
    return None
