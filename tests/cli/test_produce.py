"""`ottla produce` against a fake broker: what lines become, which are named when something is wrong, how it ends."""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import feather, parquet

import ottla
from ottla.errors import ErrorCode
from ottla.testing import FakeKafka, StoredRecord

from .commands import run, write


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka(topics={"clicks": 3, "users": 1}, auto_create=None) as fake:
        yield fake


def _all(kafka: FakeKafka, topic: str = "clicks") -> list[StoredRecord]:
    return [record for partition in range(kafka.topics[topic]) for record in kafka.records(topic, partition)]


def _values(kafka: FakeKafka, topic: str = "clicks") -> list[bytes | None]:
    return sorted((record.value for record in _all(kafka, topic)), key=lambda value: value or b"")


def test_every_line_is_a_value_to_the_byte(kafka: FakeKafka, tmp_path: Path) -> None:
    lines = [b"plain", b"", b"\xff\x00\xfe", b"with \r", b"  spaces  ", "höher".encode(), b"no newline at the end"]
    file = write(tmp_path / "lines", b"\n".join(lines))
    result = run("produce", "users", file, "--bootstrap", kafka.bootstrap)
    assert result.exit_code == 0, result.stderr
    assert [record.value for record in kafka.records("users", 0)] == lines
    assert [record.key for record in kafka.records("users", 0)] == [None] * len(lines)
    assert result.stderr.startswith("7 records delivered (51B read) in ")


def test_files_are_sent_one_after_another(kafka: FakeKafka, tmp_path: Path) -> None:
    files = [write(tmp_path / name, f"{name}1\n{name}2\n".encode()) for name in "ab"]
    assert run("produce", "users", *files, "--bootstrap", kafka.bootstrap).exit_code == 0
    assert [record.value for record in kafka.records("users", 0)] == [b"a1", b"a2", b"b1", b"b2"]


def test_an_empty_input_is_no_record_and_no_error(kafka: FakeKafka, tmp_path: Path) -> None:
    result = run("produce", "users", write(tmp_path / "empty", b""), "--bootstrap", kafka.bootstrap)
    assert result.exit_code == 0
    assert result.stderr.startswith("0 records delivered")


def test_the_key_is_what_is_before_the_first_separator(kafka: FakeKafka, tmp_path: Path) -> None:
    file = write(tmp_path / "lines", b"user-1:hello:you\nno key\n:empty key\nempty value:\n\n")
    assert run("produce", "users", file, "--key-separator", ":", "--bootstrap", kafka.bootstrap).exit_code == 0
    assert [(record.key, record.value) for record in kafka.records("users", 0)] == [
        (b"user-1", b"hello:you"),
        (None, b"no key"),
        (b"", b"empty key"),
        (b"empty value", b""),
        (None, b""),
    ]


@pytest.mark.parametrize(
    ("written", "separator"), [(r"\t", b"\t"), (r"\x1f", b"\x1f"), ("=>", b"=>"), (r"\\t", rb"\t"), ("ö", "ö".encode())]
)
def test_a_separator_may_be_any_bytes(kafka: FakeKafka, tmp_path: Path, written: str, separator: bytes) -> None:
    file = write(tmp_path / "lines", b"k" + separator + b"v\n")
    assert run("produce", "users", file, "--key-separator", written, "--bootstrap", kafka.bootstrap).exit_code == 0
    assert [(record.key, record.value) for record in kafka.records("users", 0)] == [(b"k", b"v")]


def test_records_with_the_same_key_are_in_one_partition_in_order(kafka: FakeKafka, tmp_path: Path) -> None:
    lines = [f"user-{i % 7}:{i}" for i in range(5000)]
    file = write(tmp_path / "lines", "\n".join(lines).encode())
    assert run("produce", "clicks", file, "--key-separator", ":", "--bootstrap", kafka.bootstrap).exit_code == 0
    assert len(_all(kafka)) == 5000
    for partition in range(3):
        for user in range(7):
            found = [r.value for r in kafka.records("clicks", partition) if r.key == b"user-%d" % user]
            assert found in ([], [b"%d" % i for i in range(user, 5000, 7)])


