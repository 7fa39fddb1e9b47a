"""The server's side of TLS: its certificate, and the authorities whose clients are let in."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from ottla.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """Files of a listener. With `client_ca_file` clients may show a certificate, with `needs_certificate` they must."""

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    needs_certificate: bool = False

    def __post_init__(self) -> None:
        if self.needs_certificate and self.client_ca_file is None:
            raise ConfigError("certificates of clients need client_ca_file: the authorities that sign them")

    def context(self, *protocols: str) -> ssl.SSLContext:
        """Return a context that offers these protocols by ALPN. Raises `ConfigError` for files that cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if protocols:
            context.set_alpn_protocols(list(protocols))
        try:
            context.load_cert_chain(self.cert_file, self.key_file, password=_no_password)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"the certificate {self.cert_file} with its key cannot be used: {error}") from error
        if self.client_ca_file is not None:
            try:
                context.load_verify_locations(self.client_ca_file)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(f"the authorities {self.client_ca_file} cannot be used: {error}") from error
            context.verify_mode = ssl.CERT_REQUIRED if self.needs_certificate else ssl.CERT_OPTIONAL
        return context


def _no_password() -> str:
    raise ConfigError("the key has a password: give the gateway one without, readable by its user alone")
