"""What one running client has counted, in pages that can be published at any time. Pure: the time comes in.

Slices come in when records are on their way (`expect`) and when they have arrived (`count`); pages go out. Every page
says in which buckets the client may have counted more since: those between its floor and its ceiling. A slice outside
of them must wait until a page that covers it is published (`is_announced`), so that a client that is killed leaves
buckets that are known to be unknown, and all others are exact.

Threads share a session; each call takes its lock for some microseconds.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ottla.tally.settings import Audit
from ottla.tally.values import SessionPage, Slice, bucket_of

MOST_ENTRIES = 1_000
"""How many entries a page has before another one begins."""


@dataclass(slots=True)
class _TopicCount:
    """What was counted of one topic."""

    page: int = 0
    entries: dict[tuple[int, int], Slice] = field(default_factory=dict)
    """The current page by (partition, bucket)."""
    pending: Counter[int] = field(default_factory=Counter)
    """Slices on their way, by bucket."""
    floor: int | None = None
    """No bucket below is announced. None before the first publication."""
    ceiling: int = 0
    is_published: bool = False
    """Whether a page with this floor and ceiling is in the audit topic."""
    is_doubtful: bool = False
    unsure: set[int] = field(default_factory=set)
    """Buckets with records that may or may not have arrived."""
    published_at: float = -math.inf
    has_changed: bool = True
    full: dict[int, SessionPage] = field(default_factory=dict)
    """Full pages that are not in the audit topic yet."""


class Session:
    """Counts for one client."""

    def __init__(self, audit: Audit, *, id: str, role: str) -> None:  # noqa: A002
        self.audit = audit
        self.id = id
        self.role = role
        self._topics: dict[str, _TopicCount] = {}
        self._number = 0
        self._lock = threading.Lock()

    # What passes the client

    def expect(self, topic: str, slices: Iterable[Slice]) -> bool:
        """Note records that are on their way. Returns whether they are announced, so that they may go."""
        with self._lock:
            counted = self._topics.get(topic)
            if counted is None:
                counted = self._topics[topic] = _TopicCount()
            for piece in slices:
                counted.pending[piece.start] += 1
            return _covers(counted, slices)

    def is_announced(self, topic: str, slices: Iterable[Slice]) -> bool:
        """Whether a published page covers the buckets of records that are expected."""
        with self._lock:
            return _covers(self._topics[topic], slices)

    def count(self, topic: str, partition: int, slices: Iterable[Slice]) -> None:
        """Count records that have arrived. They must be expected."""
        with self._lock:
            counted = self._topics[topic]
            counted.has_changed = True
            for piece in slices:
                place = partition, piece.start
                before = counted.entries.get(place)
                if before is not None:
                    counted.entries[place] = before + piece
                else:
                    counted.entries[place] = piece if piece.partition == partition else _moved(piece, partition)
            _release(counted, slices)

    def drop(self, topic: str, slices: Iterable[Slice]) -> None:
        """Forget records that were expected and will not arrive."""
        with self._lock:
            _release(self._topics[topic], slices)

    def doubt(self, topic: str, slices: Iterable[Slice] | None = None) -> None:
        """Note that records may or may not have arrived; None: that some passed uncounted, of whatever bucket."""
        with self._lock:
            counted = self._topics.setdefault(topic, _TopicCount())
            counted.has_changed = True
            if slices is None or len(counted.unsure) > MOST_ENTRIES:
                counted.is_doubtful = True
            else:
                counted.unsure.update(piece.start for piece in slices)

    # What is published

    @property
    def topics(self) -> frozenset[str]:
        """The topics that were counted."""
        with self._lock:
            return frozenset(self._topics)

    @property
    def needs_publication(self) -> bool:
        """Whether records wait for a page that announces their bucket."""
        with self._lock:
            return any(
                counted.pending and not _covers_buckets(counted, counted.pending) for counted in self._topics.values()
            )

    def pages(self, now: float, *, is_last: bool = False) -> list[list[SessionPage]]:
        """Return what is to be published now, in rounds: each must be in the audit topic before the next is sent.

        `is_last` closes the session. From this call on, no bucket outside the new floors and ceilings is announced.
        """
        seconds = self.audit.bucket_seconds
        newest = bucket_of(now + self.audit.lease_seconds, seconds)
        # A bucket more on either side, so that records of the present never wait.
        oldest, newest = bucket_of(now, seconds) - seconds, newest + seconds
        first: list[SessionPage] = []
        second: list[SessionPage] = []
        with self._lock:
            for topic, counted in self._topics.items():
                if not is_last and not self._is_due(counted, now):
                    continue
                counted.has_changed = False
                floor, ceiling = min([oldest, *counted.pending]), max([newest, *counted.pending])
                # Announced is what both the last page and this one cover, until this one is published.
                if counted.is_published and counted.floor is not None:
                    counted.floor, counted.ceiling = max(floor, counted.floor), min(ceiling, counted.ceiling)
                if len(counted.entries) >= MOST_ENTRIES:
                    counted.full[counted.page] = self._page(topic, counted, floor, ceiling, now, state="full")
                    counted.page += 1
                    counted.entries = {}
                state = "closed" if is_last else "open"
                first.append(self._page(topic, counted, floor, ceiling, now, state=state))
                # After the page that continues them: without one, nothing would say that the client is alive.
                second += counted.full.values()
        return [pages for pages in (first, second) if pages]

    def published(self, page: SessionPage) -> None:
        """Note that a page is in the audit topic: what it covers is announced."""
        with self._lock:
            counted = self._topics[page.topic]
            counted.full.pop(page.page, None)
            counted.published_at = page.as_of
            if page.page == counted.page:
                counted.floor, counted.ceiling, counted.is_published = page.floor, page.ceiling, True

    def _is_due(self, counted: _TopicCount, now: float) -> bool:
        """Whether there is something new to publish, or a sign of life is needed."""
        is_fresh = counted.published_at <= now < counted.published_at + self.audit.lease_seconds / 3
        waits = bool(counted.pending) and not _covers_buckets(counted, counted.pending)
        return counted.has_changed or bool(counted.full) or waits or not is_fresh

    def _page(
        self, topic: str, counted: _TopicCount, floor: int, ceiling: int, now: float, *, state: str
    ) -> SessionPage:
        self._number += 1
        return SessionPage(
            tier=self.audit.tier,
            topic=topic,
            session=self.id,
            page=counted.page,
            number=self._number,
            state=state,  # type: ignore[arg-type]
            role=self.role,
            bucket_seconds=self.audit.bucket_seconds,
            floor=floor,
            ceiling=ceiling,
            as_of=now,
            lease=self.audit.lease_seconds,
            unsure=tuple(sorted(counted.unsure)),
            is_doubtful=counted.is_doubtful,
            host=self.audit.host,
            service=self.audit.service,
            buckets=tuple(counted.entries.values()),
        )


def _covers(counted: _TopicCount, slices: Iterable[Slice]) -> bool:
    return _covers_buckets(counted, (piece.start for piece in slices))


def _covers_buckets(counted: _TopicCount, buckets: Iterable[int]) -> bool:
    floor = counted.floor
    if floor is None or not counted.is_published:
        return False
    return all(floor <= bucket <= counted.ceiling for bucket in buckets)


def _release(counted: _TopicCount, slices: Iterable[Slice]) -> None:
    for piece in slices:
        counted.pending[piece.start] -= 1
        if counted.pending[piece.start] <= 0:
            del counted.pending[piece.start]


def _moved(piece: Slice, partition: int) -> Slice:
    return Slice(
        start=piece.start,
        count=piece.count,
        bytes=piece.bytes,
        fingerprint=piece.fingerprint,
        first=piece.first,
        last=piece.last,
        partition=partition,
    )
