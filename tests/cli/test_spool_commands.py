"""`ottla spool`: what a dead program left is listed, delivered once and exported, also when some of it is damaged."""

from __future__ import annotations

import errno
import json
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import eventually

from ottla.admin import Admin, OffsetSpec
from ottla.cluster import LocalCluster
from ottla.errors import ErrorCode
from ottla.model import TopicPartition
from ottla.produce.options import Spool
from ottla.produce.producer import Producer
from ottla.testing import FakeKafka, StoredRecord

from .commands import SECONDS, program, read_back, run, write


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka(topics={"clicks": 3, "users": 1}, auto_create=None) as kafka:
        yield kafka


@pytest.fixture
def left(fake: FakeKafka, tmp_path: Path) -> Path:
    """A spool that a program left behind because no broker took its records."""
    fake.fail("Produce", ErrorCode.not_leader_or_follower, times=None)
    spool = tmp_path / "spool"
    producer = Producer(fake.bootstrap, spool=Spool(spool, write_ahead=True))
    producer.send("clicks", b"text", b"k", partition=1, timestamp=1767225600.125)
    producer.send("clicks", None, b"gone", partition=1, timestamp=1767225600)
    producer.send("clicks", b"\xff\0", headers=[("a", b"1"), ("a", b"\xff"), ("b", None)], partition=2)
    producer.send("clicks", b"", partition=0, timestamp=0.0)
    producer.send("users", "élan", timestamp=1767225600.999)
    producer.persist(SECONDS)
    fake.all_down()  # nothing is under way any more when the faults end
    producer.close(0)
    fake.clear_faults()
    fake.all_up()
    return spool


def _everything(fake: FakeKafka) -> list[tuple[str, int, list[StoredRecord]]]:
    return [
        (topic, partition, fake.records(topic, partition))
        for topic, partitions in sorted(fake.topics.items())
        for partition in range(partitions)
    ]


def _content(fake: FakeKafka) -> list[tuple[object, ...]]:
    return sorted(
        (
            (t, r.key or b"", r.value or b"", r.value is None, r.headers, r.timestamp)
            for t, _, rs in _everything(fake)
            for r in rs
        ),
        key=repr,
    )


def test_a_spool_is_listed_by_partition(left: Path) -> None:
    shown = run("spool", "list", str(left))
    assert shown.exit_code == 0
    assert shown.stdout.startswith(f"{left}: 5 records to deliver, not in use\n")
    assert "  clicks-1: 2 records in 1 batch, " in shown.stdout
    listed = json.loads(run("spool", "list", str(left), "--json").stdout)
    assert listed["owner"] is None
    assert listed["damage"] == []
    assert sum(one["records"] for one in listed["partitions"]) == 5
    assert {one["topic"] for one in listed["partitions"]} == {"clicks", "users"}
    assert all(0 < one["oldest"] <= one["newest"] for one in listed["partitions"])


def test_a_replay_delivers_everything_once_and_leaves_nothing(fake: FakeKafka, left: Path) -> None:
    result = run("spool", "replay", str(left), "--bootstrap", fake.bootstrap)
    assert result.exit_code == 0, result.stderr
    assert result.stderr.startswith("5 of 5 records delivered in ")
    assert [record.value for record in fake.records("clicks", 1)] == [b"text", None]
    assert [record.timestamp for record in fake.records("clicks", 1)] == [1767225600.125, 1767225600]
    assert len(_content(fake)) == 5
    again = run("spool", "replay", str(left), "--bootstrap", fake.bootstrap)
    assert (again.exit_code, again.stderr) == (0, f"nothing to deliver in {left}\n")
    as_json = run("spool", "replay", str(left), "--bootstrap", fake.bootstrap, "--json")
    assert json.loads(as_json.stdout) == {"directory": str(left), "delivered": 0, "left": 0, "seconds": 0.0}
    assert len(_content(fake)) == 5


def test_what_is_exported_can_be_sent_and_is_the_same(fake: FakeKafka, left: Path, tmp_path: Path) -> None:
    exported = tmp_path / "exported"
    assert run("spool", "export", str(left), "--output", str(exported)).exit_code == 0
    assert run("spool", "export", str(left)).stdout_bytes == exported.read_bytes()
    assert run("produce", "-", str(exported), "--format", "json", "--bootstrap", fake.bootstrap).exit_code == 0
    from_export = _content(fake)
    assert len(from_export) == 5
    assert run("spool", "replay", str(left), "--bootstrap", fake.bootstrap).exit_code == 0
    assert _content(fake) == sorted([*from_export, *from_export], key=repr)


def test_a_replay_without_brokers_keeps_everything(left: Path) -> None:
    result = run("spool", "replay", str(left), "--bootstrap", "127.0.0.1:1", "--timeout", "0.5")
    assert result.exit_code == 1
    assert "0 of 5 records delivered in " in result.stderr
    assert f"; 5 are still in {left}\n" in result.stderr
    assert (
        sum(one["records"] for one in json.loads(run("spool", "list", str(left), "--json").stdout)["partitions"]) == 5
    )


