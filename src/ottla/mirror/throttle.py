"""Limits the bytes per second of a link and of its topics. Pure: the caller passes in the time."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.errors import ConfigError


class Throttle:
    """Says when a topic may send. After each batch it waits for as long as the rate says the batch takes."""

    def __init__(self, link: float | None = None, topics: Mapping[str, float] | None = None) -> None:
        """Raises `ConfigError` for a rate that is not positive."""
        for name, rate in {"the link": link, **(topics or {})}.items():
            if rate is not None and not rate > 0:
                raise ConfigError(f"the rate of {name} must be bytes per second above 0, got {rate!r}")
        self._link = link
        self._topics = dict(topics or {})
        self._link_at = 0.0
        self._topic_at: dict[str, float] = {}

    def ready_at(self, topic: str) -> float:
        """Return when a batch of the topic may be sent, by `time.monotonic`."""
        return max(self._link_at, self._topic_at.get(topic, 0.0))

    def spend(self, topic: str, size_bytes: int, now: float) -> None:
        """Count a batch that is sent now."""
        if self._link is not None:
            self._link_at = max(now, self._link_at) + size_bytes / self._link
        rate = self._topics.get(topic)
        if rate is not None:
            self._topic_at[topic] = max(now, self._topic_at.get(topic, 0.0)) + size_bytes / rate
