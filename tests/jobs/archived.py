"""Archives for tests of replays: a topic with everything that can be in a record, archived in several steps."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.cli.commands import run
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.fetch.reader import Reader
from ottla.model import Fingerprint
from ottla.produce.producer import Producer

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
BEGIN = 1_767_225_600
"""2026-01-01, in seconds since 1970."""


def rows(first: int, count: int, *, partitions: int = 3) -> pa.Table:
    """Records with unique values, except for tombstones: with nulls, empty keys, headers and scattered times."""
    numbers = range(first, first + count)
    return pa.table(
        {
            "key": pa.array([_key(i) for i in numbers], pa.binary()),
            "value": pa.array([None if i % 101 == 7 else b"%08d" % i for i in numbers], pa.binary()),
            "headers": pa.array([_headers(i) for i in numbers], HEADERS),
            "timestamp": pa.array([(BEGIN + i * 7919 % 20_000) * 1000 + i % 1000 for i in numbers], pa.int64()),
            "partition": pa.array([i % partitions for i in numbers], pa.int32()),
        }
    )


def _key(number: int) -> bytes | None:
    return None if number % 13 == 0 else b"" if number % 17 == 0 else b"user-%d" % (number % 50)


def _headers(number: int) -> list[tuple[str, bytes | None]] | None:
    if number % 3:
        return None
    return [("trace", b"%d" % number), ("trace", None), ("site", b"oslo" if number % 2 else b"bergen")]


def archive(
    bootstrap: str, topic: str, path: Path, *options: str, steps: Iterable[pa.Table], partitions: int = 3
) -> None:
    """Create the topic and archive it after each step."""
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=partitions, settings={"retention.ms": "-1"})
    for table in steps:
        fill(bootstrap, topic, table)
        done = run("archive", topic, "--to", str(path), "--bootstrap", bootstrap, *options)
        assert done.exit_code == 0, done.output


def fill(bootstrap: str, topic: str, table: pa.Table) -> None:
    """Write the records to the topic."""
    with Producer(bootstrap) as producer:
        producer.send_table(topic, table)


def create(bootstrap: str, topic: str, *, partitions: int = 3) -> str:
    """Create a topic that keeps its records, and return its name."""
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=partitions, settings={"retention.ms": "-1"})
    return topic


def settle(bootstrap: str, topic: str) -> None:
    """Wait until no transaction is open in the topic: a committed one becomes visible a moment later."""
    with Reader(bootstrap) as visible, Reader(bootstrap, isolation="read_uncommitted") as everything:
        eventually(
            lambda: visible.offsets(topic, "latest") == everything.offsets(topic, "latest"), f"readers of {topic} wait"
        )


def committed(bootstrap: str, topic: str) -> Fingerprint:
    """Return the fingerprint of what read-committed readers see."""
    settle(bootstrap, topic)
    with Reader(bootstrap, isolation="read_committed") as reader:
        return reader.fingerprint(topic)


def contents(bootstrap: str, topic: str, partition: int) -> list[dict[str, Any]]:
    """Return the records that read-committed readers see in a partition, in order."""
    settle(bootstrap, topic)
    with Reader(bootstrap, isolation="read_committed") as reader:
        columns = ("key", "value", "headers", "timestamp")
        batches = reader.read(topic, partitions=[partition], columns=columns)
        return [row for batch in batches for row in batch.to_pylist()]
