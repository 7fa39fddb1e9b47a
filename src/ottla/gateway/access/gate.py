"""Decides who sends a request, and whether they may: what HTTP asks before it reads a body.

Credentials, topic and verb come in; an identity goes out, or a `Problem`. Secrets are verified in a few threads and
remembered for a while under a keyed digest; nothing here logs them. Wrong guesses are limited by address and login.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import math
import os
import time
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ottla.gateway.access.rates import Buckets, Rates
from ottla.gateway.access.rules import ANONYMOUS, EVERYTHING, Rule, Verb, is_allowed, is_allowed_somewhere
from ottla.gateway.access.secrets import Hashed, hash_secret
from ottla.gateway.http.guard import Connection
from ottla.gateway.http.problems import Problem

_REMEMBER_SECONDS = 300.0
_MOST_REMEMBERED = 10_000
_VERIFYING_THREADS = 2
_GUESSES_PER_SECOND, _GUESSES_AT_ONCE = 0.2, 10.0
_MOST_DECISIONS = 10_000
_LONGEST_CREDENTIAL = 4096
_LONGEST_TOPIC = 249


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who may use a listener, and how."""

    secrets: Mapping[str, Hashed] = field(default_factory=dict)
    needs_login: bool = False
    """Whether a request without credentials is refused."""
    takes_certificates: bool = False
    """Whether the name in a verified certificate is an identity."""
    rules: Sequence[Rule] = (EVERYTHING,)
    rates: Rates = field(default_factory=Rates)
    origins: Collection[str] = ()
    """Web pages, such as `https://ui.example`, whose scripts may use the gateway."""
    hosts: Collection[str] | None = None
    """Accepted names in the Host header, without ports; None for all."""


