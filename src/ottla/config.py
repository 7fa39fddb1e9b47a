"""Settings as small frozen values that are checked on construction and explain what is wrong.

This module must not read the environment, open a file or connect. Secrets never show in a `repr`.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from os import PathLike
from types import FunctionType
from typing import Any, Literal, NamedTuple

from ottla.errors import Advice, ConfigError, InputError
from ottla.text import printable, redacted

Path = str | PathLike[str]
ScramMechanism = Literal["SCRAM-SHA-256", "SCRAM-SHA-512"]
SCRAM_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_EXTENSION_NAME = re.compile("[A-Za-z]+")
_EXTENSION_VALUE = re.compile("[\x21-\x7e \t\r\n]+")


class Address(NamedTuple):
    """The address of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        host = printable(self.host)  # may come from a broker's metadata
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


# HOST, HOST:PORT, [IPV6] or [IPV6]:PORT; "@" and "/" are excluded, so that a URL is rejected.
_ADDRESS = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\s:/\[\]@]+))(?::(?P<port>\d{1,9}))?", re.ASCII)
DEFAULT_PORT = 9092
LONGEST = 2_000_000.0
"""Seconds, 23 days: a socket's timeout is 31 bits of milliseconds and silently wraps around."""


def parse_address(text: str) -> Address:
    """Parse `host:port`, with an IPv6 host in brackets. The port defaults to 9092. Raises `ConfigError`."""
    if "@" in text:
        shown = redacted(text.strip())
        raise ConfigError(f"bootstrap address {shown!r} has more than HOST:PORT: {Advice.LOGIN}")
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        shown = redacted(text)
        raise ConfigError(f"bootstrap address {shown!r} is not HOST:PORT, for example localhost:9092 or [::1]:9092")
    port = int(match["port"] or DEFAULT_PORT)
    if not 0 < port < 65536:
        raise ConfigError(f"bootstrap address {text!r}: a port is 1 to 65535, for example localhost:9092")
    return Address(match["ipv6"] or match["host"], port)


