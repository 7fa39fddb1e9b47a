"""Counts the target topics of a link for the audit: from the target's log, not from what the mirror says it has sent.

A `LinkAudit` says as which tier and where tallies go. `count_target` counts what is new since the last call, by
`jobs.tallies`: a mirror that is killed leaves nothing to repair, and two that count at once do no harm.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import TracebackType

from ottla.admin import Admin
from ottla.errors import ConfigError, OttlaError
from ottla.jobs.brokers import Brokers
from ottla.jobs.tallies import TallyReport, tally
from ottla.model import Isolation
from ottla.tally.values import AUDIT_TOPIC, DEFAULT_BUCKET_SECONDS, check_bucket, check_name

_log = logging.getLogger(__name__)
_LEAST_SECONDS = 1.0
_LAST_SECONDS = 60.0
"""How long the count at the end may take before it is left to the next run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkAudit:
    """How the target of a link is counted. Raises `ConfigError` for invalid values."""

    tier: str
    """Where the target stands in the pipeline, such as `aggregate`."""
    brokers: Brokers | str | None = None
    """The cluster of the audit topic; None for the target."""
    topic: str = AUDIT_TOPIC
    bucket_seconds: int = DEFAULT_BUCKET_SECONDS
    every: float = 60.0
    """Seconds between two counts while the mirror follows."""
    headers_only: bool = False
    """Count by batch headers: nothing is decompressed, and there are no fingerprints."""

    def __post_init__(self) -> None:
        check_name("tier", self.tier)
        check_name("audit topic", self.topic)
        object.__setattr__(self, "bucket_seconds", check_bucket(self.bucket_seconds))
        if not _LEAST_SECONDS <= self.every <= 86_400:
            raise ConfigError(f"counting every {self.every} seconds: from {_LEAST_SECONDS:.0f} to 86,400 is accepted")


def count_target(audit: LinkAudit, target: Brokers, topics: Iterable[str]) -> TallyReport | None:
    """Count and publish what is new in the target topics, those left out that were deleted.

    Returns None without topics. Raises as `tally` does.
    """
    listed = sorted(set(topics))
    if listed:
        with target.cluster() as cluster:
            existing = Admin(cluster).topic_names()
        listed = [topic for topic in listed if topic in existing]
    if not listed:
        return None
    return tally(
        listed,
        brokers=replace(target, isolation=Isolation.READ_COMMITTED),
        tier=audit.tier,
        service="ottla-mirror",
        audit=target if audit.brokers is None else audit.brokers,
        audit_topic=audit.topic,
        bucket_seconds=audit.bucket_seconds,
        headers_only=audit.headers_only,
        workers=1,  # the mirror goes first
    )


class Counting:
    """Counts on a thread while a mirror runs, and once more at its end. The mirror does not depend on it."""

    def __init__(self, audit: LinkAudit, target: Brokers, topics: Callable[[], Iterable[str]], *, link: str) -> None:
        self._audit = audit
        self._target = target
        self._topics = topics
        self._link = link
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"ottla-mirror-audit-{link}", daemon=True)

    def __enter__(self) -> Counting:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(_LAST_SECONDS)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._ended.wait(self._audit.every)
            try:
                count_target(self._audit, self._target, self._topics())
            except (OttlaError, TimeoutError) as error:
                _log.warning(
                    "link %s: its target was not counted, which the next count makes up: %s", self._link, error
                )
