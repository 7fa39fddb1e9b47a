"""`Audit`: the setting that makes a producer or a consumer count what passes it, and publish the tallies."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from ottla.config import PLAINTEXT, Security, check_kind
from ottla.errors import ConfigError
from ottla.tally.values import AUDIT_TOPIC, DEFAULT_BUCKET_SECONDS, check_bucket, check_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Count records by topic, partition and time bucket, and publish the tallies to an audit topic.

    A client waits up to `wait_seconds` for its first publication, and for those that announce buckets far from the
    present: so that tallies say "unknown" if the client is killed, and are never silently short. Raises `ConfigError`
    for invalid values.
    """

    tier: str
    """Where in the pipeline the client stands, such as `edge` or `aggregate`."""
    service: str = "-"
    """Which program counts."""
    host: str = field(default_factory=lambda: socket.gethostname() or "-")
    topic: str = AUDIT_TOPIC
    """Where tallies go. It is created with compaction if it does not exist."""
    bootstrap: str | None = None
    """The cluster of the audit topic; None for that of the client."""
    security: Security = PLAINTEXT
    """How to connect to `bootstrap`; without one, the client's own settings are used."""
    bucket_seconds: int = DEFAULT_BUCKET_SECONDS
    """All tiers must use the same."""
    publish_every: float = 10.0
    """Seconds between two publications."""
    wait_seconds: float = 5.0

    def __post_init__(self) -> None:
        check_name("tier", self.tier)
        check_name("service", self.service)
        check_kind("security", self.security, Security)
        check_kind("host", self.host, str)
        check_name("audit topic", self.topic)
        object.__setattr__(self, "bucket_seconds", check_bucket(self.bucket_seconds))
        for name, least in (("publish_every", 0.1), ("wait_seconds", 0.0)):
            seconds = getattr(self, name)
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not least <= seconds <= 3600:
                raise ConfigError(f"Audit({name}=...) must be seconds from {least} to 3,600, got {seconds!r}")

    @property
    def lease_seconds(self) -> float:
        """How long a client without a publication counts as alive."""
        return max(6.0 * self.publish_every, 5.0)
