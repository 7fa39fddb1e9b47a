"""Bearer tokens for SASL OAUTHBEARER, from where Kafka's Java settings say: a token endpoint, a file, or claims.

A frozen, picklable value comes with the options and is called for every new connection; a token goes out, from memory
for as long as it is good. The endpoint is asked with the client credentials grant of OAuth 2, as Java does.
"""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from ottla.errors import AuthenticationFailed, ConfigError

_SECONDS = 10.0
_EARLY = 0.8
"""The share of its life for which a token is used again, as in Java."""
_LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class FromEndpoint:
    """Asks a token endpoint."""

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOCAL):
            raise ConfigError(
                f"kafka.sasl.oauthbearer.token.endpoint.url is {self.url}; accepted are https: and file:, since the"
                " secret of the client is sent there"
            )

    def __call__(self) -> str:
        """The token."""
        found = _kept.get(self)
        if found is None or time.monotonic() >= found[1]:
            found = self._ask()
            _kept[self] = found
        return found[0]

    def _ask(self) -> tuple[str, float]:
        asked = time.monotonic()
        form = {"grant_type": "client_credentials", **({} if self.scope is None else {"scope": self.scope})}
        user = base64.b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()
        request = urllib.request.Request(  # noqa: S310 - the scheme is checked
            self.url,
            data=urllib.parse.urlencode(form).encode(),
            headers={"Authorization": f"Basic {user}", "Accept": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310
                told = json.load(answer)
            token, seconds = str(told["access_token"]), float(told.get("expires_in", 0))
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = f"no token for client {self.client_id}: {_why(error)}"
            raise AuthenticationFailed(self.url, reason) from error
        return token, asked + seconds * _EARLY


@dataclass(frozen=True, slots=True)
class FromFile:
    """Reads a file, each time: whoever renews the token writes it there."""

    path: str

    def __call__(self) -> str:
        """The token."""
        try:
            return Path(self.path).read_text().strip()
        except (OSError, ValueError) as error:
            raise AuthenticationFailed(self.path, f"no token: {error}") from error


@dataclass(frozen=True, slots=True)
class Unsecured:
    """A token that nobody has signed, for brokers in tests that take any (`unsecuredLoginStringClaim_sub`)."""

    subject: str

    def __call__(self) -> str:
        """The token."""
        now = time.time()
        parts = ({"alg": "none"}, {"sub": self.subject, "iat": int(now), "exp": int(now) + 3600})
        texts = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
        return f"{'.'.join(texts)}."


_kept: dict[FromEndpoint, tuple[str, float]] = {}


def _why(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return f"HTTP {error.code} {error.reason}"
    return (
        f"{type(error).__name__}: {error}" if isinstance(error, OSError) else "the answer is no JSON with access_token"
    )
