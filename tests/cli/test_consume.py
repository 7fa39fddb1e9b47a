"""`ottla consume` on a fake broker: what it reads, what it prints, what it says when it is used wrongly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from ottla import Producer
from ottla.testing import FakeKafka

from .commands import run

TIMES = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in range(5)]


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeKafka]:
    """clicks-0 has a0 to a4, an hour apart, clicks-1 two records that are hard to print; users-0 one."""
    with FakeKafka(topics={"clicks": 2, "users": 1, "empty": 1}, auto_create=None) as kafka:
        with Producer(kafka.bootstrap) as producer:
            for number, when in enumerate(TIMES):
                producer.send(
                    "clicks", b"a%d" % number, key=b"k%d" % (number % 2), partition=0, timestamp=when.timestamp()
                )
            producer.send("clicks", b"\xff\n", headers=[("trace", b"42")], partition=1, timestamp=0.001)
            producer.send("clicks", None, key=b"gone", partition=1, timestamp=0.002)
            producer.send("users", b"u", partition=0)
        yield kafka


def consume(fake: FakeKafka, *options: str, topic: str = "clicks") -> bytes:
    result = run("consume", topic, "--bootstrap", fake.bootstrap, *options)
    assert result.exit_code == 0, result.output
    return result.stdout_bytes


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--until", "latest"], b"a0\na1\na2\na3\na4\n"),
        (["--until", "-2"], b"a0\na1\na2\n"),
        (["--from", "3", "--until", "latest"], b"a3\na4\n"),
        (["--from", "1", "--until", "3"], b"a1\na2\n"),
        (["--from", "-2", "--until", "latest"], b"a3\na4\n"),
        (["--from", "-200", "--until", "latest"], b"a0\na1\na2\na3\na4\n"),
        (["--from", "2026-01-01T01:00:00Z", "--until", "2026-01-01T04:00:00+01:00"], b"a1\na2\n"),
        (["--from", "2026-01-01T01:00:00.001Z", "--until", "latest"], b"a2\na3\na4\n"),
        (["--from", "latest", "--until", "latest"], b""),
        (["--from", "now", "--until", "latest"], b""),
        (["--max-records", "2"], b"a0\na1\n"),
        (["--max-records", "2", "--key", "k1"], b"a1\na3\n"),
        (["--until", "latest", "--key-pattern", "0$"], b"a0\na2\na4\n"),
        (["--until", "latest", "--value-pattern", "[13]"], b"a1\na3\n"),
        (["--until", "latest", "--contains", "a", "--contains", "4"], b"a4\n"),
        (["--until", "latest", "--key", "nobody"], b""),
        (["--until", "latest", "--key-separator", r"\t", "--from", "4"], b"k0\ta4\n"),
        (["--until", "latest", "--format", r"{partition}@{offset}={value:hex}\n", "--from", "4"], b"0@4=6134\n"),
    ],
)
def test_what_is_asked_for_is_printed(fake: FakeKafka, options: list[str], expected: bytes) -> None:
    assert consume(fake, "--partition", "0", *options) == expected


def test_bytes_are_printed_as_they_are(fake: FakeKafka) -> None:
    assert consume(fake, "--partition", "1", "--until", "latest") == b"\xff\n\n\n"
    assert consume(fake, "--partition", "1", "--until", "latest", "--null-value", "NULL") == b"\xff\n\nNULL\n"
    assert consume(fake, "--partition", "1", "--until", "latest", "--header", "trace=42") == b"\xff\n\n"
    assert consume(fake, "--until", "latest", "--contains", "base64:/wo=") == b"\xff\n\n"


def test_json_has_everything(fake: FakeKafka) -> None:
    first, second = map(json.loads, consume(fake, "--partition", "1", "--until", "latest", "--json").splitlines())
    assert first == {
        "topic": "clicks",
        "partition": 1,
        "offset": 0,
        "timestamp": "1970-01-01T00:00:00.001Z",
        "timestamp_type": "CreateTime",
        "key": None,
        "value": {"base64": "/wo="},
        "headers": [["trace", "42"]],
    }
    assert (second["key"], second["value"], second["headers"]) == ("gone", None, [])


def test_several_topics_are_read_together(fake: FakeKafka) -> None:
    lines = consume(
        fake, "users", "empty", "clicks", "--until", "latest", "--format", r"{topic}-{partition}@{offset}\n"
    )
    expected = [f"clicks-0@{i}" for i in range(5)] + ["clicks-1@0", "clicks-1@1", "users-0@0"]
    assert sorted(lines.decode().split()) == expected


def test_an_empty_topic_has_nothing_to_print(fake: FakeKafka) -> None:
    assert consume(fake, "--until", "latest", topic="empty") == b""


def test_a_file_is_written_and_never_replaced_unasked(fake: FakeKafka, tmp_path: Path) -> None:
    path = tmp_path / "clicks.parquet"
    arguments = ["consume", "clicks", "--bootstrap", fake.bootstrap, "--until", "latest", "--output", str(path)]
    first = run(*arguments)
    assert (first.exit_code, first.stdout) == (0, "")
    assert first.stderr == f"7 records written to {path}\n"
    assert pa.parquet.read_table(path).num_rows == 7
    again = run(*arguments, "--key", "k0")
    assert again.exit_code == 2
    assert again.stderr == f"error: {path} exists already: choose another name, or pass --force to replace it\n"
    assert run(*arguments, "--key", "k0", "--force").exit_code == 0
    assert pa.parquet.read_table(path).column("value").to_pylist() == [b"a0", b"a2", b"a4"]


@pytest.mark.parametrize(
    ("options", "code", "reason"),
    [
        (["--from", "yesterday"], 2, "--from: 'yesterday' is not a place in a topic: use earliest,"),
        (["--until", "earliest"], 2, "error: --until: 'earliest' cannot be used here: use latest, an offset,"),
        (["--until", "5", "--exit-at-end"], 2, "error: --exit-at-end is now --until latest: give it only once"),
        (["--partition", "x"], 2, "--partition: 'x' are not partitions"),
        (["--format", "{x}"], 2, "error: --format: no field {x}; use one of topic, partition, offset,"),
        (["--format", "{"], 2, "error: --format: '{': "),
        (["--key-pattern", "("], 2, "--key-pattern: '(' is not a regular expression: "),
        (["--key", "base64:a"], 2, "--key: 'base64:a' is not base64"),
        (["--header", "=x"], 2, "--header: '=x' is not NAME or NAME=VALUE"),
        (["--json", "--format", "x"], 2, "error: --format and --json are mutually exclusive"),
        (["--json", "--null-value", "x"], 2, "error: --null-value and --json are mutually exclusive"),
        (["--output", "x.csv"], 2, "'x.csv': the suffix must be one of .parquet, .arrow, .jsonl"),
        (["--output", "x.arrow", "--json"], 2, "error: --json and --output are mutually exclusive"),
        (["--force"], 2, "error: --force needs --output"),
        (["--group", "g", "--partition", "0"], 2, "error: --partition and --group are mutually exclusive"),
        (["--group", "g", "--from", "5"], 2, "error: with --group, --from is where to start without a commit"),
        (["--max-records", "0"], 2, "--max-records: 0 is too small: at least 1"),
        (["--partition", "7"], 1, "error: topic clicks has no partition 7; it has 2"),
        (
            ["--from", "9", "--until", "latest"],
            1,
            "error: offset 9 is beyond the end of every partition; the furthest is",
        ),
        (
            ["--from", "group:nobody", "--until", "latest"],
            1,
            "error: group nobody has committed nothing for clicks: 'ottla",
        ),
        (
            ["--from", "group:nobody"],
            1,
            "error: group nobody has committed nothing for clicks: 'ottla groups list --boot",
        ),
        (
            ["--until", "group:nobody"],
            1,
            "error: group nobody has committed nothing for clicks: 'ottla groups list --boot",
        ),
        (["--from", "3"], 1, "error: clicks-1: offsets [2, 3) are lost: the log ends at 2"),
    ],
)
def test_wrong_use_is_reported_in_one_message(fake: FakeKafka, options: list[str], code: int, reason: str) -> None:
    result = run("consume", "clicks", "--bootstrap", fake.bootstrap, *options)
    assert reason in result.stderr
    assert result.exit_code == code
    assert "Traceback" not in result.stderr


@pytest.mark.usefixtures("hasty_about_unknown_topics")
def test_a_topic_that_is_not_there_is_reported(fake: FakeKafka) -> None:
    result = run("consume", "clocks", "--bootstrap", fake.bootstrap)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: topic clocks: UNKNOWN_TOPIC_OR_PARTITION (error 3)\n  hint: ")


def test_a_name_that_no_topic_can_have_is_reported(fake: FakeKafka) -> None:
    result = run("consume", "a/b", "--bootstrap", fake.bootstrap)
    assert result.exit_code == 2
    assert "'a/b'" in result.stderr