def test_an_interrupted_replay_keeps_everything(fake: FakeKafka, left: Path) -> None:
    fake.fail("Produce", ErrorCode.not_leader_or_follower, times=None)
    before = len(fake.requests)
    with program("spool", "replay", str(left), "--bootstrap", fake.bootstrap) as started:
        assert started.stderr is not None
        eventually(lambda: any(seen.api_key == 0 for seen in fake.requests[before:]), "no attempt was made")
        started.send_signal(signal.SIGINT)
        assert started.wait(SECONDS) == 130
        assert f"; 5 are still in {left}".encode() in started.stderr.read()


def test_what_the_broker_refuses_for_good_is_reported(fake: FakeKafka, left: Path) -> None:
    fake.fail("Produce", ErrorCode.topic_authorization_failed, topic="users", times=None)
    result = run("spool", "replay", str(left), "--bootstrap", fake.bootstrap)
    assert result.exit_code == 1
    assert "users-0: 1 record was not delivered: the broker answered: TOPIC_AUTHORIZATION_FAILED" in result.stderr
    assert "4 of 5 records delivered" in result.stderr


def test_a_spool_whose_owner_lives_is_shown_and_not_touched(fake: FakeKafka, tmp_path: Path) -> None:
    fake.fail("Produce", ErrorCode.not_leader_or_follower, times=None)
    spool = str(tmp_path / "spool")
    with program("produce", "clicks", "--spool", spool, "--write-ahead", "--bootstrap", fake.bootstrap) as started:
        assert started.stdin is not None
        started.stdin.write(b"a\nb\n")
        eventually(
            lambda: Path(spool).is_dir() and "2 records to deliver" in run("spool", "list", spool).stdout,
            "nothing kept",
        )
        assert f"in use by process {started.pid} on " in run("spool", "list", spool).stdout
        refused = run("spool", "replay", spool, "--bootstrap", fake.bootstrap)
        assert refused.exit_code == 1
        assert refused.stderr.startswith(f"error: spool {spool} is in use by process {started.pid}")
        exported = run("spool", "export", spool)
        assert exported.exit_code == 0, exported.stderr
        assert [json.loads(line)["value"] for line in exported.stdout.splitlines()] == ["a", "b"]
        started.kill()
        started.wait(SECONDS)
        fake.clear_faults()
        assert run("spool", "replay", spool, "--bootstrap", fake.bootstrap).exit_code == 0
    assert sorted(r.value or b"" for p in range(3) for r in fake.records("clicks", p)) == [b"a", b"b"]


def test_of_a_damaged_spool_the_rest_is_listed_exported_and_delivered(fake: FakeKafka, left: Path) -> None:
    (segment,) = left.glob("*.log")
    data = bytearray(segment.read_bytes())
    data[-3] ^= 0x40
    segment.write_bytes(data)
    shown = run("spool", "list", str(left))
    assert shown.exit_code == 1
    assert shown.stderr.startswith(f"damaged: {segment}: 1 batch is lost")
    listed = json.loads(run("spool", "list", str(left), "--json").stdout)
    assert [one["file"] for one in listed["damage"]] == [str(segment)]
    rest = sum(one["records"] for one in listed["partitions"])
    assert 0 < rest < 5
    exported = run("spool", "export", str(left))
    assert exported.exit_code == 1
    assert exported.stderr.startswith("damaged: ")
    assert len(exported.stdout.splitlines()) == rest
    replayed = run("spool", "replay", str(left), "--bootstrap", fake.bootstrap)
    assert replayed.exit_code == 1
    assert f"{rest} of {rest} records delivered" in replayed.stderr
    assert len(_content(fake)) == rest


def test_what_is_no_spool_is_reported(tmp_path: Path) -> None:
    for command in (["list"], ["export"], ["replay", "--bootstrap", "127.0.0.1:1"]):
        result = run("spool", *command, str(tmp_path / "none"))
        assert result.exit_code == 1
        assert result.stderr == f"error: spool {tmp_path / 'none'}: does not exist\n"
    assert not (tmp_path / "none").exists()


def test_the_next_run_with_the_same_spool_delivers_the_old_records_first(
    fake: FakeKafka, left: Path, tmp_path: Path
) -> None:
    file = write(tmp_path / "more", b"new\n")
    options = ["--partition", "1", "--spool", str(left), "--bootstrap", fake.bootstrap]
    result = run("produce", "clicks", file, *options)
    assert result.exit_code == 0, result.stderr
    assert [record.value for record in fake.records("clicks", 1)] == [b"text", None, b"new"]


