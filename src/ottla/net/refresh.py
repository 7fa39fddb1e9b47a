"""Which topics have to be looked up, and when: what is in doubt, what is old, and how long to wait after a failure.

Doubts, results and the time come in, `Lookup` values go out. Pure: a loop carries them out (`lookups.py`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection
from typing import NamedTuple

from ottla.config import Retry
from ottla.errors import NoBrokerReachable, OttlaError
from ottla.net.attempts import FINAL
from ottla.net.metadata import Metadata

_FIRST_SECONDS = 0.5
_SILENCE_PATIENCE = 5.0
"""Seconds without an answer after which metadata counts as not to be had; at once, when every address refuses."""


class Lookup(NamedTuple):
    """A question to the cluster."""

    topics: frozenset[str]
    create: bool
    """Whether brokers may create those that do not exist."""
    seconds: float
    """How long to try."""
    asked_at: float


class LookupResult(NamedTuple):
    """What came of it: metadata, or an error."""

    lookup: Lookup
    metadata: Metadata | None
    error: OttlaError | None


class MetadataRefresh:
    """The topics of one loop. `longest` bounds a lookup, `refresh_seconds` is how long metadata is trusted."""

    def __init__(self, retry: Retry, chance: random.Random, *, longest: float, refresh_seconds: float) -> None:
        self._retry = retry
        self._chance = chance
        self._longest = longest
        self._refresh_seconds = refresh_seconds
        self.error: OttlaError | None = None
        """Why the last lookup failed; None when it did not."""
        self._doubted: set[str] = set()
        self._under_way = False
        self._look_at = 0.0
        self._refresh_at = math.inf
        self._failures = 0
        self._earlier = 0
        """Failures before the last lookup: all that was wrong with its answer counts once."""
        self._failed_at = -math.inf
        """When the last lookup failed; long ago when one has succeeded since."""
        self._silent_since = 0.0
        """Since when one after the other failed."""
        self._was_dark = False

    def doubt(self, topic: str) -> None:
        """What is known of the topic may be wrong."""
        self._doubted.add(topic)

    def refresh(self, now: float) -> None:
        """What is known is good now, and looked up again when it is old."""
        self._refresh_at = now + self._refresh_seconds

    def due(
        self,
        now: float,
        in_use: Collection[str],
        *,
        refreshed: Collection[str],
        creating: Collection[str] = (),
    ) -> Lookup | None:
        """What to look up now, if anything; `learned` or `failed` must follow.

        Of topics in doubt those that are in use; `refreshed` now and then. Those in `creating` are asked for alone:
        the others must not come into being because of them.
        """
        if self._under_way or now < self._look_at:
            return None
        names = self._doubted.intersection(in_use)
        if now >= self._refresh_at:
            self._refresh_at = now + self._refresh_seconds
            names.update(refreshed)
        if not names:
            return None
        created = names.intersection(creating)
        asked = created or names
        self._doubted = names - asked
        self._under_way = True
        # Short at first, so that the reason is known soon when nobody answers.
        seconds = min(self._longest, _FIRST_SECONDS * 2 ** min(self._failures, 8))
        return Lookup(frozenset(asked), bool(created), seconds, now)

    def next_at(self, in_use: Collection[str]) -> float:
        """When `due` has something."""
        if self._under_way:
            return math.inf
        return self._refresh_at if self._doubted.isdisjoint(in_use) else self._look_at

    def learned(self, now: float) -> None:
        """A lookup has succeeded; `look_again` follows if its answer was not good enough."""
        self._under_way = False
        self.error = None
        self._failed_at = -math.inf
        self._was_dark = False
        self._earlier, self._failures = self._failures, 0
        self._look_at = now + self._retry.initial
        self.refresh(now)

    def failed(self, lookup: Lookup, error: OttlaError, now: float) -> None:
        """A lookup has failed: the same is asked again, after a while."""
        self._under_way = False
        self.error = error
        if lookup.asked_at - self._failed_at > _SILENCE_PATIENCE:  # what was before that is another story
            self._silent_since = lookup.asked_at
        self._failed_at = now
        self._earlier = self._failures
        silent = now - self._silent_since
        self._was_dark = isinstance(error, FINAL) or _nobody_listens(error) or silent >= _SILENCE_PATIENCE
        self.look_again(lookup.topics, now)

    def look_again(self, topics: Collection[str], now: float) -> None:
        """The answer was not good enough: these are asked for again, later each time."""
        self._failures = self._earlier + 1
        self._look_at = now + self._retry.wait(self._failures, self._chance.random())
        self._doubted.update(topics)

    def is_dark(self, in_use: Collection[str]) -> bool:
        """Whether metadata cannot be had at the moment: nobody is there, nobody answers, or we are not let in."""
        # Only while it is tried again and again: with no topic in use, nobody has looked since.
        return self._was_dark and (self._under_way or not self._doubted.isdisjoint(in_use))


def _nobody_listens(error: OttlaError) -> bool:
    """Whether every address refused the connection: that is no broker that is slow."""
    if not isinstance(error, NoBrokerReachable) or not error.attempts:
        return False
    return all("refused" in attempt.reason for attempt in error.attempts)