def test_options_give_every_record_a_key_headers_and_a_partition(kafka: FakeKafka, tmp_path: Path) -> None:
    file = write(tmp_path / "lines", b"a\nb\n")
    options = [
        "--key",
        "k",
        "--header",
        "host=edge=7",
        "--header",
        "empty=",
        "--partition",
        "2",
        "--compression",
        "zstd",
    ]
    result = run("produce", "clicks", file, *options, "--acks", "1", "--bootstrap", kafka.bootstrap, "-v")
    assert result.exit_code == 0, result.stderr
    assert "  clicks-2: 2 records in [0, 2)\n" in result.stderr
    found = kafka.records("clicks", 2)
    assert [(r.key, r.value, r.headers) for r in found] == [
        (b"k", value, (("host", b"edge=7"), ("empty", b""))) for value in (b"a", b"b")
    ]


def test_a_value_can_stand_for_none_and_carriage_returns_can_be_cut(kafka: FakeKafka, tmp_path: Path) -> None:
    file = write(tmp_path / "lines", b"a:1\r\nb:NULL\r\nc:\r\r\nd:end\r")
    options = ["--key-separator", ":", "--null-value", "NULL", "--strip-cr"]
    assert run("produce", "users", file, *options, "--bootstrap", kafka.bootstrap).exit_code == 0
    found = [(record.key, record.value) for record in kafka.records("users", 0)]
    assert found == [(b"a", b"1"), (b"b", None), (b"c", b"\r"), (b"d", b"end")]


def test_a_json_line_says_everything_about_its_record(kafka: FakeKafka, tmp_path: Path) -> None:
    blob = base64.b64encode(b"\xff\x00").decode()
    lines = [
        {"value": "text", "partition": 1},
        {"value": None, "key": "gone", "partition": 1},
        {"value": {"base64": blob}, "key": {"base64": blob}, "partition": 1, "timestamp": 1767225600.123},
        {"value": "", "headers": {"a": "1", "b": None}, "partition": 1, "timestamp": "2026-01-01T02:00:00.250+02:00"},
        {"value": "x", "headers": [["a", "1"], ["a", {"base64": blob}]], "partition": 1, "timestamp": 0},
        {"value": "elsewhere", "topic": "users"},
    ]
    file = write(tmp_path / "lines", "\n".join(json.dumps(line) for line in lines).encode())
    result = run("produce", "clicks", file, "--format", "json", "--bootstrap", kafka.bootstrap)
    assert result.exit_code == 0, result.stderr
    found = kafka.records("clicks", 1)
    assert [(r.key, r.value, r.headers) for r in found] == [
        (None, b"text", ()),
        (b"gone", None, ()),
        (b"\xff\x00", b"\xff\x00", ()),
        (None, b"", (("a", b"1"), ("b", None))),
        (None, b"x", (("a", b"1"), ("a", b"\xff\x00"))),
    ]
    assert [r.timestamp for r in found[2:]] == [1767225600.123, 1767225600.25, 0]
    assert abs(found[0].timestamp - found[1].timestamp) < 60 < found[0].timestamp
    assert [r.value for r in kafka.records("users", 0)] == [b"elsewhere"]