def test_lines_that_no_broker_takes_are_kept_and_named(fake: FakeKafka, tmp_path: Path) -> None:
    fake.fail("Produce", ErrorCode.not_leader_or_follower, times=None)
    spool = tmp_path / "spool"
    file = write(tmp_path / "lines", b"a\nb\n")
    options = ["--spool", str(spool), "--delivery-timeout", "4", "--bootstrap", fake.bootstrap]
    result = run("produce", "users", file, *options)
    assert result.exit_code == 1
    assert (
        f"{file}:1-2: not delivered: users-0: 2 records were not delivered: kept in the spool {spool}" in result.stderr
    )
    assert result.stderr.endswith("; 2 not delivered, kept in the spool\n")
    fake.clear_faults()
    assert run("spool", "replay", str(spool), "--bootstrap", fake.bootstrap).exit_code == 0
    assert [record.value for record in fake.records("users", 0)] == [b"a", b"b"]


@pytest.mark.parametrize("command", ["list", "replay", "export"])
def test_help_has_examples(command: str) -> None:
    result = run("spool", command, "--help")
    assert result.exit_code == 0
    assert f"ottla spool {command} unsent" in result.output.split("Examples:", 1)[1]


@pytest.mark.broker
def test_a_killed_program_is_replayed_into_real_brokers_without_loss_or_doubles(
    kafka: LocalCluster, tmp_path: Path
) -> None:
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic("cli-spool", partitions=3, replicas=3)
    spool = str(tmp_path / "spool")
    lines = [b"%06d" % i for i in range(60_000)]
    options = ["--spool", spool, "--write-ahead", "--batch-size", "20000", "--linger", "0.5"]
    with program("produce", "cli-spool", *options, "--bootstrap", kafka.bootstrap) as started:
        assert started.stdin is not None
        started.stdin.write(b"\n".join(lines) + b"\n")
        eventually(lambda: _has_segment(Path(spool)), "nothing was spooled")
        started.kill()
        started.wait(SECONDS)
    kept = [json.loads(line)["value"].encode() for line in run("spool", "export", spool).stdout.splitlines()]
    replayed = run("spool", "replay", spool, "--bootstrap", kafka.bootstrap)
    is_torn = "cut short" in replayed.stderr  # the kill came in the middle of a batch that nobody had been told of
    assert replayed.exit_code == int(is_torn), replayed.stderr
    found = _read_what_is_there(kafka.bootstrap, "cli-spool")
    assert len(found) == len(set(found))
    assert set(kept) <= set(found) <= set(lines)


def _has_segment(spool: Path) -> bool:
    return any(file.stat().st_size > 100_000 for file in spool.glob("*.log"))


def _read_what_is_there(bootstrap: str, topic: str) -> list[bytes]:
    with Admin(bootstrap) as admin:
        ends = admin.list_offsets([TopicPartition(topic, number) for number in range(3)], OffsetSpec.LATEST)
    count = sum(end.offset for end in ends.values())
    assert count > 0
    return [message.value() or b"" for message in read_back(bootstrap, topic, count)]


def test_a_folder_that_is_no_spool_is_reported(tmp_path: Path) -> None:
    write(tmp_path / "notes.txt", b"nothing of ours")
    for command in (["list"], ["export"]):
        done = run("spool", *command, str(tmp_path))
        assert done.exit_code == 1
        assert "is not a spool" in done.stderr


def test_what_is_exported_is_for_its_owner_only(left: Path, tmp_path: Path) -> None:
    output = tmp_path / "exported"
    assert run("spool", "export", str(left), "--output", str(output)).exit_code == 0
    assert stat.S_IMODE(output.stat().st_mode) == 0o600


@pytest.mark.parametrize("kind", ["file", "link", "dangling link"])
def test_an_export_touches_nothing_that_exists_unless_asked(left: Path, tmp_path: Path, kind: str) -> None:
    output, precious = tmp_path / "exported", tmp_path / "precious"
    if kind != "dangling link":
        precious.write_text("precious")
    if kind == "file":
        precious.rename(output)
    else:
        output.symlink_to(precious)
    refused = run("spool", "export", str(left), "--output", str(output))
    assert refused.exit_code == 1
    assert "exists already: choose another name, or pass --force to replace it" in refused.stderr
    assert kind == "dangling link" or output.read_text() == "precious"
    assert precious.exists() == (kind == "link")

    assert run("spool", "export", str(left), "--output", str(output), "--force").exit_code == 0
    assert not output.is_symlink()
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    assert len(output.read_text().splitlines()) == 5
    assert precious.exists() == (kind == "link")
    assert kind != "link" or precious.read_text() == "precious"


def test_an_export_that_fails_leaves_the_earlier_file_alone(
    left: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "exported"
    output.write_text("earlier")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ottla.cli.spool._lines", full)
    assert run("spool", "export", str(left), "--output", str(output), "--force").exit_code == 1
    assert output.read_text() == "earlier"
    assert run("spool", "export", str(left), "--output", str(tmp_path / "new")).exit_code == 1
    assert [path.name for path in tmp_path.iterdir() if "exported" in path.name or "new" in path.name] == ["exported"]
