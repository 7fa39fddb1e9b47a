"""The server's side of TLS: its certificate, and whether clients must have one."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from ottla.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """The certificate of a listener. Clients need one of `client_ca_file` if that is set."""

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    clients_optional: bool = False
    """With `client_ca_file`: a client without a certificate is accepted, one with a wrong certificate is not."""


def server_context(tls: ServerTls) -> ssl.SSLContext:
    """Return the context of a listener. Raises `ConfigError` if a file cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.cert_file, tls.key_file, password=_no_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"the certificate {tls.cert_file} with the key {tls.key_file} cannot be used: {error}"
        ) from error
    if tls.client_ca_file is not None:
        try:
            context.load_verify_locations(tls.client_ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"the certificates of clients in {tls.client_ca_file} cannot be used: {error}") from error
        context.verify_mode = ssl.CERT_OPTIONAL if tls.clients_optional else ssl.CERT_REQUIRED
    return context


def _no_password() -> str:
    """Instead of a question on the terminal."""
    raise ValueError("the key has a password; use one without")
