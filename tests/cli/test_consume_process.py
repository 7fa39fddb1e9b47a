"""`ottla consume` as a program: pipes, signals, a terminal, real brokers and consumer groups."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import random
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin
import pyarrow as pa
import pyarrow.parquet
import pytest
from tests.waiting import eventually

from ottla import Isolation, Producer, TopicPartition
from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.testing import FakeKafka

from .commands import PROGRAM, SECONDS, program, read_back, run, run_program, write


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka(topics={"clicks": 1}, auto_create=None) as kafka:
        yield kafka


def send(bootstrap: str, *values: bytes, topic: str = "clicks") -> None:
    with Producer(bootstrap) as producer:
        for value in values:
            producer.send(topic, value, partition=0)


def read_line(started: subprocess.Popen[bytes]) -> bytes:
    assert started.stdout is not None
    return started.stdout.readline()


@contextlib.contextmanager
def terminal() -> Iterator[tuple[int, bytearray]]:
    """A terminal for a program, and what is seen on it."""
    ours, theirs = pty.openpty()
    seen = bytearray()

    def watch() -> None:
        with contextlib.suppress(OSError):  # nobody has the terminal open any more
            while data := os.read(ours, 1000):
                seen.extend(data)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield theirs, seen
    finally:
        os.close(theirs)
        watching.join(SECONDS)
        os.close(ours)


def test_records_are_printed_as_they_come(fake: FakeKafka) -> None:
    send(fake.bootstrap, b"old")
    with program("consume", "clicks", "--bootstrap", fake.bootstrap) as started:
        assert read_line(started) == b"old\n"
        send(fake.bootstrap, b"new")
        assert read_line(started) == b"new\n"


HOSTILE = "ž\x1b]0;owned\x07\x9b31m\u202egnp".encode() + b"\xff"
WRITTEN_OUT = "ž\\x1b]0;owned\\x07\\x9b31m\\u202egnp\\xff".encode()


@pytest.mark.parametrize(("options", "shown"), [((), WRITTEN_OUT), (("--raw",), HOSTILE)], ids=["usual", "raw"])
def test_control_characters_on_a_terminal(fake: FakeKafka, options: tuple[str, ...], shown: bytes) -> None:
    send(fake.bootstrap, HOSTILE)
    arguments = ("consume", "clicks", "--until", "latest", *options, "--bootstrap", fake.bootstrap)
    with terminal() as (theirs, seen):
        subprocess.run([*PROGRAM, *arguments], stdout=theirs, timeout=SECONDS, check=True)
        eventually(lambda: seen.endswith(b"\n"), "the whole line is there")
    assert bytes(seen) == shown + b"\r\n"


def test_a_pipe_gets_every_byte_as_it_is(fake: FakeKafka) -> None:
    send(fake.bootstrap, HOSTILE)
    ended = run_program("consume", "clicks", "--until", "latest", "--bootstrap", fake.bootstrap)
    assert ended.stdout == HOSTILE + b"\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_the_waiting_at_once(fake: FakeKafka, number: int, code: int) -> None:
    send(fake.bootstrap, b"a")
    with program("consume", "clicks", "--bootstrap", fake.bootstrap) as started:
        assert read_line(started) == b"a\n"
        started.send_signal(number)
        assert started.wait(SECONDS) == code
        assert started.stderr is not None
        assert started.stderr.read() == b""


def test_an_interrupt_before_the_brokers_answer_ends_it_too(fake: FakeKafka) -> None:
    fake.silence("Metadata", times=None)
    with program("consume", "clicks", "--bootstrap", fake.bootstrap, "--timeout", "100") as started:
        fake.wait_for_request("Metadata", SECONDS)
        started.send_signal(signal.SIGINT)
        assert started.wait(SECONDS) == 130


def test_an_interrupt_completes_the_file(fake: FakeKafka, tmp_path: Path) -> None:
    send(fake.bootstrap, b"a", b"b")
    path = tmp_path / "clicks.parquet"
    with terminal() as (theirs, seen):
        with program(
            "consume", "clicks", "--bootstrap", fake.bootstrap, "--output", str(path), stderr=theirs
        ) as started:
            eventually(lambda: b"2 records, " in seen, "no live line")
            assert not path.exists()
            started.send_signal(signal.SIGINT)
            assert started.wait(SECONDS) == 130
        eventually(lambda: seen.endswith(f"\x1b[K2 records written to {path}\r\n".encode()), "not told")
    assert os.listdir(tmp_path) == [path.name]
    assert pa.parquet.read_table(path).column("value").to_pylist() == [b"a", b"b"]


def test_head_ends_it_although_nothing_more_comes(fake: FakeKafka) -> None:
    send(fake.bootstrap, b"a", b"b", b"c")
    command = f"{' '.join(PROGRAM)} consume clicks --bootstrap {fake.bootstrap}"
    script = f'set -o pipefail; {command} | head -n 2; echo "${{PIPESTATUS[0]}}"'
    ended = subprocess.run(["bash", "-c", script], capture_output=True, timeout=SECONDS)
    assert (ended.stdout, ended.stderr) == (b"a\nb\n141\n", b"")


def test_head_ends_it_in_the_middle_of_much(fake: FakeKafka) -> None:
    send(fake.bootstrap, *(b"%d" % i + b"x" * 1000 for i in range(3000)))
    command = f"{' '.join(PROGRAM)} consume clicks --bootstrap {fake.bootstrap} --until latest"
    script = f'{command} | head -c 1; echo "${{PIPESTATUS[0]}}"'
    ended = subprocess.run(["bash", "-c", script], capture_output=True, timeout=SECONDS)
    assert (ended.stdout, ended.stderr) == (b"0141\n", b"")


def test_a_short_answer_that_nobody_reads_has_the_same_exit_code(fake: FakeKafka) -> None:
    send(fake.bootstrap, b"a")
    script = f'{" ".join(PROGRAM)} topics list --bootstrap {fake.bootstrap} | true; echo "${{PIPESTATUS[0]}}"'
    ended = subprocess.run(["bash", "-c", script], capture_output=True, timeout=SECONDS)
    assert (ended.stdout, ended.stderr) == (b"141\n", b"")


def test_a_connection_that_broke_is_not_taken_for_the_output(fake: FakeKafka) -> None:
    """The system sends SIGPIPE for every connection that is written to after a broker has closed it."""
    send(fake.bootstrap, b"a")
    with program("consume", "clicks", "--bootstrap", fake.bootstrap) as started:
        assert read_line(started) == b"a\n"
        started.send_signal(signal.SIGPIPE)
        send(fake.bootstrap, b"b")
        assert read_line(started) == b"b\n"
        started.send_signal(signal.SIGINT)
        assert started.wait(SECONDS) == 130


def test_a_second_interrupt_gives_up_a_reader_that_does_not_read(fake: FakeKafka) -> None:
    send(fake.bootstrap, *(b"x" * 1000 for _ in range(3000)))
    with program("consume", "clicks", "--bootstrap", fake.bootstrap) as started:
        assert read_line(started) == b"x" * 1000 + b"\n"
        started.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            started.wait(0.5)
        started.send_signal(signal.SIGINT)
        assert started.wait(SECONDS) == 130
        assert started.stderr is not None
        assert started.stderr.read() == b"aborted\n"


def test_a_file_is_written_even_if_standard_output_is_closed(fake: FakeKafka, tmp_path: Path) -> None:
    send(fake.bootstrap, b"a")
    path = tmp_path / "clicks.jsonl"
    read, written = os.pipe()
    os.close(read)
    command = [*PROGRAM, "consume", "clicks", "--until", "latest", "--output", str(path), "--bootstrap", fake.bootstrap]
    try:
        ended = subprocess.run(command, stdout=written, stderr=subprocess.PIPE, timeout=SECONDS)
    finally:
        os.close(written)
    assert ended.stderr.decode() == f"1 record written to {path}\n"
    assert ended.returncode == 0


def test_a_full_disk_is_reported(fake: FakeKafka) -> None:
    send(fake.bootstrap, b"a")
    with open("/dev/full", "wb") as full:
        command = [*PROGRAM, "consume", "clicks", "--until", "latest", "--bootstrap", fake.bootstrap]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=SECONDS)
    assert ended.returncode == 1
    assert ended.stderr == b"error: cannot write to standard output: No space left on device\n"


def test_a_closed_standard_output_is_reported(fake: FakeKafka) -> None:
    command = f"exec {' '.join(PROGRAM)} consume clicks --bootstrap {fake.bootstrap} >&-"
    ended = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, timeout=SECONDS)
    assert ended.returncode == 2
    assert ended.stderr == b"error: standard output is closed: write a file with --output\n"


HALF = f"\x1b[36m{'━' * 12}\x1b[0m\x1b[2m{'─' * 12}\x1b[0m"


def test_a_terminal_sees_how_far_a_bounded_read_is(fake: FakeKafka, tmp_path: Path) -> None:
    send(fake.bootstrap, b"a", b"b")
    path = tmp_path / "clicks.parquet"
    arguments = ["consume", "clicks", "--bootstrap", fake.bootstrap, "--until", "4", "--output", str(path)]
    with terminal() as (theirs, seen):
        with program(*arguments, stderr=theirs) as started:
            eventually(lambda: f"{HALF}  50%  2 records, ".encode() in seen, "no live line")
            send(fake.bootstrap, b"c", b"d")
            assert started.wait(SECONDS) == 0
        eventually(lambda: seen.endswith(f"\x1b[K4 records written to {path}\r\n".encode()), "not told")


def test_a_terminal_with_records_sees_what_is_waited_for_and_nothing_else(fake: FakeKafka) -> None:
    note = b"note: waiting for new records up to offset 3: clicks-0 ends at 2\r\n"
    send(fake.bootstrap, b"a", b"b")
    command = [*PROGRAM, "consume", "clicks", "--bootstrap", fake.bootstrap, "--until", "3"]
    with terminal() as (theirs, seen):
        with subprocess.Popen(command, stdout=theirs, stderr=theirs) as started:
            eventually(lambda: seen == note + b"a\r\nb\r\n", lambda: f"the records do not come: {bytes(seen)!r}")
            send(fake.bootstrap, b"c")
            assert started.wait(SECONDS) == 0
        eventually(lambda: seen == note + b"a\r\nb\r\nc\r\n", "there is more or less than records")


@pytest.mark.broker
def test_json_through_a_pipe_makes_an_identical_topic(kafka: LocalCluster, tmp_path: Path) -> None:
    chance = random.Random(5)
    payloads = [None, b"", b"text", "Käse \U0001f9c0".encode(), b"\xff\x00", b'"\\\n\r\t\x00']
    with Admin(kafka.bootstrap) as admin:
        for name in ("cli-there", "cli-back"):
            admin.create_topic(name, partitions=3, replicas=3)
    with Producer(kafka.bootstrap, compression="lz4") as producer:
        for number in range(3000):
            producer.send(
                "cli-there",
                chance.choice(payloads),
                key=chance.choice(payloads),
                headers=[(chance.choice(["a", "ü", ""]), chance.choice(payloads)) for _ in range(number % 3)],
                timestamp=chance.randrange(1, 1_767_225_600_000) / 1000,
                partition=number % 3,
            )
    ours = " ".join(PROGRAM)
    consumed = f"{ours} consume cli-there --until latest --json --bootstrap {kafka.bootstrap}"
    renamed = "sed s/cli-there/cli-back/"
    produced = f"{ours} produce - --format json --bootstrap {kafka.bootstrap}"
    script = f"set -o pipefail; {consumed} | {renamed} | {produced}"
    ended = subprocess.run(["bash", "-c", script], capture_output=True, timeout=SECONDS)
    assert ended.returncode == 0, ended.stderr
    there, back = (
        sorted(
            (m.partition(), m.offset(), m.key(), m.value(), m.headers(), m.timestamp())
            for m in read_back(kafka.bootstrap, topic, 3000)
        )
        for topic in ("cli-there", "cli-back")
    )
    assert there == back
    path = tmp_path / "back.parquet"
    written = run("consume", "cli-back", "--until", "latest", "--output", str(path), "--bootstrap", kafka.bootstrap)
    assert written.exit_code == 0, written.stderr
    table = pa.parquet.read_table(path).sort_by([("partition", "ascending"), ("offset", "ascending")])
    assert table.column("value").to_pylist() == [row[3] for row in there]
    assert table.column("key").to_pylist() == [row[2] for row in there]


@pytest.mark.broker
def test_a_group_goes_on_behind_what_was_written_out(kafka: LocalCluster, tmp_path: Path) -> None:
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic("cli-group", partitions=1, replicas=3)
    send(kafka.bootstrap, *(b"%d" % i for i in range(10)), topic="cli-group")
    member = ["consume", "cli-group", "--group", "cli-readers", "--bootstrap", kafka.bootstrap]
    assert run(*member, "--max-records", "3").stdout == "0\n1\n2\n"
    path = tmp_path / "next.jsonl"
    assert run(*member, "--max-records", "2", "--output", str(path)).exit_code == 0
    assert [json.loads(line)["value"] for line in path.read_bytes().splitlines()] == ["3", "4"]
    with program(*member) as started:
        assert [read_line(started) for _ in range(5)] == [b"%d\n" % i for i in range(5, 10)]
        started.send_signal(signal.SIGINT)
        assert started.wait(SECONDS) == 130
    rest = ["query", "cli-group", "--count", "--from", "group:cli-readers", "--bootstrap", kafka.bootstrap]
    assert run(*rest).stdout == "0\n"
    send(kafka.bootstrap, b"10", topic="cli-group")
    assert run(*rest).stdout == "1\n"
    bounded = ("--until", "latest", "--from", "group:cli-readers", "--bootstrap", kafka.bootstrap)
    assert run("consume", "cli-group", *bounded).stdout == "10\n"


@pytest.mark.broker
def test_a_group_that_ends_at_the_latest_offset_drains_what_is_there(kafka: LocalCluster) -> None:
    """Also with an empty partition, and with a log that ends with the marker of a transaction."""
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic("cli-drain", partitions=3, replicas=3)
    with Producer(kafka.bootstrap, transactional_id="cli-drain") as producer, producer.transaction():
        for number in range(6):
            producer.send("cli-drain", b"%d" % number, partition=number % 2)
    count = ("query", "cli-drain", "--count", "--bootstrap", kafka.bootstrap)
    eventually(lambda: run(*count).stdout == "6\n", "the markers are not written", seconds=SECONDS)
    drain = ("consume", "cli-drain", "--group", "cli-drainers", "--bootstrap", kafka.bootstrap)
    first = run(*drain, "--until", "latest")
    assert first.exit_code == 0, first.stderr
    assert sorted(first.stdout.split()) == ["0", "1", "2", "3", "4", "5"]
    assert run(*drain, "--until", "latest").stdout == "", "it has read all, and ends at once"
    send(kafka.bootstrap, b"6", topic="cli-drain")
    assert run(*drain, "--until", "latest", "--from", "latest").stdout == "6\n"


@pytest.mark.broker
def test_a_group_that_ends_in_the_middle_leaves_the_rest_to_the_next_run(kafka: LocalCluster) -> None:
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic("cli-middle", partitions=1, replicas=3)
    send(kafka.bootstrap, *(b"%d" % number for number in range(8)), topic="cli-middle")
    drain = ("consume", "cli-middle", "--group", "cli-middle", "--bootstrap", kafka.bootstrap)
    assert run(*drain, "--until", "5").stdout == "0\n1\n2\n3\n4\n"
    assert run(*drain, "--until", "latest").stdout == "5\n6\n7\n"


@pytest.mark.broker
def test_members_of_a_group_drain_a_topic_together(kafka: LocalCluster) -> None:
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic("cli-drain-two", partitions=2, replicas=3)
    with Producer(kafka.bootstrap) as producer:
        for number in range(2000):
            producer.send("cli-drain-two", b"%d" % number, partition=number % 2)
    drain = ("consume", "cli-drain-two", "--group", "cli-two", "--until", "latest", "--bootstrap", kafka.bootstrap)
    with program(*drain) as one, program(*drain) as other:
        outputs = [member.communicate(timeout=SECONDS)[0].split() for member in (one, other)]
        assert (one.returncode, other.returncode) == (0, 0)
    assert sorted(map(int, outputs[0] + outputs[1])) == list(range(2000))


@pytest.mark.broker
def test_what_was_not_written_out_is_not_committed(kafka: LocalCluster, tmp_path: Path) -> None:
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic("cli-unwritten", partitions=1, replicas=3)
    send(kafka.bootstrap, b"a", b"b", topic="cli-unwritten")
    member = ["consume", "cli-unwritten", "--group", "cli-unwritten", "--bootstrap", kafka.bootstrap]
    with open("/dev/full", "wb") as full:
        ended = subprocess.run([*PROGRAM, *member], stdout=full, stderr=subprocess.PIPE, timeout=SECONDS)
    assert ended.stderr == b"error: cannot write to standard output: No space left on device\n"
    assert ended.returncode == 1
    assert run(*member, "--output", str(tmp_path / "nowhere" / "x.arrow")).exit_code == 1
    assert run(*member, "--max-records", "2").stdout == "a\nb\n"


@pytest.mark.broker
def test_a_loss_is_reported_and_ends_it_by_default(kafka: LocalCluster) -> None:
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic("cli-cut-off", partitions=1, replicas=3)
    send(kafka.bootstrap, b"a", b"b", b"c", topic="cli-cut-off")
    cut = confluent_kafka.TopicPartition("cli-cut-off", 0, 2)
    client = confluent_kafka.admin.AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    client.delete_records([cut])[cut].result(SECONDS)
    asked = ["consume", "cli-cut-off", "--from", "0", "--until", "latest", "--bootstrap", kafka.bootstrap]
    refused = run(*asked)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "error: cli-cut-off-0: offsets [0, 2) are lost" in refused.stderr
    gone_on = run(*asked, "--on-lost", "earliest")
    assert (gone_on.exit_code, gone_on.stdout) == (0, "c\n")
    assert gone_on.stderr.startswith("lost: cli-cut-off-0[0, 2): ")
    assert gone_on.stderr.endswith("; continuing at 2\n")


@pytest.mark.broker
def test_an_aborted_transaction_is_seen_only_on_request(kafka: LocalCluster) -> None:
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic("cli-aborted", partitions=1, replicas=3)
    with Producer(kafka.bootstrap, transactional_id="cli-aborted") as producer:
        with contextlib.suppress(RuntimeError), producer.transaction():
            producer.send("cli-aborted", b"never", partition=0).result(SECONDS)
            raise RuntimeError("changed its mind")
        with producer.transaction():
            producer.send("cli-aborted", b"real", partition=0)
    with Admin(kafka.bootstrap) as admin:  # the marker of a commit is written a moment after the commit
        at = TopicPartition("cli-aborted", 0)
        eventually(lambda: admin.list_offsets([at], isolation=Isolation.READ_COMMITTED)[at].offset == 4, "the marker")
    asked = ["cli-aborted", "--bootstrap", kafka.bootstrap]
    assert run("consume", *asked, "--until", "latest").stdout == "real\n"
    everything = run("consume", *asked, "--until", "latest", "--isolation", "read_uncommitted")
    assert everything.stdout == "never\nreal\n"
    assert run("query", *asked, "--count").stdout == "1\n"


@pytest.mark.broker
def test_a_million_records_come_out_as_they_went_in(kafka: LocalCluster, tmp_path: Path) -> None:
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic("cli-much", partitions=1, replicas=1)
    lines = b"".join(b'{"n": %d, "text": "some text"}\n' % i for i in range(1_000_000))
    file = write(tmp_path / "lines", lines)
    produced = run("produce", "cli-much", file, "--compression", "lz4", "--bootstrap", kafka.bootstrap)
    assert produced.exit_code == 0, produced.stderr
    read = ["consume", "cli-much", "--until", "latest", "--bootstrap", kafka.bootstrap]
    assert run_program(*read).stdout == lines
    found = run(*read, "--json").stdout_bytes.splitlines()
    assert len(found) == 1_000_000
    assert json.loads(found[-1])["value"] == '{"n": 999999, "text": "some text"}'
    path = tmp_path / "much.parquet"
    assert run(*read, "--output", str(path)).exit_code == 0
    assert pa.parquet.read_metadata(path).num_rows == 1_000_000
    assert run("query", "cli-much", "--count", "--bootstrap", kafka.bootstrap).stdout == "1000000\n"
