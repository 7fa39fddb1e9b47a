"""Settings as small frozen values, checked when they are made, with an explanation when they are wrong.

Nothing here reads the environment, opens a file or connects; secrets never show in a `repr`.
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
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        host = printable(self.host)  # brokers say where other brokers are
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


_ADDRESS = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\s:/\[\]@]+))(?::(?P<port>\d{1,9}))?", re.ASCII)
DEFAULT_PORT = 9092
LONGEST = 2_000_000.0
"""Seconds, 23 days: a socket counts its timeout in milliseconds of 31 bits and silently wraps around."""


def parse_address(text: str) -> Address:
    """`host:port`, with an IPv6 host in brackets; the port defaults to 9092."""
    if "@" in text:
        told = redacted(text.strip())
        raise ConfigError(f"bootstrap address {told!r} has more than HOST:PORT: {Advice.LOGIN}")
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        told = redacted(text)
        raise ConfigError(f"bootstrap address {told!r} is not HOST:PORT, for example localhost:9092 or [::1]:9092")
    port = int(match["port"] or DEFAULT_PORT)
    if not 0 < port < 65536:
        raise ConfigError(f"bootstrap address {text!r}: a port is 1 to 65535, for example localhost:9092")
    return Address(match["ipv6"] or match["host"], port)


def parse_bootstrap(servers: str | Iterable[str | Address]) -> tuple[Address, ...]:
    """One or several bootstrap addresses, from `"a:9092,b:9092"` or a list of such, without repeats."""
    if isinstance(servers, Mapping):
        raise ConfigError("bootstrap is a mapping; pass the addresses alone, for example 'localhost:9092'")
    entries = servers.split(",") if isinstance(servers, str) else list(servers or ())
    parsed = [e if isinstance(e, Address) else parse_address(e) for e in entries if isinstance(e, Address) or e.strip()]
    if not parsed:
        raise ConfigError("no bootstrap address given: pass one or more HOST:PORT, for example localhost:9092")
    return tuple(dict.fromkeys(parsed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS towards the brokers. Without `ca_file` the system's certificate authorities are trusted."""

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True

    def __post_init__(self) -> None:
        if self.key_file is not None and self.cert_file is None:
            raise ConfigError("Tls(key_file=...) needs cert_file as well: the certificate that belongs to the key")

    def absolute(self) -> Tls:
        """The same, with the files as they are seen from the current directory of this process."""
        names = ("ca_file", "cert_file", "key_file")
        given = {name: path for name in names if (path := getattr(self, name)) is not None}
        return replace(self, **{name: os.path.abspath(path) for name, path in given.items()})


@dataclass(frozen=True, slots=True)
class Plain:
    """SASL PLAIN: user and password, readable by whoever reads the connection. Use it inside TLS."""

    username: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        _require_login("Plain", self.username, self.password)
        if "\0" in self.username + self.password:  # it stands between the two on the wire
            raise ConfigError("Plain: user name and password cannot have the character NUL")


@dataclass(frozen=True, slots=True)
class Scram:
    """SASL SCRAM: the password itself never crosses the network, and the broker proves that it knows it too."""

    username: str
    password: str = field(repr=False)
    mechanism: ScramMechanism = "SCRAM-SHA-512"

    def __post_init__(self) -> None:
        _require_login("Scram", self.username, self.password)
        # Arguments in another order than the class has them: what stands here may be the password.
        if self.mechanism not in SCRAM_MECHANISMS or {self.username, self.password} & {*SCRAM_MECHANISMS}:
            wanted = " or ".join(SCRAM_MECHANISMS)
            raise ConfigError(f"Scram takes username, password and mechanism, in this order; mechanism is {wanted}")


