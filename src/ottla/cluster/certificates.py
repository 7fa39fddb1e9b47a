"""Certificates of the secure listeners, as PEM files: a certificate authority, one for all brokers, one for clients.

Each cluster gets its own, valid for 127.0.0.1 and localhost only. The folder also holds the key that signs OAUTHBEARER
tokens, and its public half in the form that brokers read.
"""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trustme import LeafCert


KEY_ID = "ottla"
"""The id of the key that signs tokens."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """The PEM files of one cluster."""

    directory: Path

    @property
    def authority(self) -> Path:
        """The certificate authority that both sides trust."""
        return self.directory / "ca.pem"

    @property
    def broker(self) -> Path:
        """The brokers' key and certificate in one file, as Kafka's PEM key store expects them."""
        return self.directory / "broker.pem"

    @property
    def client(self) -> Path:
        """The client's certificate."""
        return self.directory / "client.pem"

    @property
    def client_key(self) -> Path:
        """The key of the client's certificate."""
        return self.directory / "client.key"

    @property
    def token_key(self) -> Path:
        """The key that signs tokens."""
        return self.directory / "token.key"

    @property
    def token_keys(self) -> Path:
        """The public half of the token key, as a JSON Web Key Set."""
        return self.directory / "tokens.json"

    def create(self) -> None:
        """Create the files that do not exist yet."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.authority.exists():
            self._create_certificates()
        if not self.token_keys.exists():
            self._create_token_key()

    def sign(self, content: bytes) -> bytes:
        """Sign with the token key by ES256 (RFC 7518)."""
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey
        from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        key = load_pem_private_key(self.token_key.read_bytes(), password=None)
        assert isinstance(key, EllipticCurvePrivateKey)
        return b"".join(
            number.to_bytes(32, "big") for number in decode_dss_signature(key.sign(content, ECDSA(SHA256())))
        )

    def _create_token_key(self) -> None:
        from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        key = generate_private_key(SECP256R1())
        _write_private(self.token_key, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        point = key.public_key().public_numbers()
        coordinates = {name: _number(value) for name, value in (("x", point.x), ("y", point.y))}
        web_key = {"kty": "EC", "crv": "P-256", "kid": KEY_ID, "use": "sig", "alg": "ES256", **coordinates}
        self.token_keys.write_text(json.dumps({"keys": [web_key]}))

    def _create_certificates(self) -> None:
        """Create the authority and issue both certificates."""
        import trustme  # Imported here: commands that only inspect a cluster do not need it.

        authority = trustme.CA(organization_name="Ottla local cluster")
        broker = authority.issue_cert("localhost", "127.0.0.1", "::1")
        client = authority.issue_cert("client@ottla.invalid", common_name="ottla-client")
        authority.cert_pem.write_to_path(self.authority)
        _write_private(self.broker, _key(broker) + _chain(broker))
        _write_private(self.client_key, _key(client))
        self.client.write_bytes(_chain(client))


def _number(value: int) -> str:
    return base64.urlsafe_b64encode(value.to_bytes(32, "big")).decode().rstrip("=")


def _chain(certificate: LeafCert) -> bytes:
    return b"".join(blob.bytes() for blob in certificate.cert_chain_pems)


def _key(certificate: LeafCert) -> bytes:
    """Return the key as PKCS #8, the only form Kafka reads."""
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
