"""Settings and routers of each topic, made from those of the producer and of the topics that have their own.

Used by callers and by the sender, which must ask the same router.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.errors import ConfigError
from ottla.produce.intake import SMALL_BYTES
from ottla.produce.options import Settings, Spool, TopicOptions
from ottla.produce.records import record_bytes
from ottla.produce.route import Router

_LARGEST_SMALL = bytes(SMALL_BYTES)


class ByTopic:
    """The settings of every topic."""

    def __init__(self, rest: Settings, topics: Mapping[str, TopicOptions]) -> None:
        self._rest = rest
        self._topics = {name: given.over(rest) for name, given in topics.items()}
        self._routers: dict[str, Router] = {}

    def settings(self, topic: str) -> Settings:
        """Of one topic."""
        return self._topics.get(topic, self._rest)

    def takes_any_small_record(self, topic: str) -> bool:
        """Whether a record of up to `SMALL_BYTES` needs no look at the settings: it fits, and nobody is asked."""
        settings = self.settings(topic)
        return settings.partitioner is None and settings.max_record_bytes >= record_bytes(_LARGEST_SMALL, None, None)

    def router(self, topic: str) -> Router:
        """The one of a topic: callers ask it where a record would go, the sender sends it there."""
        router = self._routers.get(topic)
        if router is None:
            settings = self.settings(topic)
            made = Router(topic, partitioner=settings.partitioner, strategy=settings.strategy)
            router = self._routers.setdefault(topic, made)
        return router

    def forget(self, topic: str) -> None:
        """The topic is not used any more: the next one who asks gets a new router."""
        self._routers.pop(topic, None)

    def check_transactional(self, spool: Spool | None) -> None:
        """Raises when these settings do not go with transactions."""
        if spool is not None:
            raise ConfigError(
                "transactional_id and spool exclude one another: a transaction cannot outlive its producer"
            )
        if any(one.acks != "all" or not one.idempotent for one in (self._rest, *self._topics.values())):
            raise ConfigError("transactional_id needs acks='all' and idempotent=True for every topic")
