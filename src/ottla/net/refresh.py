"""Schedules metadata lookups: which topics to look up, and when.

Topics in doubt, results of lookups and the time come in; `Lookup` values go out. Pure: `lookups.py` runs them.
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
"""Seconds without a response after which metadata counts as unavailable. If every address refuses, it does at once."""


class Lookup(NamedTuple):
    """A metadata request to be sent."""

    topics: frozenset[str]
    create: bool
    """Whether brokers may create topics that do not exist."""
    seconds: float
    """How long to try."""
    asked_at: float


class LookupResult(NamedTuple):
    """The outcome of a lookup: metadata, or an error."""

    lookup: Lookup
    metadata: Metadata | None
    error: OttlaError | None


class MetadataRefresh:
    """The lookups of one loop. `longest` limits the seconds of a lookup, `refresh_seconds` the age of metadata."""

    def __init__(self, retry: Retry, chance: random.Random, *, longest: float, refresh_seconds: float) -> None:
        self._retry = retry
        self._chance = chance
        self._longest = longest
        self._refresh_seconds = refresh_seconds
        self.error: OttlaError | None = None
        """Why the last lookup failed, or None."""
        self._doubted: set[str] = set()
        self._under_way = False
        self._look_at = 0.0
        self._refresh_at = math.inf
        self._failures = 0
        self._earlier = 0
        """Failures before the last lookup: everything that is wrong with its answer counts as one failure."""
        self._failed_at = -math.inf
        """When the last lookup failed; minus infinity if one has succeeded since."""
        self._silent_since = 0.0
        """Start of the current series of failed lookups."""
        self._was_dark = False

    def doubt(self, topic: str) -> None:
        """Mark what is known of the topic as possibly wrong."""
        self._doubted.add(topic)

    def mark_fresh(self, now: float) -> None:
        """Restart the clock: metadata is fresh now, and is looked up again when it is old."""
        self._refresh_at = now + self._refresh_seconds

    def due(
        self,
        now: float,
        in_use: Collection[str],
        *,
        refreshed: Collection[str],
        creating: Collection[str] = (),
    ) -> Lookup | None:
        """Return what to look up now, or None. `learned` or `failed` must follow.

        Topics in doubt are looked up if they are in use, and those in `refreshed` from time to time. Topics in
        `creating` get a lookup of their own, so that it does not create any of the others.
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
        # Short at first, so that the reason is known soon if no broker answers.
        seconds = min(self._longest, _FIRST_SECONDS * 2 ** min(self._failures, 8))
        return Lookup(frozenset(asked), bool(created), seconds, now)

    def next_at(self, in_use: Collection[str]) -> float:
        """Return when `due` has the next lookup."""
        if self._under_way:
            return math.inf
        return self._refresh_at if self._doubted.isdisjoint(in_use) else self._look_at

    def learned(self, now: float) -> None:
        """Record that a lookup succeeded. If its answer was incomplete, call `look_again`, too."""
        self._under_way = False
        self.error = None
        self._failed_at = -math.inf
        self._was_dark = False
        self._earlier, self._failures = self._failures, 0
        self._look_at = now + self._retry.initial
        self.mark_fresh(now)

    def failed(self, lookup: Lookup, error: OttlaError, now: float) -> None:
        """Record that a lookup failed: it is repeated after a backoff."""
        self._under_way = False
        self.error = error
        if lookup.asked_at - self._failed_at > _SILENCE_PATIENCE:  # earlier failures do not belong to this series
            self._silent_since = lookup.asked_at
        self._failed_at = now
        self._earlier = self._failures
        silent = now - self._silent_since
        self._was_dark = isinstance(error, FINAL) or _all_refused(error) or silent >= _SILENCE_PATIENCE
        self.look_again(lookup.topics, now)

    def look_again(self, topics: Collection[str], now: float) -> None:
        """Look these topics up again, with a growing backoff: the answer about them was incomplete."""
        self._failures = self._earlier + 1
        self._look_at = now + self._retry.wait(self._failures, self._chance.random())
        self._doubted.update(topics)

    def is_dark(self, in_use: Collection[str]) -> bool:
        """Whether metadata is unavailable: no broker listens or answers, or authentication fails."""
        # Only while lookups go on: without a topic in use the last result may be long out of date.
        return self._was_dark and (self._under_way or not self._doubted.isdisjoint(in_use))


def _all_refused(error: OttlaError) -> bool:
    """Whether every address refused the connection, so that waiting for a slow broker is pointless."""
    if not isinstance(error, NoBrokerReachable) or not error.attempts:
        return False
    return all("refused" in attempt.reason for attempt in error.attempts)
