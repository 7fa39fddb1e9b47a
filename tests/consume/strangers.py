"""Group members of confluent-kafka, next to ours and in the same ledger."""

from __future__ import annotations

import threading
from typing import Any

import confluent_kafka

from ottla.model import TopicPartition

from .members import Ledger, Partitions


class Stranger:
    """A confluent-kafka consumer on a thread that polls it and records what it holds."""

    def __init__(self, bootstrap: str, group: str, topic: str, *, name: str, ledger: Ledger, **settings: Any) -> None:
        self.name = name
        self.held: Partitions = frozenset()
        self.errors: list[str] = []
        self._ledger = ledger
        self._stop = False
        renamed = {key.replace("_", "."): value for key, value in settings.items()}
        basics = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
        self._consumer = confluent_kafka.Consumer(basics | renamed)
        self._consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)
        self._thread = threading.Thread(target=self._run, name=f"stranger-{name}", daemon=True)
        self._thread.start()

    def check(self) -> None:
        assert self.errors == []

    def leave(self) -> None:
        if not self._stop:
            self._stop = True
            self._thread.join(20)

    def _run(self) -> None:
        while not self._stop:
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is not None:
                self.errors.append(str(message.error()))
        self._consumer.close()

    def _assigned(self, _: Any, partitions: list[Any]) -> None:
        new = frozenset(TopicPartition(p.topic, p.partition) for p in partitions)
        self._ledger.take(self.name, new)
        self.held |= new

    def _revoked(self, _: Any, partitions: list[Any]) -> None:
        revoked = frozenset(TopicPartition(p.topic, p.partition) for p in partitions)
        self.held -= revoked
        self._ledger.let_go(self.name, revoked)
