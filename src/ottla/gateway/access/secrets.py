"""The file of hashed secrets: a line for each identity, `NAME:scrypt:N:R:P:SALT:HASH`.

A name and a secret come in, a line goes out, and back. scrypt makes each guess dear; what was verified is remembered by
`gate.py`, so that a client pays once for its connection. The secret of a token is `NAME.RANDOM`: it names its line.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ottla.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}")
_N, _R, _P = 1 << 14, 8, 1
"""16 MB and some 30 ms for each guess."""
_MOST_N = 1 << 17
_SALT_BYTES, _HASH_BYTES = 16, 32
_MEMORY = 256 << 20
LEAST_SECRET = 8
"""Characters of a secret that people choose."""


@dataclass(frozen=True, slots=True)
class Hashed:
    """A secret that can be checked and not read."""

    n: int
    r: int
    p: int
    salt: bytes
    digest: bytes

    def matches(self, secret: bytes) -> bool:
        """Whether this is the secret, in a time that does not depend on how much of it is right."""
        return hmac.compare_digest(_scrypt(secret, self), self.digest)

    def __repr__(self) -> str:
        return f"<Hashed, n={self.n}>"


def check_identity(name: str) -> None:
    """Raise `ConfigError` for a name that no identity can have."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is not a name for an identity: use 1 to 63 of a-z A-Z 0-9 _ -")


def hash_secret(secret: bytes) -> Hashed:
    """Return the hash of a secret, with a new salt."""
    empty = Hashed(_N, _R, _P, os.urandom(_SALT_BYTES), b"")
    return Hashed(_N, _R, _P, empty.salt, _scrypt(secret, empty))


def line_of(name: str, hashed: Hashed) -> str:
    """Return the line of the file. Raises `ConfigError` for a wrong name."""
    check_identity(name)
    salt, digest = (base64.b64encode(part).decode() for part in (hashed.salt, hashed.digest))
    return f"{name}:scrypt:{hashed.n}:{hashed.r}:{hashed.p}:{salt}:{digest}"


def new_token(name: str) -> str:
    """Return a random token for an identity."""
    return f"{name}.{base64.urlsafe_b64encode(os.urandom(24)).decode()}"


def parse_secrets(text: str, place: str) -> dict[str, Hashed]:
    """Return the secrets of a file by identity. Raises `ConfigError` with `place` and the line."""
    secrets: dict[str, Hashed] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, hashed = _parsed(line.strip(), f"{place}, line {number}")
        if name in secrets:
            raise ConfigError(f"{place}, line {number}: {name} is there twice")
        secrets[name] = hashed
    return secrets


def read_secrets(path: Path) -> Mapping[str, Hashed]:
    """Return the secrets of a file. Raises `ConfigError` if it cannot be read or has none."""
    try:
        secrets = parse_secrets(path.read_text(encoding="utf-8"), f"the file {path}")
    except OSError as error:
        raise ConfigError(f"the file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the file {path} is not text") from error
    if not secrets:
        raise ConfigError(f"the file {path} has no secrets: 'ottla gateway secret NAME' makes a line")
    return secrets


def _parsed(line: str, place: str) -> tuple[str, Hashed]:
    parts = line.split(":")
    # The line is not shown: people put secrets where hashes belong.
    if len(parts) != 7 or parts[1] != "scrypt":
        raise ConfigError(f"{place} is not NAME:scrypt:N:R:P:SALT:HASH: 'ottla gateway secret NAME' makes a line")
    try:
        check_identity(parts[0])
        n, r, p = map(int, parts[2:5])
        salt, digest = (base64.b64decode(part, validate=True) for part in parts[5:])
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error
    except (ValueError, binascii.Error) as error:
        raise ConfigError(f"{place} has numbers or base64 that cannot be read") from error
    is_sound = 2 <= n <= _MOST_N and n & (n - 1) == 0 and 1 <= r <= 16 and 1 <= p <= 4
    if not is_sound or len(salt) < 8 or len(digest) != _HASH_BYTES:
        raise ConfigError(f"{place} has parameters of scrypt that are not accepted")
    return parts[0], Hashed(n, r, p, salt, digest)


def _scrypt(secret: bytes, hashed: Hashed) -> bytes:
    return hashlib.scrypt(
        secret, salt=hashed.salt, n=hashed.n, r=hashed.r, p=hashed.p, maxmem=_MEMORY, dklen=_HASH_BYTES
    )
