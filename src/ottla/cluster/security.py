"""How clients reach the secure listeners of a local cluster: its users, certificates and unsigned tokens. Pure."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from typing import Literal

from ottla.cluster.certificates import Certificates
from ottla.config import OAuthBearer, Plain, Sasl, Scram, Security, Tls
from ottla.errors import ConfigError

Mechanism = Literal["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"]

DEFAULT_USERS: Mapping[str, str] = {"alice": "alice-secret", "bob": "bob-secret"}
"""Every local cluster has these: it is for development, and its listeners are on 127.0.0.1 only."""

_TOKEN_SECONDS = 3600


def client_security(
    user: str, mechanism: Mechanism, *, users: Mapping[str, str], certificates: Certificates
) -> Security:
    """For the SASL_SSL listener."""
    if user not in users:
        raise ConfigError(f"the cluster has no user {user!r}: its users are {', '.join(users)}")
    return Security(tls=Tls(ca_file=certificates.authority), sasl=_sasl(user, users[user], mechanism))


def mutual_tls(certificates: Certificates) -> Security:
    """For the SSL listener, with the client's certificate."""
    return Security(
        tls=Tls(ca_file=certificates.authority, cert_file=certificates.client, key_file=certificates.client_key)
    )


def unsigned_token(user: str, *, now: float, lifetime: float = _TOKEN_SECONDS) -> str:
    """A JSON Web Token without signature, as a broker without a validator accepts it; times in epoch seconds."""
    return f"{_part({'alg': 'none'})}.{_part({'sub': user, 'iat': now, 'exp': now + lifetime})}."


def _sasl(user: str, password: str, mechanism: Mechanism) -> Sasl:
    match mechanism:
        case "PLAIN":
            return Plain(user, password)
        case "OAUTHBEARER":
            return OAuthBearer(lambda: unsigned_token(user, now=time.time()))
        case _:
            return Scram(user, password, mechanism)


def _part(claims: Mapping[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
