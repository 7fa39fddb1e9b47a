"""Certificates for the secure listeners, as PEM files: an authority, one for all brokers, one for clients.

They are made anew for every cluster and valid for 127.0.0.1 and localhost only.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trustme import LeafCert


@dataclass(frozen=True, slots=True)
class Certificates:
    """Where the PEM files of one cluster are."""

    directory: Path

    @property
    def authority(self) -> Path:
        """What both sides trust."""
        return self.directory / "ca.pem"

    @property
    def broker(self) -> Path:
        """The brokers' key and certificate in one file, as Kafka's PEM key store wants them."""
        return self.directory / "broker.pem"

    @property
    def client(self) -> Path:
        """The client's certificate."""
        return self.directory / "client.pem"

    @property
    def client_key(self) -> Path:
        """The key of the client's certificate."""
        return self.directory / "client.key"

    def create(self) -> None:
        """Make the authority and issue both certificates."""
        import trustme  # here, because commands that only look at a cluster do not need it

        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = trustme.CA(organization_name="Ottla local cluster")
        broker = authority.issue_cert("localhost", "127.0.0.1", "::1")
        client = authority.issue_cert("client@ottla.invalid", common_name="ottla-client")
        authority.cert_pem.write_to_path(self.authority)
        _write_private(self.broker, _key(broker) + _chain(broker))
        _write_private(self.client_key, _key(client))
        self.client.write_bytes(_chain(client))


def _chain(certificate: LeafCert) -> bytes:
    return b"".join(blob.bytes() for blob in certificate.cert_chain_pems)


def _key(certificate: LeafCert) -> bytes:
    """As PKCS #8, the only form Kafka reads."""
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )

    key = load_pem_private_key(certificate.private_key_pem.bytes(), password=None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write_private(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
