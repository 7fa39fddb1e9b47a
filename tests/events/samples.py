"""One event of each kind, built from the types of its fields, and events as users may define them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ottla.errors import BrokerError, ErrorCode
from ottla.events import EVENTS, Event

ERROR = BrokerError(int(ErrorCode.message_too_large), "Produce to clicks-3", 'two\nlines "quoted"')
VALUES: dict[str, Any] = {
    "str": "some text",
    "int": 7,
    "int | None": 2,
    "float": 0.25,
    "float | None": 0.25,
    "Exception": ERROR,
    "bool": True,
}
NAMED: dict[str, Any] = {"topic": "clicks", "partition": 3, "records": 100, "size_bytes": 4096, "address": "kafka:9092"}


def sample(kind: type[Event], **given: Any) -> Event:
    """An event with a value of the right type in every field."""
    values = {field.name: NAMED.get(field.name, VALUES[str(field.type)]) for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**(values | given))


def in_threads(count: int, call: Callable[[], object], *, times: int) -> None:
    """Make `call` `times` times in each of `count` threads at once, and wait for all of them."""

    def repeat() -> None:
        for _ in range(times):
            call()

    threads = [threading.Thread(target=repeat) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def samples() -> list[Event]:
    return [sample(kind) for kind in EVENTS]


@dataclass(frozen=True)
class CacheMissed(Event):
    """A user's own event, with fields that are measured."""

    gauges = frozenset({"fill"})

    topic: str | None
    lost_records: int
    wait_seconds: float
    fill: float
    where: Path


class Bare(Event):
    """An event that is not a dataclass."""

    def __init__(self, records: object, time: object) -> None:
        self.records = records
        self.time = time
        self._secret = 1


class Silent(Event):
    """An event without fields."""

    kind = "my odd.name!"
