"""Rates: how much each client may send. Pure: the time comes in."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from ottla.errors import ConfigError

_MOST_CLIENTS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What a client may send per second, and ten times as much at once after a pause. None: no limit."""

    requests: float | None = None
    bytes: float | None = None

    def __post_init__(self) -> None:
        for name in ("requests", "bytes"):
            rate = getattr(self, name)
            if rate is not None and (isinstance(rate, bool) or not 0 < rate < 1e15):
                raise ConfigError(f"the rate {name} must be a number above 0, got {rate!r}")


class Buckets:
    """One token bucket for each client, of one kind of token. The least recently seen are forgotten."""

    def __init__(self, rate: float, *, burst: float | None = None) -> None:
        self._rate = rate
        self._burst = 10.0 * rate if burst is None else burst
        self._clients: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str, amount: float, now: float) -> float:
        """Take tokens. Returns 0, or the seconds after which there will be enough; then none are taken.

        An amount above the burst is let through when the bucket is full: it would never be otherwise.
        """
        tokens, at = self._clients.pop(client, (self._burst, now))
        tokens = min(self._burst, tokens + max(0.0, now - at) * self._rate)
        missing = min(amount, self._burst) - tokens
        self._clients[client] = (tokens if missing > 0 else tokens - amount, now)
        if len(self._clients) > _MOST_CLIENTS:
            self._clients.popitem(last=False)
        return max(0.0, missing / self._rate)

    def spend(self, client: str, amount: float, now: float) -> None:
        """Take tokens that may not be there: the client has to wait before its next request."""
        self.take(client, 0.0, now)
        tokens, at = self._clients.get(client, (self._burst, now))
        self._clients[client] = (tokens - amount, at)

    def give_back(self, client: str, amount: float) -> None:
        """Return tokens that were taken for something that does not count."""
        if client in self._clients:
            tokens, at = self._clients[client]
            self._clients[client] = (min(self._burst, tokens + amount), at)