@dataclass(frozen=True, slots=True)
class OAuthBearer:
    """SASL OAUTHBEARER: `token` is called for every new connection and returns the bearer token.

    Brokers, and all who read the connection, can use it as this client does. Use it inside TLS. `ottla.net.tokens` has
    callables for a file and for a token endpoint.
    """

    token: Callable[[], str] = field(repr=False)
    extensions: tuple[tuple[str, str], ...] = field(default=(), repr=False)

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
    """No value is shown: arguments may be in the wrong order."""
    for name, value in (("username", username), ("password", password)):
        if not isinstance(value, str):
            raise ConfigError(f"{kind}({name}=...) must be a str, got {_kind(value)}")
    if not username:
        raise ConfigError(f"{kind}: the user name is empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """How connections are protected: nothing (PLAINTEXT), `tls`, `sasl`, or both (SASL_SSL).

    With `require_tls` a value without `tls` is refused: for programs whose settings come from elsewhere. Without it,
    clients warn in their log when a password or token would cross the network readable.
    """

    tls: Tls | None = None
    sasl: Sasl | None = None
    require_tls: bool = False

    def __post_init__(self) -> None:
        for name, value, kinds in (("tls", self.tls, Tls), ("sasl", self.sasl, Plain | Scram | OAuthBearer)):
            if value is not None and not isinstance(value, kinds):
                wanted = "Tls" if name == "tls" else "Plain, Scram or OAuthBearer"
                raise ConfigError(f"Security({name}=...) must be {wanted}, got {_kind(value)}")
        if self.require_tls and self.tls is None:
            raise ConfigError("Security(require_tls=True) needs tls=Tls(...), with which brokers are asked for TLS")

    @property
    def exposed(self) -> str:
        """What would cross the network readable for all on the way: "password", "token" or nothing."""
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
    """Waiting between attempts: exponential from `initial` to `maximum` seconds, shortened at random.

    `jitter` is the share of each wait that is random: 0.5, the default, waits between half and all of the exponential
    value; 1 is full jitter, 0 none. `first_contact` is for programs that should fail soon when nothing is there: how
    often all addresses are tried until a broker has answered for the first time. None: until the call's time is over.
    """

    initial: float = 0.05
    maximum: float = 1.0
    factor: float = 2.0
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
        """Seconds to wait after `failures` failures in a row (1 or more); `chance` is a random number in [0, 1)."""
        full = min(self.maximum, self.initial * self.factor ** min(failures - 1, 64))
        return full * (1 - self.jitter * chance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds. `connect` covers TCP, TLS and SASL of one connection; `request` one request on it until its answer
    is complete; `total` one call with all its retries and all addresses; `metadata_age` how long metadata is trusted
    without an error that says otherwise."""

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
    """A setting must be of this class. What is there instead is shown only where it cannot hold a secret."""
    if not isinstance(value, kind):
        shown = repr(value) if issubclass(kind, int | Enum) else _kind(value)
        raise ConfigError(f"{name} must be {_article(kind.__name__)}, got {shown}")


def _kind(value: object) -> str:
    """What a wrong value is, without its content, which may be a secret."""
    return repr(value) if value is None or isinstance(value, int | float | Enum) else _article(type(value).__name__)


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def check_callable(name: str, value: object, *, arguments: int) -> None:
    """What is handed in to be called must be a plain function of so many arguments: with any other, each call would
    fail, or do nothing."""
    if (why := why_not_called(value, arguments)) is not None:
        raise InputError(f"{name} {why}")


def why_not_called(value: object, arguments: int) -> str | None:
    """Why calling this with so many arguments would fail, or do nothing; None if it would not."""
    if _is_plain(value, arguments):
        return None
    if not callable(value):
        return f"is {type(value).__name__}, which cannot be called: a function is needed"
    for is_such, kind in _LATER:
        if is_such(value) or is_such(inspect.getattr_static(type(value), "__call__", None)):
            return f"is {kind}: calling it would do nothing; write a plain function"
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return None  # some that are written in C do not tell
    try:
        signature.bind(*[None] * arguments)
    except TypeError as error:
        name = getattr(value, "__qualname__", type(value).__qualname__)
        count = "one argument" if arguments == 1 else f"{arguments} arguments"
        return f"{name}{signature} cannot be called with {count}, which is what it gets: {error}"
    return None


def _is_plain(value: object, arguments: int) -> bool:
    """Whether it is clear at first sight that it can be called so: callbacks are checked for single records."""
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
    """A setting must be a number of seconds that a clock can count."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not lowest <= value <= LONGEST:
        raise ConfigError(f"{owner}({name}=...) must be seconds from {lowest:g} to {LONGEST:,.0f}, got {value!r}")


def check_whole(name: str, value: object, *, lowest: int, highest: int) -> None:
    """A setting must be a whole number in this range."""
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise ConfigError(f"{name} must be a whole number from {lowest:,} to {highest:,}, got {value!r}")


def check_name(what: str, name: object) -> None:
    """A name that fits into a request, such as a client id: else every request would fail, one after the other."""
    check_kind(what, name, str)
    assert isinstance(name, str)
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise ConfigError(f"{what} {name!r} cannot be encoded as UTF-8: {error.reason}") from error
    if size > _LONGEST_TEXT:
        raise ConfigError(f"{what} has {size:,} bytes, and Kafka takes {_LONGEST_TEXT:,} at most")
