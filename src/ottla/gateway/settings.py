"""Settings of a gateway as one value, checked as a whole: it is open to this machine alone, or guarded."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from ottla.errors import ConfigError
from ottla.gateway.access.gate import Access
from ottla.gateway.access.rules import EVERYTHING
from ottla.gateway.datagram.settings import DatagramSettings
from ottla.gateway.http.limits import Limits
from ottla.gateway.syslog.settings import SyslogSettings
from ottla.gateway.tls import ServerTls
from ottla.net.access import ClusterAccess
from ottla.tally.settings import Audit

CLIENT = "ottla-gateway"
COMPATIBILITIES = ("kafboy", "flasfka")
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")

_URL = re.compile(r"https?://[A-Za-z0-9._:\[\]-]+(/[A-Za-z0-9._~/-]*)?")


class Listen(NamedTuple):
    """Where to listen."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only programs of this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listen(text: str) -> Listen:
    """Return the address of `PORT`, `HOST:PORT` or `[IPV6]:PORT`. Raises `ValueError`."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not port.isascii() or not 0 <= int(port) < 65536 or "/" in host or "@" in host:
        raise ValueError(f"{text!r} is not a place to listen: write PORT, HOST:PORT or [IPV6]:PORT")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r} is not a place to listen: write an IPv6 address in brackets")
    return Listen(host or "127.0.0.1", int(port))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What `ottla gateway run` runs. Raises `ConfigError` for what does not go together."""

    cluster: ClusterAccess
    name: str = "default"
    """Of this gateway: its idempotency keys belong to it. Two with one name fence each other."""
    http: Listen | None = None
    ops: Listen | None = None
    """Health, metrics and the OpenAPI page; without login."""
    tls: ServerTls | None = None
    access: Access = field(default_factory=Access)
    is_insecure: bool = False
    """Whether anyone who can connect may write, beyond this machine, too."""
    limits: Limits = field(default_factory=Limits)
    spool: Path | None = None
    spool_bytes: int | None = None
    spool_fsync: bool = True
    buffer_bytes: int = 256 << 20
    max_record_bytes: int = 1_000_000
    linger: float = 0.0
    compression: str = "none"
    compat: frozenset[str] = frozenset()
    v2_status: str = "honest"
    """`honest`: a v2 request whose records all failed is not answered with 200; `confluent`: it is."""
    v2_commits: str = "last"
    """What an offset in a commit of a v2 consumer is: that of the `last` record that is done, as for the REST Proxy, or
    of the `next` one, as for Strimzi's bridge."""
    base_uri: str = ""
    """How clients reach this gateway, for the `base_uri` of consumer instances: a URL, or `relative` for a path alone.
    Empty: by the Host header of the request."""
    keeps_keys: bool = True
    """Whether Idempotency-Key is served, which needs a topic and transactions."""
    keys_topic: str = "ottla-gateway-keys"
    audit: Audit | None = None
    socket: DatagramSettings | None = None
    """The socket in dory's format."""
    syslog: SyslogSettings | None = None
    group_store: str | None = None
    """Where group reads keep positions and leases: `sqlite:///PATH` for one machine, `redis://...` for several."""
    unit_records: int = 1000
    unit_bytes: int = 1 << 19
    """How much one group read hands out at most, in offsets and on the disk of the broker."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"{self.name!r} is not a name for a gateway: use 1 to 100 of a-z A-Z 0-9 . _ -")
        for name in self.compat:
            if name not in COMPATIBILITIES:
                raise ConfigError(f"compat has {name!r}; accepted are {', '.join(COMPATIBILITIES)}")
        if self.v2_status not in ("honest", "confluent"):
            raise ConfigError(f"v2_status is {self.v2_status!r}; accepted are honest and confluent")
        if self.v2_commits not in ("last", "next"):
            raise ConfigError(f"v2_commits is {self.v2_commits!r}; accepted are last and next")
        if self.base_uri not in ("", "relative") and not _URL.fullmatch(self.base_uri):
            raise ConfigError(f"base_uri is {self.base_uri!r}: write http://HOST, https://HOST/PATH or relative")
        if self.access.takes_certificates and (self.tls is None or self.tls.client_ca_file is None):
            raise ConfigError("logins by certificate need TLS with client_ca_file")
        if self.http is not None and not self.http.is_loopback:
            self.check_exposed(str(self.http))
        if self.syslog is not None:
            self._check_syslog(self.syslog)

    def check_exposed(self, where: str) -> None:
        """Raise `ConfigError` unless a listener that other machines can reach is guarded, or open on purpose."""
        if self.is_insecure:
            return
        access = self.access
        has_logins = bool(access.secrets) or access.takes_certificates
        if not access.needs_login or not has_logins or EVERYTHING in access.rules or not access.rules:
            missing = "logins (secrets_file or client_ca_file)" if not has_logins else "rules"
            raise ConfigError(
                f"{where} can be reached from other machines: it needs {missing}, or the setting that lets anyone write"
            )

    def _check_syslog(self, syslog: SyslogSettings) -> None:
        """Raise `ConfigError` if strangers could send: without TLS and client certificates there is no login."""
        if self.is_insecure or syslog.anyone_may_write:
            return
        is_guarded = syslog.server_tls is not None and syslog.server_tls.needs_certificate
        open_to_all = (*syslog.udp, *syslog.tcp, *(() if is_guarded else syslog.tls))
        for where in (Listen(*address) for address in open_to_all):
            if not where.is_loopback:
                raise ConfigError(
                    f"syslog at {where} can be reached from other machines, and its senders have no login: use tls with"
                    " client_ca_file and needs_certificate = true, or say anyone_may_write = true in its table"
                )
