"""Key stores of Java, as PEM: what Spark jobs have on the disks of their machines.

A path and a password come in, PEM text goes out; nothing is written. PKCS12 is read, which is what keytool has written
since Java 9 also where the type is said to be JKS. The old JKS format is Java's own: the error says how to convert it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ottla.errors import ConfigError

_OLD = b"\xfe\xed\xfe\xed"


def trust_pem(path: str, password: str | None) -> str:
    """The certificates of a trust store."""
    found = _load(path, password)
    certificates = [one.certificate for one in (found.cert, *found.additional_certs) if one is not None]
    if not certificates:
        raise ConfigError(f"{path} has no certificate")
    return "".join(_certificate(one) for one in certificates)


def key_pem(path: str, password: str | None) -> str:
    """The key of a key store, not encrypted, and its chain of certificates."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    found = _load(path, password)
    if found.key is None or found.cert is None:
        raise ConfigError(f"{path} has no private key with its certificate")
    key: str = found.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return key + "".join(_certificate(one.certificate) for one in (found.cert, *found.additional_certs))


def _certificate(one: Any) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    text: str = one.public_bytes(Encoding.PEM).decode()
    return text


def _load(path: str, password: str | None) -> Any:
    """What is in a store, as `cryptography` tells it."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"the key store {path} cannot be read: {error}") from error
    if content.startswith(_OLD):
        raise ConfigError(
            f"{path} is a key store in the old format of Java (JKS): convert it with keytool -importkeystore"
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
        raise ConfigError(f"{path} is no PKCS12 store, or its password is another one: {error}") from error