def parse_bootstrap(servers: str | Iterable[str | Address]) -> tuple[Address, ...]:
    """Parse bootstrap addresses from `"a:9092,b:9092"` or a list, without duplicates. Raises `ConfigError`."""
    if isinstance(servers, Mapping):
        raise ConfigError("bootstrap is a mapping; pass the addresses alone, for example 'localhost:9092'")
    entries = servers.split(",") if isinstance(servers, str) else list(servers or ())
    parsed = [e if isinstance(e, Address) else parse_address(e) for e in entries if isinstance(e, Address) or e.strip()]
    if not parsed:
        raise ConfigError("no bootstrap address given: pass one or more HOST:PORT, for example localhost:9092")
    return tuple(dict.fromkeys(parsed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS to the brokers. Without `ca_file`, trusts the system's certificate authorities."""

    ca_file: Path | None = None
    """Certificate authorities to trust instead of the system's, PEM."""
    cert_file: Path | None = None
    """The client's certificate, PEM, for brokers that require one."""
    key_file: Path | None = None
    """The key of the certificate, if it is not in `cert_file`."""
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True
    """Whether the broker's certificate must be for its host name."""

    def __post_init__(self) -> None:
        if self.key_file is not None and self.cert_file is None:
            raise ConfigError("Tls(key_file=...) needs cert_file as well: the certificate that belongs to the key")

    def absolute(self) -> Tls:
        """Return the same settings with absolute paths, resolved against the current directory."""
        names = ("ca_file", "cert_file", "key_file")
        paths = {name: path for name in names if (path := getattr(self, name)) is not None}
        return replace(self, **{name: os.path.abspath(path) for name, path in paths.items()})


@dataclass(frozen=True, slots=True)
class Plain:
    """SASL PLAIN: user and password, readable on the network. Use it with TLS."""

    username: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        _require_login("Plain", self.username, self.password)
        if "\0" in self.username + self.password:  # NUL separates the two on the wire
            raise ConfigError("Plain: user name and password cannot contain the character NUL")


@dataclass(frozen=True, slots=True)
class Scram:
    """SASL SCRAM: the password never crosses the network, and the broker proves that it knows it too."""

    username: str
    password: str = field(repr=False)
    mechanism: ScramMechanism = "SCRAM-SHA-512"

    def __post_init__(self) -> None:
        _require_login("Scram", self.username, self.password)
        # If the arguments are in the wrong order, one of them may be the password: show none.
        if self.mechanism not in SCRAM_MECHANISMS or {self.username, self.password} & {*SCRAM_MECHANISMS}:
            accepted = " or ".join(SCRAM_MECHANISMS)
            raise ConfigError(f"Scram takes username, password and mechanism, in this order; mechanism is {accepted}")


@dataclass(frozen=True, slots=True)
class OAuthBearer:
    """SASL OAUTHBEARER: calls `token` for every new connection to get the bearer token.

    Brokers, and anyone who can read the connection, can use the token as this client does. Use it with TLS.
    `ottla.net.tokens` has callables for a file and for a token endpoint.
    """

    token: Callable[[], str] = field(repr=False)
    extensions: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Names and values that are sent with the token (KIP-342)."""

    def __post_init__(self) -> None:
        if not callable(self.token):
            raise ConfigError("OAuthBearer(token=...) is a function that returns the token, for example lambda: token")
        for name, value in self.extensions:
            if not _EXTENSION_NAME.fullmatch(name) or name == "auth" or not _EXTENSION_VALUE.fullmatch(value):
                raise ConfigError(
                    f"OAuthBearer(extensions=...) {name!r}: a name has letters only and is not 'auth', a value has"
                    " printable ASCII characters (RFC 7628)"
                )


Sasl = Plain | Scram | OAuthBearer


def _require_login(kind: str, username: object, password: object) -> None:
    """Check a login. Shows no value: the arguments may be in the wrong order."""
    for name, value in (("username", username), ("password", password)):
        if not isinstance(value, str):
            raise ConfigError(f"{kind}({name}=...) must be a str, got {_kind(value)}")
    if not username:
        raise ConfigError(f"{kind}: the user name is empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """How connections are protected: not at all (PLAINTEXT), with `tls`, with `sasl`, or both (SASL_SSL).

    `require_tls` rejects a value without `tls`, for programs whose settings come from elsewhere. Without it, clients
    log a warning if a password or token would cross the network in clear text.
    """

    tls: Tls | None = None
    sasl: Sasl | None = None
    require_tls: bool = False

    def __post_init__(self) -> None:
        for name, value, kinds in (("tls", self.tls, Tls), ("sasl", self.sasl, Plain | Scram | OAuthBearer)):
            if value is not None and not isinstance(value, kinds):
                accepted = "Tls" if name == "tls" else "Plain, Scram or OAuthBearer"
                raise ConfigError(f"Security({name}=...) must be {accepted}, got {_kind(value)}")
        if self.require_tls and self.tls is None:
            raise ConfigError("Security(require_tls=True) needs tls=Tls(...)")

    @property
    def exposed(self) -> str:
        """What would cross the network in clear text: "password", "token" or ""."""
        if self.tls is not None:
            return ""
        return {Plain: "password", OAuthBearer: "token"}.get(type(self.sasl), "")

    @property
    def protocol(self) -> str:
        """Kafka's name for this combination, as in `security.protocol`."""
        if self.sasl is not None:
            return "SASL_SSL" if self.tls is not None else "SASL_PLAINTEXT"
        return "SSL" if self.tls is not None else "PLAINTEXT"


PLAINTEXT = Security()


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The wait between attempts: exponential from `initial` to `maximum` seconds, randomly shortened.

    `jitter` is the random fraction of each wait: 0.5, the default, waits between half and all of the exponential value;
    1 is full jitter, 0 none. `first_contact` makes programs fail early if nothing is there: how often all addresses are
    tried until a broker has responded for the first time. None: until the call times out.
    """

    initial: float = 0.05
    maximum: float = 1.0
    factor: float = 2.0
    """The growth of the wait from one attempt to the next."""
    jitter: float = 0.5
    first_contact: int | None = None

    def __post_init__(self) -> None:
        if self.first_contact is not None:
            check_whole("Retry(first_contact=...)", self.first_contact, lowest=1, highest=1_000_000)
        if not 0 < self.initial <= self.maximum <= LONGEST:
            raise ConfigError(
                f"Retry needs 0 < initial <= maximum <= {LONGEST:,.0f}, got {self.initial}, {self.maximum}"
            )
        if not 1 <= self.factor <= 1000 or not 0 <= self.jitter <= 1:
            wrong = f"got {self.factor} and {self.jitter}"
            raise ConfigError(f"Retry needs 1 <= factor <= 1000 and 0 <= jitter <= 1, {wrong}")

    def wait(self, failures: int, chance: float) -> float:
        """Return the seconds to wait after `failures` failures in a row (1 or more). `chance` is random in [0, 1)."""
        # The exponent is limited, or the power would overflow after many failures.
        full = min(self.maximum, self.initial * self.factor ** min(failures - 1, 64))
        return full * (1 - self.jitter * chance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Timeouts in seconds.

    `connect` covers TCP, TLS and SASL of a connection; `request` a request on it until its response is complete;
    `total` a call with all its retries and addresses. `metadata_age` is how long metadata counts as fresh without an
    error.
    """

    connect: float = 10.0
    request: float = 30.0
    total: float = 60.0
    metadata_age: float = 300.0

    def __post_init__(self) -> None:
        for name in ("connect", "request", "total", "metadata_age"):
            seconds = getattr(self, name)
            if not isinstance(seconds, int | float) or not 0 < seconds <= LONGEST:
                raise ConfigError(
                    f"Timeouts({name}=...) must be positive seconds up to {LONGEST:,.0f}, got {seconds!r}"
                )


def check_kind(name: str, value: object, kind: type) -> None:
    """Raise `ConfigError` if a setting is not of this class. Shows its value only if it cannot hold a secret."""
    if not isinstance(value, kind):
        shown = repr(value) if issubclass(kind, int | Enum) else _kind(value)
        raise ConfigError(f"{name} must be {_article(kind.__name__)}, got {shown}")


def _kind(value: object) -> str:
    """Describe a wrong value without its content, which may be a secret."""
    return repr(value) if value is None or isinstance(value, int | float | Enum) else _article(type(value).__name__)


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def check_callable(name: str, value: object, *, arguments: int) -> None:
    """Raise `InputError` if a callback is not a plain function of this number of arguments.

    With anything else, each call would fail or do nothing.
    """
    if (reason := why_not_called(value, arguments)) is not None:
        raise InputError(f"{name} {reason}")


def why_not_called(value: object, arguments: int) -> str | None:
    """Return why calling this with `arguments` arguments would fail or do nothing; None if it would not."""
    if _is_plain(value, arguments):
        return None
    if not callable(value):
        return f"is {type(value).__name__}, which cannot be called: a function is needed"
    for matches, kind in _LATER:
        if matches(value) or matches(inspect.getattr_static(type(value), "__call__", None)):
            return f"is {kind}: calling it would do nothing; write a plain function"
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return None  # some callables written in C have no signature
    try:
        signature.bind(*[None] * arguments)
    except TypeError as error:
        name = getattr(value, "__qualname__", type(value).__qualname__)
        count = "one argument" if arguments == 1 else f"{arguments} arguments"
        return f"{name}{signature} cannot be called with {count}, which is what it gets: {error}"
    return None


def _is_plain(value: object, arguments: int) -> bool:
    """Whether it obviously can be called this way. Callbacks of single records are checked, so this must be fast."""
    # A function with attributes may be wrapped (`functools.wraps`) and have another signature.
    if type(value) is not FunctionType or value.__dict__:
        return False
    code = value.__code__
    least = code.co_argcount - len(value.__defaults__ or ())
    return least <= arguments <= code.co_argcount and not code.co_kwonlyargcount and not code.co_flags & _NOT_PLAIN


_NOT_PLAIN = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
_LONGEST_TEXT = (1 << 15) - 1
_LATER: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (inspect.iscoroutinefunction, "a coroutine function (async def)"),
    (inspect.isasyncgenfunction, "an asynchronous generator"),
    (inspect.isgeneratorfunction, "a generator function (it has a yield)"),
)


def check_seconds(owner: str, name: str, value: object, *, lowest: float) -> None:
    """Raise `ConfigError` if a setting is not a number of seconds within the limits."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not lowest <= value <= LONGEST:
        raise ConfigError(f"{owner}({name}=...) must be seconds from {lowest:g} to {LONGEST:,.0f}, got {value!r}")


def check_whole(name: str, value: object, *, lowest: int, highest: int) -> None:
    """Raise `ConfigError` if a setting is not a whole number in this range."""
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise ConfigError(f"{name} must be a whole number from {lowest:,} to {highest:,}, got {value!r}")


def check_group(what: str, group: object) -> None:
    """Raise `ConfigError` if this is not the name of a consumer group."""
    if not isinstance(group, str) or not group:
        raise ConfigError(f"{what} must be a name, got {group!r}")
    check_name(what, group)


def check_name(what: str, name: object) -> None:
    """Raise `ConfigError` if a name, such as a client id, does not fit into a request: every request would fail."""
    check_kind(what, name, str)
    assert isinstance(name, str)
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise ConfigError(f"{what} {name!r} cannot be encoded as UTF-8: {error.reason}") from error
    if size > _LONGEST_TEXT:
        raise ConfigError(f"{what} has {size:,} bytes, and Kafka accepts at most {_LONGEST_TEXT:,}")
