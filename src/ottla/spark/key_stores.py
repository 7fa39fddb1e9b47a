"""Java key stores as PEM: the files that Spark jobs have on their machines.

A path and a password come in, PEM text goes out; nothing is written. Reads PKCS12, which keytool has written since
Java 9 even if the type is given as JKS. The old JKS format is Java's own: the error says how to convert it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ottla.errors import ConfigError

_JKS_MAGIC = b"\xfe\xed\xfe\xed"


def trust_pem(path: str, password: str | None) -> str:
    """The certificates of a trust store. Raises `ConfigError` if it cannot be read or has none."""
    store = _load(path, password)
    certificates = [entry.certificate for entry in (store.cert, *store.additional_certs) if entry is not None]
    if not certificates:
        raise ConfigError(f"{path} has no certificate")
    return "".join(map(_certificate, certificates))


def key_pem(path: str, password: str | None) -> str:
    """The private key of a key store, not encrypted, and its certificate chain.

    Raises `ConfigError` if the store cannot be read or has no key with a certificate.
    """
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    store = _load(path, password)
    if store.key is None or store.cert is None:
        raise ConfigError(f"{path} has no private key with its certificate")
    key: str = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return key + "".join(_certificate(entry.certificate) for entry in (store.cert, *store.additional_certs))


def _certificate(certificate: Any) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    text: str = certificate.public_bytes(Encoding.PEM).decode()
    return text


def _load(path: str, password: str | None) -> Any:
    """The content of a store, as a `PKCS12KeyAndCertificates` of `cryptography`."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"the key store {path} cannot be read: {error}") from error
    if content.startswith(_JKS_MAGIC):
        raise ConfigError(
            f"{path} is a key store in Java's old JKS format: convert it with keytool -importkeystore"
            f" -srckeystore {path} -destkeystore {Path(path).with_suffix('.p12')} -deststoretype PKCS12"
        )
    try:
        from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"reading {path}, a PKCS12 store, needs the package cryptography: install it, or give PEM (openssl pkcs12"
            f" -in {path} -out store.pem -nodes)"
        ) from error
    try:
        return load_pkcs12(content, None if password is None else password.encode())
    except ValueError as error:
        raise ConfigError(f"{path} is not a PKCS12 store, or the password is wrong: {error}") from error
