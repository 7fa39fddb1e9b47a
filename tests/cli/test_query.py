"""`ottla query` on a fake broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from ottla import Producer
from ottla.testing import FakeKafka

from .commands import run


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeKafka]:
    """clicks-0 has 5 records, an hour apart, clicks-1 none; users-0 one."""
    with FakeKafka(topics={"clicks": 2, "users": 1}, auto_create=None) as kafka:
        with Producer(kafka.bootstrap, compression="zstd") as producer:
            for hour in range(5):
                when = datetime(2026, 1, 1, hour, tzinfo=UTC).timestamp()
                producer.send("clicks", b"x" * 100, partition=0, timestamp=when).result(30)
            producer.send("users", b"u", partition=0)
        yield kafka


def query(fake: FakeKafka, *arguments: str) -> str:
    result = run("query", *arguments, "--bootstrap", fake.bootstrap)
    assert result.exit_code == 0, result.output
    return result.stdout


def as_json(fake: FakeKafka, *arguments: str) -> list[dict[str, Any]]:
    found = json.loads(query(fake, *arguments, "--json"))
    assert isinstance(found, list)
    return found


def test_offsets_are_what_is_asked_for_without_a_question(fake: FakeKafka) -> None:
    assert as_json(fake, "clicks", "users") == [
        {"topic": "clicks", "partition": 0, "start": 0, "stop": 5},
        {"topic": "clicks", "partition": 1, "start": 0, "stop": 0},
        {"topic": "users", "partition": 0, "start": 0, "stop": 1},
    ]
    assert as_json(fake, "clicks", "--offsets", "--partition", "1") == [
        {"topic": "clicks", "partition": 1, "start": 0, "stop": 0}
    ]
    assert [line.split() for line in query(fake, "clicks").splitlines()] == [
        ["topic", "partition", "start", "stop"],
        ["clicks", "0", "0", "5"],
        ["clicks", "1", "0", "0"],
    ]


def test_a_time_has_an_offset(fake: FakeKafka) -> None:
    assert as_json(fake, "clicks", "--at", "2026-01-01T01:30:00Z") == [
        {"topic": "clicks", "partition": 0, "offset": 2, "timestamp": "2026-01-01T02:00:00.000Z"},
        {"topic": "clicks", "partition": 1, "offset": 0, "timestamp": None},
    ]
    assert [row["offset"] for row in as_json(fake, "clicks", "--at", "2026-02-01T00:00:00Z")] == [5, 0]


def test_a_count_is_a_number_that_scripts_can_use(fake: FakeKafka) -> None:
    assert query(fake, "clicks", "--count") == "5\n"
    assert query(fake, "clicks", "--count", "--from", "-2") == "2\n"
    assert query(fake, "clicks", "--count", "--from", "1", "--until", "2026-01-01T03:00:00Z") == "2\n"
    assert as_json(fake, "clicks", "users", "--count") == [
        {"topic": "clicks", "records": 5},
        {"topic": "users", "records": 1},
    ]


def test_a_profile_tells_what_batches_are_like(fake: FakeKafka) -> None:
    full, empty = as_json(fake, "clicks", "--batches")
    assert full.pop("bytes") > 5 * 61
    assert full == {
        "topic": "clicks",
        "partition": 0,
        "start": 0,
        "stop": 5,
        "records": 5,
        "batches": 5,
        "codecs": {"zstd": 5},
        "first": "2026-01-01T00:00:00.000Z",
        "last": "2026-01-01T04:00:00.000Z",
        "producers": 1,
        "transactional": 0,
        "control": 0,
    }
    assert (empty["records"], empty["codecs"], empty["first"]) == (0, {}, None)
    table = query(fake, "clicks", "--batches", "--partition", "0").splitlines()
    assert "codecs" in table[0]
    assert "zstd 5" in table[1]


@pytest.mark.usefixtures("hasty_about_unknown_topics")
@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["clicks", "--count", "--batches"], 2, "error: --count and --batches are mutually exclusive"),
        (["clicks", "--from", "5"], 2, "error: --from and --until need --count or --batches"),
        (["clicks", "--at", "noon"], 2, "--at: 'noon' is not a time: use"),
        (["clicks", "--at", "2026-01-01T00:00:00"], 2, "has no zone"),
        (["clicks", "--partition", "4"], 1, "error: no such partition: clicks-4"),
        (["clicks", "--count", "--partition", "4"], 1, "error: topic clicks has no partition 4; it has 2"),
        (["clicks", "--count", "--from", "9"], 1, "error: offset 9 is beyond the end of every partition"),
        (["clocks"], 1, "clocks: UNKNOWN_TOPIC_OR_PARTITION (error 3)"),
        (["clocks", "--count"], 1, "clocks: UNKNOWN_TOPIC_OR_PARTITION (error 3)"),
    ],
)
def test_wrong_use_is_reported_in_one_message(fake: FakeKafka, arguments: list[str], code: int, reason: str) -> None:
    result = run("query", *arguments, "--bootstrap", fake.bootstrap)
    assert reason in result.stderr
    assert result.exit_code == code
    assert result.stdout == ""