def test_json_lines_without_a_topic_of_their_own_use_the_option_defaults(kafka: FakeKafka, tmp_path: Path) -> None:
    file = write(tmp_path / "lines", b'{"value": "a"}\n{"value": "b", "partition": 0, "headers": {"own": "1"}}\n')
    options = ["--partition", "2", "--header", "all=2", "--format", "json"]
    assert run("produce", "clicks", file, *options, "--bootstrap", kafka.bootstrap).exit_code == 0
    assert [(r.value, r.headers) for r in kafka.records("clicks", 2)] == [(b"a", (("all", b"2"),))]
    assert [(r.value, r.headers) for r in kafka.records("clicks", 0)] == [(b"b", (("own", b"1"), ("all", b"2")))]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"plain text", "JSON is malformed"),
        (b"[1]", "Expected `object`, got `array`"),
        (b"{}", "missing required field `value`"),
        (b'{"value": "a", "ofset": 3}', "unknown field `ofset`; known are value, key, headers"),
        (
            b'{"value": 3}',
            'Expected `str | object | null`, got `int` - at `$.value`; a key or value is a text, null or {"',
        ),
        (b'{"value": {"a": 1}}', "unknown field `a` - at `$.value`; a key or value is a text"),
        (b'{"value": {"base64": "??"}}', "Invalid base64 encoded string"),
        (b'{"value": "\xff"}', 'not UTF-8: send other bytes as {"base64": "..."}'),
        (b'{"value": "a", "partition": -1}', "Expected `int` >= 0 - at `$.partition`"),
        (b'{"value": "a", "timestamp": "2026-01-01T00:00:00"}', "has no time zone: add Z or +02:00"),
        (b'{"value": "a", "timestamp": "yesterday"}', "is not ISO 8601"),
        (b'{"value": "a", "timestamp": -1}', "is not seconds since 1970"),
        (b'{"value": "a", "topic": "no/name"}', "'no/name' is not a topic name"),
        (b'{"value": "a", "headers": {"a": 1}}', "Expected `str | object | null`, got `int`"),
        (b"[" * 100_000, ""),
    ],
)
def test_a_bad_line_is_named_and_the_others_are_sent(
    kafka: FakeKafka, tmp_path: Path, line: bytes, reason: str
) -> None:
    file = write(tmp_path / "lines", b'{"value": "a"}\n' + line + b'\n\n{"value": "z"}\n')
    result = run("produce", "users", file, "--format", "json", "--bootstrap", kafka.bootstrap)
    assert result.exit_code == 1
    first, summary = result.stderr.splitlines()
    assert first.startswith(f"{file}:2: ")
    assert reason in first
    assert summary.endswith("; 1 bad line")
    assert [record.value for record in kafka.records("users", 0)] == [b"a", b"z"]


def test_a_line_without_any_topic_is_bad(kafka: FakeKafka, tmp_path: Path) -> None:
    file = write(tmp_path / "lines", b'{"value": "a", "topic": "users"}\n{"value": "b"}\n')
    result = run("produce", "-", file, "--format", "json", "--bootstrap", kafka.bootstrap)
    assert result.exit_code == 1
    assert f"{file}:2: no topic in the line, nor on the command line\n" in result.stderr
    assert _values(kafka, "users") == [b"a"]


def test_records_that_a_broker_refuses_are_named_by_their_lines(kafka: FakeKafka, tmp_path: Path) -> None:
    kafka.fail("Produce", ErrorCode.topic_authorization_failed, topic="clicks", partition=1, times=None)
    lines = [json.dumps({"value": str(i), "partition": i % 3 if i < 8 else 1}) for i in range(1, 12)]
    file = write(tmp_path / "lines", "\n".join(lines).encode())
    result = run("produce", "clicks", file, "--format", "json", "--bootstrap", kafka.bootstrap, "--json")
    assert result.exit_code == 1
    said = result.stderr.splitlines()
    assert len(said) == 1
    assert said[0].startswith(
        f"{file}:1,4,7-11: not delivered: clicks-1: 7 records were not delivered: the broker answered: TOPIC_AUTH"
    )
    report = json.loads(result.stdout)
    assert (report["delivered"], report["not_delivered"], report["bad_lines"]) == (4, 7, 0)
    assert report["partitions"] == [
        {"topic": "clicks", "partition": 0, "records": 2, "start": 0, "stop": 2},
        {"topic": "clicks", "partition": 2, "records": 2, "start": 0, "stop": 2},
    ]
    assert _values(kafka) == [b"2", b"3", b"5", b"6"]


def test_a_partition_that_does_not_exist_costs_only_its_lines(kafka: FakeKafka, tmp_path: Path) -> None:
    file = write(tmp_path / "lines", b'{"value": "a"}\n{"value": "b", "partition": 3}\n')
    result = run("produce", "clicks", file, "--format", "json", "--bootstrap", kafka.bootstrap)
    assert result.exit_code == 1
    assert f"{file}:2: not delivered: 1 record was not delivered: topic clicks has no partition 3" in result.stderr
    assert _values(kafka) == [b"a"]


