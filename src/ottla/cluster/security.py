"""Security settings for the clients of a local cluster: its users, certificates and signed tokens."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ottla.cluster.certificates import KEY_ID, Certificates
from ottla.cluster.state import ClusterState
from ottla.config import PLAINTEXT, OAuthBearer, Plain, Sasl, Scram, Security, Tls
from ottla.errors import ConfigError

Mechanism = Literal["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"]

USERS = ("alice", "bob")
"""The users of every secure cluster, each with its own password."""
INTERNAL_USER = "ottla"
"""The user as which the nodes of a secure cluster, and the commands that control it, log in."""

ISSUER = "ottla-local-cluster"
"""Issuer and audience of tokens."""
_TOKEN_SECONDS = 3600


def client_security(
    user: str, mechanism: Mechanism, *, users: Mapping[str, str], certificates: Certificates
) -> Security:
    """Return the settings for the SASL_SSL listener. Raises `ConfigError` for an unknown user."""
    if user not in users:
        raise ConfigError(f"the cluster has no user {user!r}: its users are {', '.join(users)}")
    return Security(tls=Tls(ca_file=certificates.authority), sasl=_sasl(user, users[user], mechanism, certificates))


def internal_security(state: ClusterState, certificates: Certificates) -> Security:
    """Return the settings for `ClusterState.anywhere`."""
    if state.open:
        return PLAINTEXT
    return Security(tls=Tls(ca_file=certificates.authority), sasl=Plain(INTERNAL_USER, state.internal_password))


def mutual_tls(certificates: Certificates) -> Security:
    """Return the settings for the SSL listener, with the client's certificate."""
    return Security(
        tls=Tls(ca_file=certificates.authority, cert_file=certificates.client, key_file=certificates.client_key)
    )


@dataclass(frozen=True, slots=True)
class Tokens:
    """Makes JSON Web Tokens for a user, signed with the cluster's key, whose public half the brokers know."""

    user: str
    certificates: Certificates

    def __call__(self) -> str:
        return self.signed(now=time.time())

    def signed(self, *, now: float, lifetime: float = _TOKEN_SECONDS) -> str:
        """Return a token. `now` is in seconds since 1970, `lifetime` in seconds."""
        header = _part({"alg": "ES256", "kid": KEY_ID})
        claims = {"iss": ISSUER, "aud": ISSUER}
        content = f"{header}.{_part({'sub': self.user, **claims, 'iat': int(now), 'exp': int(now + lifetime)})}"
        return f"{content}.{_base64(self.certificates.sign(content.encode()))}"


def _sasl(user: str, password: str, mechanism: Mechanism, certificates: Certificates) -> Sasl:
    match mechanism:
        case "PLAIN":
            return Plain(user, password)
        case "OAUTHBEARER":
            return OAuthBearer(Tokens(user, certificates))
        case _:
            return Scram(user, password, mechanism)


def _part(claims: Mapping[str, object]) -> str:
    return _base64(json.dumps(claims).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
