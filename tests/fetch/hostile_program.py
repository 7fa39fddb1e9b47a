"""Reads hostile logs under a memory limit, as a separate program: `python -m tests.fetch.hostile_program`.

It prints one JSON line for each log and each way to read it: what came of it, and how long that took.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.fuzz.hostile import hostile

from ottla.config import Timeouts
from ottla.errors import OttlaError
from ottla.fetch.options import Fetching
from ottla.fetch.reader import Reader
from ottla.model import OffsetRange, TopicPartition
from ottla.testing import FakeKafka

from .logs import plain, plant
from .watching import QUICK

ALLOWED_BYTES = 192 << 20
"""Memory on top of what importing everything takes."""
GOOD = 10
"""The number of records before the hostile batch."""
TIMES = Timeouts(connect=2.0, request=2.0, total=0.2)
FETCHING = Fetching(memory_bytes=8 << 20, max_wait=0.1, max_batch_bytes=16 << 20)

WAYS: dict[str, Callable[[Reader, OffsetRange], Iterable[Any]]] = {
    "read": lambda reader, what: reader.read(what),
    "batches": lambda reader, what: reader.batches(what),
    "count": lambda reader, what: [reader.count(what)],
    "fold": lambda reader, what: reader.fold(lambda so_far, item: [*so_far, item], [], what),
}


def limit_memory() -> None:
    """Let allocations beyond `ALLOWED_BYTES` more than now fail."""
    status = Path("/proc/self/status").read_text()
    data = 1024 * int(status.split("VmData:")[1].split()[0])
    resource.setrlimit(resource.RLIMIT_DATA, (data + ALLOWED_BYTES, data + ALLOWED_BYTES))


def outcome(reader: Reader, way: str, what: OffsetRange) -> dict[str, Any]:
    """Return the result of one attempt."""
    began, rows = time.monotonic(), 0
    outcome_fields: dict[str, Any] = {"topic": what.topic, "way": way}
    try:
        for item in WAYS[way](reader, what):
            if isinstance(item, int):
                rows += item
            elif hasattr(item, "error"):
                outcome_fields |= {"error": type(item.error).__name__, "text": str(item.error), "offset": item.offset}
            else:
                rows += getattr(item, "num_rows", 0)
    except OttlaError as error:
        outcome_fields |= {"error": type(error).__name__, "text": str(error)}
    return outcome_fields | {"rows": rows, "seconds": time.monotonic() - began}


def main() -> int:
    """The exit code."""
    topics = {f"h-{name}": data for name, data in hostile().items()}
    with (
        FakeKafka(topics=dict.fromkeys(topics, 1), auto_create=None) as kafka,
        Reader(kafka.bootstrap, retry=QUICK, timeouts=TIMES, fetching=FETCHING) as reader,
    ):
        for topic, data in topics.items():
            tp = TopicPartition(topic, 0)
            plant(kafka, plain(0, GOOD), base=0, stop=GOOD, at=tp)
            moved = GOOD.to_bytes(8, "big") + data[8:] if data[:8] == bytes(8) else data
            plant(kafka, moved, base=GOOD, stop=GOOD + 1, at=tp)
        list(reader.read(OffsetRange(next(iter(topics)), 0, 0, GOOD)))
        limit_memory()
        for topic in topics:
            for way in WAYS:
                print(json.dumps(outcome(reader, way, OffsetRange(topic, 0, 0, GOOD + 1))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