def test_a_record_that_is_too_large_is_named_and_the_others_are_sent(kafka: FakeKafka, tmp_path: Path) -> None:
    lines = [b"a", b"b" * 990, b"c" * 2000, b"d", b"e" * 3_000_000, b"f"]
    file = write(tmp_path / "lines", b"\n".join(lines))
    result = run("produce", "users", file, "--max-record-size", "1000", "--bootstrap", kafka.bootstrap)
    assert result.exit_code == 1
    said = result.stderr.splitlines()
    assert f"{file}:2: not delivered: it takes 1,011 bytes, the limit is 1,000 (--max-record-size)" in said
    assert f"{file}:3: not delivered: it takes 2,021 bytes, the limit is 1,000 (--max-record-size)" in said
    assert f"{file}:5: too long for a record: 3,000,000 bytes, the limit is 1,000 (--max-record-size)" in said
    assert said[-1].endswith("; 2 not delivered; 1 bad line")
    assert [record.value for record in kafka.records("users", 0)] == [b"a", b"d", b"f"]


@pytest.mark.usefixtures("hasty_about_unknown_topics")
def test_an_unknown_topic_is_reported_before_anything_is_read(kafka: FakeKafka, tmp_path: Path) -> None:
    file = write(tmp_path / "lines", b"a\n")
    result = run("produce", "typo", file, "--bootstrap", kafka.bootstrap)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: topic typo: UNKNOWN_TOPIC_OR_PARTITION (error 3)\n  hint: ")


def test_a_topic_can_be_created_on_the_way(tmp_path: Path, fake_kafka: FakeKafka) -> None:
    file = write(tmp_path / "lines", b"a\n")
    result = run("produce", "new", file, "--create-topic", "--bootstrap", fake_kafka.bootstrap)
    assert result.exit_code == 0, result.stderr
    assert _values(fake_kafka, "new") == [b"a"]


def test_brokers_that_are_away_are_named(tmp_path: Path) -> None:
    file = write(tmp_path / "lines", b"a\n")
    result = run("produce", "clicks", file, "--bootstrap", "127.0.0.1:1", "--timeout", "0.5")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: no broker reachable after 0.")
    assert "127.0.0.1:1: no TCP connection: connection refused" in result.stderr


def test_brokers_that_go_away_on_the_way_cost_the_lines_that_were_not_delivered(
    kafka: FakeKafka, tmp_path: Path
) -> None:
    kafka.fail("Produce", ErrorCode.not_leader_or_follower, times=None)
    file = write(tmp_path / "lines", b"a\nb\nc\n")
    result = run("produce", "users", file, "--bootstrap", kafka.bootstrap, "--delivery-timeout", "1")
    assert result.exit_code == 1
    assert (
        f"{file}:1-3: not delivered: users-0: 3 records were not delivered: not acknowledged within 1 s"
        in result.stderr
    )
    assert "NOT_LEADER_OR_FOLLOWER" in result.stderr


def test_a_spool_delivers_while_brokers_are_up(kafka: FakeKafka, tmp_path: Path) -> None:
    file = write(tmp_path / "lines", b"a\nb\n")
    options = ["--spool", str(tmp_path / "spool"), "--write-ahead"]
    result = run("produce", "users", file, *options, "--bootstrap", kafka.bootstrap)
    assert result.exit_code == 0, result.stderr
    assert _values(kafka, "users") == [b"a", b"b"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no/name"], "'no/name' is not a topic name"),
        (["clicks", "--key", "a", "--key-separator", ":"], "--key and --key-separator are mutually exclusive"),
        (["clicks", "--key-separator", ""], "it must not be empty"),
        (
            ["clicks", "--format", "json", "--key-separator", ":"],
            "--key-separator and --format json are mutually exclusive",
        ),
        (["clicks", "--header", "novalue"], "'novalue' is not KEY=VALUE"),
        (["-"], "'-' as TOPIC needs --format json"),
        (["clicks", "--write-ahead"], "--write-ahead needs --spool DIR"),
        (["clicks", "no such file"], "does not exist"),
        (["clicks", "-", "-"], "standard input (-) is named twice"),
        (["clicks", "--acks", "2"], "'2' is not one of"),
        (["clicks", "--username", "alice"], "--username needs a password: set OTTLA_PASSWORD, or pass --password-file"),
        (["clicks", "--sasl-mechanism", "PLAIN"], "--sasl-mechanism needs --username"),
        (["clicks", "--key-file", __file__], "--key-file needs --cert-file"),
        (["clicks", "--batch-size", "10"], "'10' is too small"),
    ],
)
def test_wrong_use_is_explained_and_ends_with_two(arguments: list[str], said: str) -> None:
    result = run("produce", *arguments, "--bootstrap", "127.0.0.1:1")
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.stderr.split())


