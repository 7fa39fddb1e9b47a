"""Settings as small frozen values, checked when they are made, with an explanation when they are wrong.

Nothing here reads the environment, opens a file or connects; secrets never show in a `repr`.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any, Literal, NamedTuple

from ottla.errors import ConfigError, InputError
from ottla.text import printable

Path = str | PathLike[str]
ScramMechanism = Literal["SCRAM-SHA-256", "SCRAM-SHA-512"]


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        host = printable(self.host)  # brokers say where other brokers are
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


_ADDRESS = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\s:/\[\]@]+))(?::(?P<port>\d{1,5}))?", re.ASCII)
DEFAULT_PORT = 9092
LONGEST = 2_000_000.0
"""Seconds, 23 days: a socket counts its timeout in milliseconds of 31 bits and silently wraps around."""


def parse_address(text: str) -> Address:
    """`host:port`, with an IPv6 host in brackets; the port defaults to 9092."""
    match = _ADDRESS.fullmatch(text.strip())
    port = int(match["port"] or DEFAULT_PORT) if match else 0
    if match is None or not 0 < port < 65536:
        raise ConfigError(f"bootstrap address {text!r} is not HOST:PORT, for example localhost:9092 or [::1]:9092")
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
        _require_user(self.username)


@dataclass(frozen=True, slots=True)
class Scram:
    """SASL SCRAM: the password itself never crosses the network, and the broker proves that it knows it too."""

    username: str
    password: str = field(repr=False)
    mechanism: ScramMechanism = "SCRAM-SHA-512"

    def __post_init__(self) -> None:
        _require_user(self.username)
        if self.mechanism not in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            raise ConfigError(f"Scram mechanism {self.mechanism!r} is not SCRAM-SHA-256 or SCRAM-SHA-512")


@dataclass(frozen=True, slots=True)
class OAuthBearer:
    """SASL OAUTHBEARER: `token` is called for every new connection and returns the bearer token."""

    token: Callable[[], str] = field(repr=False)
    extensions: tuple[tuple[str, str], ...] = ()


Sasl = Plain | Scram | OAuthBearer


def _require_user(username: str) -> None:
    if not username:
        raise ConfigError("the SASL user name is empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """How connections are protected: nothing (PLAINTEXT), `tls`, `sasl`, or both (SASL_SSL)."""

    tls: Tls | None = None
    sasl: Sasl | None = None

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
    value; 1 is full jitter, 0 none.
    """

    initial: float = 0.05
    maximum: float = 1.0
    factor: float = 2.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
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
    """A setting must be of this class."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "aeiouAEIOU" else "a"
        raise ConfigError(f"{name} must be {article} {kind.__name__}, got {value!r}")


def check_callable(name: str, value: object, *, arguments: int) -> None:
    """What is handed in to be called must be a plain function of so many arguments: with any other, each call would
    fail, or do nothing."""
    if (why := why_not_called(value, arguments)) is not None:
        raise InputError(f"{name} {why}")


def why_not_called(value: object, arguments: int) -> str | None:
    """Why calling this with so many arguments would fail, or do nothing; None if it would not."""
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