class Gate:
    """Decides about requests. One for each event loop."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._threads: ThreadPoolExecutor | None = None
        self._key = os.urandom(32)
        self._verified: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
        self._verifying: dict[bytes, asyncio.Future[bool]] = {}
        """Credentials that are being verified: requests that bring the same ones wait for one result."""
        self._guesses = Buckets(_GUESSES_PER_SECOND, burst=_GUESSES_AT_ONCE)
        rates = access.rates
        self._requests = None if rates.requests is None else Buckets(rates.requests)
        self._bytes = None if rates.bytes is None else Buckets(rates.bytes)
        self._decisions: dict[tuple[str, Verb, str], bool] = {}
        self._allows_all = len(access.rules) == 1 and access.rules[0] == EVERYTHING
        self._is_open = not access.needs_login and not access.secrets and not access.takes_certificates
        self._no_identity = hash_secret(os.urandom(16)) if access.secrets else None
        """What is checked for a name that does not exist, so that it takes as long as for one that does."""

    async def identify(self, connection: Connection, headers: Mapping[bytes, bytes]) -> str:
        """Return who sends a request. Raises `Problem` 401 and 403, and 429 for too many wrong guesses."""
        if b"origin" in headers or self._access.hosts is not None:
            self._check_page(headers)
        if self._is_open:
            return ANONYMOUS
        credentials = headers.get(b"authorization")
        if credentials is None:
            if connection.certificate and self._access.takes_certificates:
                return connection.certificate
            if self._access.needs_login:
                raise Problem(401, "log in: send a certificate, Authorization: Bearer, or Basic", code=40101)
            return ANONYMOUS
        known = connection.credentials.get(credentials)
        now = time.monotonic()
        if known is not None and known[1] > now:
            return str(known[0])
        name = await self._verify(connection, credentials, now)
        connection.credentials = {credentials: (name, now + _REMEMBER_SECONDS)}  # the last one only
        return name

    def check(self, identity: str, verb: Verb, topic: str) -> None:
        """Raise `Problem` 403 unless a rule allows it."""
        if not self._allows_all and not self.may(identity, verb, topic):
            raise Problem(403, f"{identity} may not {verb.value} topic {topic!r}: no rule allows it", code=40301)

    def may(self, identity: str, verb: Verb, topic: str) -> bool:
        """Whether a rule allows it."""
        decision = self._decisions.get((identity, verb, topic))
        if decision is None:
            decision = is_allowed(self._access.rules, identity, verb, topic)
            if len(topic) > _LONGEST_TOPIC:  # no topic, and far more memory than one
                return decision
            if len(self._decisions) >= _MOST_DECISIONS:
                self._decisions.clear()
            self._decisions[identity, verb, topic] = decision
        return decision

    def may_somewhere(self, identity: str, verb: Verb) -> bool:
        """Whether a rule allows it with any topic."""
        return is_allowed_somewhere(self._access.rules, identity, verb)

    def charge(self, connection: Connection, identity: str, size_bytes: int) -> None:
        """Count a request against the rates of its client. Raises `Problem` 429."""
        if self._requests is None and self._bytes is None:
            return
        client = _client(connection, identity)
        now = time.monotonic()
        for buckets, amount, limit in (
            (self._requests, 1, "requests_per_second"),
            (self._bytes, size_bytes, "bytes_per_second"),
        ):
            wait = 0.0 if buckets is None else buckets.take(client, amount, now)
            if wait:
                raise Problem(429, "this client sends or reads too much", limit=limit, retry_after=math.ceil(wait))

    def spend(self, connection: Connection, identity: str, size_bytes: int) -> float:
        """Count bytes that a client has got already. Returns the seconds after which it may have more."""
        if self._bytes is None:
            return 0.0
        client, now = _client(connection, identity), time.monotonic()
        self._bytes.spend(client, size_bytes, now)
        return self._bytes.take(client, 0.0, now)

    def close(self) -> None:
        """End the threads that verify."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _check_page(self, headers: Mapping[bytes, bytes]) -> None:
        """Refuse scripts of web pages: a browser on this machine would carry them past a listener without login."""
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1") not in self._access.origins:
            raise Problem(403, "requests from web pages are refused: list the page's origin in origins", code=40301)
        if self._access.hosts is not None:
            host = headers.get(b"host", b"").decode("latin-1").lower()
            name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
            if name not in self._access.hosts:
                raise Problem(421, "the Host header names another server: list the name in hosts")

    async def _verify(self, connection: Connection, credentials: bytes, now: float) -> str:
        name, secret = _parse(credentials)
        digest = hashlib.blake2b(credentials, key=self._key).digest()
        known = self._verified.get(digest)
        if known is not None and known[1] > now:
            return known[0]
        verifying = self._verifying.get(digest)
        if verifying is None:
            # By name, too: who guesses for one login, or for names that do not exist, keeps no other login out.
            guesser = f"{connection.address} {name if name in self._access.secrets else ''}"
            wait = self._guesses.take(guesser, 1.0, now)
            if wait:
                raise Problem(429, "too many wrong logins", limit="logins", retry_after=math.ceil(wait))
            verifying = asyncio.ensure_future(self._is_right(name, secret, guesser))
            self._verifying[digest] = verifying
            verifying.add_done_callback(lambda _: self._verifying.pop(digest))
        if not await asyncio.shield(verifying):  # one client that goes away leaves the others their result
            raise Problem(401, "wrong name or secret", code=40101)
        self._verified[digest] = (name, now + _REMEMBER_SECONDS)
        if len(self._verified) > _MOST_REMEMBERED:
            self._verified.popitem(last=False)
        return name

    async def _is_right(self, name: str, secret: bytes, guesser: str) -> bool:
        """Verify a secret on a thread. A right one is no guess."""
        hashed = self._access.secrets.get(name, self._no_identity)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_VERIFYING_THREADS, "ottla-gateway-verify")
        matches = hashed is not None and await asyncio.get_running_loop().run_in_executor(
            self._threads, hashed.matches, secret
        )
        if not matches or name not in self._access.secrets:
            return False
        self._guesses.give_back(guesser, 1.0)
        return True


def _client(connection: Connection, identity: str) -> str:
    return f"address {connection.address}" if identity == ANONYMOUS else identity


def _parse(credentials: bytes) -> tuple[str, bytes]:
    """Return name and secret of an Authorization header. Raises `Problem`."""
    scheme, _, rest = credentials.partition(b" ")
    rest = rest.strip()
    if len(credentials) <= _LONGEST_CREDENTIAL:
        if scheme.lower() == b"bearer" and b"." in rest:
            return rest.partition(b".")[0].decode("latin-1"), rest
        if scheme.lower() == b"basic":
            try:
                name, colon, secret = base64.b64decode(rest, validate=True).partition(b":")
            except (binascii.Error, ValueError):
                colon = b""
            if colon:
                return name.decode("latin-1"), secret
    raise Problem(401, "the Authorization header is neither Basic nor a Bearer token of this gateway", code=40101)