def test_help_has_examples() -> None:
    result = run("produce", "--help")
    assert result.exit_code == 0
    assert "ottla produce clicks access.log" in result.output.split("Examples:", 1)[1]


@pytest.mark.parametrize("name", ["table.parquet", "table.feather", "unnamed"])
def test_a_file_with_a_table_is_refused_with_what_sends_it(kafka: FakeKafka, tmp_path: Path, name: str) -> None:
    rows = pa.table({"key": ["a"], "value": ["1"]})
    file = str(tmp_path / name)
    (feather.write_feather if name.endswith("feather") else parquet.write_table)(rows, file)
    refused = run("produce", "users", file, "--bootstrap", kafka.bootstrap)
    assert refused.exit_code == 2
    assert " file, not lines. Python sends its columns key and value, after 'import ottla, pyarrow." in refused.stderr
    exec(refused.stderr.splitlines()[1].strip(), {"ottla": ottla, "pyarrow": pa})
    assert [(record.key, record.value) for record in kafka.records("users", 0)] == [(b"a", b"1")]


@pytest.mark.parametrize("write_table", [parquet.write_table, feather.write_feather])
def test_a_table_that_comes_through_a_pipe_is_refused(
    kafka: FakeKafka, tmp_path: Path, write_table: Callable[[pa.Table, str], None]
) -> None:
    write_table(pa.table({"value": ["1"]}), str(tmp_path / "table"))
    os.mkfifo(tmp_path / "pipe")
    writing = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes((tmp_path / "table").read_bytes()))
    writing.start()
    refused = run("produce", "users", str(tmp_path / "pipe"), "--bootstrap", kafka.bootstrap)
    writing.join()
    assert refused.exit_code == 1
    assert "file, not lines: name the file" in refused.stderr
    assert not _values(kafka, "users")


def test_a_text_that_begins_like_a_table_is_lines(kafka: FakeKafka, tmp_path: Path) -> None:
    assert run("produce", "users", write(tmp_path / "a", b"PAR1 of 3\n"), "--bootstrap", kafka.bootstrap).exit_code == 0
    assert _values(kafka, "users") == [b"PAR1 of 3"]


def test_records_as_consume_writes_them_are_noted_where_lines_are_values(kafka: FakeKafka, tmp_path: Path) -> None:
    arguments = ("--bootstrap", kafka.bootstrap)
    assert run("produce", "users", write(tmp_path / "one", b"hi\n"), *arguments).exit_code == 0
    lines = write(tmp_path / "lines", run("consume", "users", "--until", "latest", "--json", *arguments).stdout_bytes)
    note = "note: lines of 'ottla consume --json' are sent as values; --format json sends their records"
    assert note in run("produce", "clicks", lines, *arguments).stderr
    assert note not in run("produce", "clicks", lines, "--format", "json", *arguments).stderr
    assert note not in run("produce", "clicks", write(tmp_path / "own", b'{"value": "x"}\n'), *arguments).stderr


@pytest.mark.parametrize(
    "command", [("produce", "clikcs", "/etc/hostname"), ("consume", "clikcs"), ("query", "clikcs")]
)
def test_a_misspelt_topic_is_told_from_one_that_is_near(kafka: FakeKafka, command: tuple[str, ...]) -> None:
    result = run(*command, "--bootstrap", kafka.bootstrap, "--timeout", "5")
    assert result.exit_code == 1
    assert result.stderr.endswith("\n  did you mean clicks?\n")
    far = run(command[0], "zzz", *command[2:], "--bootstrap", kafka.bootstrap, "--timeout", "5")
    assert far.exit_code == 1
    assert "did you mean" not in far.stderr
