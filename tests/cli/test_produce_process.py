"""`ottla produce` as a program: pipes, signals, closed streams, a million lines, real brokers with and without TLS."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import subprocess
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.errors import ErrorCode
from ottla.testing import FakeKafka

from .commands import PROGRAM, SECONDS, program, read_back, run, run_program, write


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka(topics={"clicks": 1}, auto_create=None) as kafka:
        yield kafka


def _values(fake: FakeKafka) -> list[bytes | None]:
    return [record.value for record in fake.records("clicks", 0)]


def test_standard_input_is_sent_as_it_comes(fake: FakeKafka) -> None:
    with program("produce", "clicks", "--bootstrap", fake.bootstrap) as started:
        assert started.stdin is not None
        started.stdin.write(b"first\nsecond without its end")
        eventually(lambda: _values(fake) == [b"first"], "the first line waits for more")
        started.stdin.write(b" until now\nlast")
        started.stdin.close()
        assert started.wait(SECONDS) == 0
    assert _values(fake) == [b"first", b"second without its end until now", b"last"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_delivers_what_was_read(fake: FakeKafka, number: int, code: int) -> None:
    with program("produce", "clicks", "--bootstrap", fake.bootstrap, "--linger", "30") as started:
        assert started.stdin is not None
        assert started.stderr is not None
        fake.wait_for_request("Metadata", SECONDS)
        started.stdin.write(b"a\nb\nhalf a line")
        _wait_until_read(started)
        started.send_signal(number)
        assert started.wait(SECONDS) == code
        said = started.stderr.read().decode()
    assert _values(fake) == [b"a", b"b"]
    assert "stopping: delivering what was read" in said
    assert "2 records delivered" in said


def test_an_interrupt_before_anything_was_read_ends_at_once(fake: FakeKafka) -> None:
    fake.silence("Metadata", times=None)
    with program("produce", "clicks", "--bootstrap", fake.bootstrap, "--timeout", "100") as started:
        fake.wait_for_request("Metadata", SECONDS)
        started.send_signal(signal.SIGINT)
        assert started.wait(SECONDS) == 130


def test_a_second_interrupt_gives_up_and_names_the_lines(fake: FakeKafka) -> None:
    fake.fail("Produce", ErrorCode.not_leader_or_follower, times=None)
    with program("produce", "clicks", "--bootstrap", fake.bootstrap) as started:
        assert started.stdin is not None
        assert started.stderr is not None
        started.stdin.write(b"a\nb\n")
        fake.wait_for_request("Produce", SECONDS)
        started.send_signal(signal.SIGINT)
        assert started.stderr.readline() == b"\n"
        assert started.stderr.readline().startswith(b"stopping: ")
        started.send_signal(signal.SIGINT)
        assert started.wait(SECONDS) == 130
        said = started.stderr.read().decode()
    assert "stdin:1-2: not delivered: " in said
    assert "0 records delivered" in said
    assert "Traceback" not in said


def _wait_until_read(started: subprocess.Popen[bytes]) -> None:
    """The program has taken everything out of the pipe."""
    assert started.stdin is not None
    fd = started.stdin.fileno()
    eventually(lambda: fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4) == b"\0" * 4, "the pipe stays full")


def test_a_closed_standard_input_is_reported(fake: FakeKafka) -> None:
    command = f"exec {' '.join(PROGRAM)} produce clicks --bootstrap {fake.bootstrap} <&-"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, timeout=SECONDS)
    assert ended.returncode == 2
    assert ended.stderr == b"error: standard input is closed: name files to read\n"


def test_a_reader_of_the_errors_that_has_gone_stops_nothing(fake: FakeKafka, tmp_path: Path) -> None:
    lines = b"".join(b"bad\n" if i % 2 else b'{"value": "%d"}\n' % i for i in range(2000))
    file = write(tmp_path / "lines", lines)
    read, written = os.pipe()
    os.close(read)
    try:
        command = [*PROGRAM, "produce", "clicks", file, "--format", "json", "--bootstrap", fake.bootstrap]
        ended = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=written, timeout=SECONDS)
    finally:
        os.close(written)
    assert ended.returncode == 1
    assert _values(fake) == [b"%d" % i for i in range(0, 2000, 2)]


def test_a_writer_that_is_slow_or_gone_is_the_end_of_the_input(fake: FakeKafka) -> None:
    command = f"(printf 'a\\nb'; exit 3) | {' '.join(PROGRAM)} produce clicks --bootstrap {fake.bootstrap}"
    assert subprocess.run(["sh", "-c", command], capture_output=True, timeout=SECONDS).returncode == 0
    assert _values(fake) == [b"a", b"b"]


def test_a_terminal_sees_how_far_it_is(fake: FakeKafka) -> None:
    ours, theirs = pty.openpty()
    seen = bytearray()

    def watch() -> None:
        while True:
            try:
                seen.extend(os.read(ours, 1000))
            except OSError:  # the terminal was closed
                return

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        with program("produce", "clicks", "--bootstrap", fake.bootstrap, stderr=theirs) as started:
            os.close(theirs)
            assert started.stdin is not None
            started.stdin.write(b"a\nb\n")
            eventually(lambda: b"2 records delivered" in seen, "no live line")
            started.stdin.close()
            assert started.wait(SECONDS) == 0
    finally:
        watching.join(SECONDS)
        os.close(ours)
    last = seen.decode().split("\x1b[K")[-1]
    assert re.fullmatch(r"2 records delivered \(2B read\) in [0-9.]+ s\r\n", last), "so few have no rate"


@pytest.mark.broker
def test_a_million_lines_arrive_once_and_in_order_per_key(kafka: LocalCluster) -> None:
    count = 1_000_000
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic("cli-million", partitions=3, replicas=3)
    lines = b"".join(b"k%d\t%d\n" % (i % 1000, i) for i in range(count))
    options = ["--key-separator", r"\t", "--compression", "lz4", "--bootstrap", kafka.bootstrap, "--json"]
    ended = run_program("produce", "cli-million", *options, stdin=lines)
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert report["delivered"] == count
    assert sum(one["stop"] - one["start"] for one in report["partitions"]) == count
    last = [-1] * 1000
    for message in read_back(kafka.bootstrap, "cli-million", count):
        key, number = int((message.key() or b"")[1:]), int(message.value() or b"")
        assert last[key] < number
        assert number % 1000 == key
        last[key] = number
    assert sorted(last) == list(range(count - 1000, count))


@pytest.mark.broker
def test_tls_and_a_password_that_is_not_on_the_command_line(kafka: LocalCluster, tmp_path: Path) -> None:
    status = kafka.status()
    assert status.ca_file is not None
    assert kafka.secure_bootstrap is not None
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic("cli-secure", partitions=1, replicas=3)
    secured = ["--bootstrap", kafka.secure_bootstrap, "--ca-file", status.ca_file, "--username", "alice"]
    password = write(tmp_path / "password", status.users["alice"].encode() + b"\n")
    given = [
        (["--password-file", password], {}),
        (["--sasl-mechanism", "SCRAM-SHA-256"], {"OTTLA_PASSWORD": status.users["alice"]}),
        (["--sasl-mechanism", "plain"], {"OTTLA_PASSWORD": status.users["alice"]}),
    ]
    for number, (options, environment) in enumerate(given):
        file = write(tmp_path / "lines", b"%d\n" % number)
        result = run("produce", "cli-secure", file, *secured, *options, env=environment)
        assert result.exit_code == 0, result.stderr
    assert [m.value() for m in read_back(kafka.bootstrap, "cli-secure", 3)] == [b"0", b"1", b"2"]
    wrong = run("produce", "cli-secure", file, *secured, env={"OTTLA_PASSWORD": "guess"})
    assert wrong.exit_code == 1
    assert "guess" not in wrong.output
    assert run("topics", "list", *secured, "--password-file", password).exit_code == 0


@pytest.mark.broker
def test_a_client_certificate_is_enough_where_the_listener_says_so(kafka: LocalCluster, tmp_path: Path) -> None:
    tls = kafka.mutual_tls().tls
    assert tls is not None
    assert kafka.ssl_bootstrap is not None
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic("cli-certificate", partitions=1, replicas=3)
    options = ["--ca-file", str(tls.ca_file), "--cert-file", str(tls.cert_file), "--key-file", str(tls.key_file)]
    file = write(tmp_path / "lines", b"a\n")
    result = run("produce", "cli-certificate", file, "--bootstrap", kafka.ssl_bootstrap, *options)
    assert result.exit_code == 0, result.stderr
    untrusted = run("produce", "cli-certificate", file, "--bootstrap", kafka.ssl_bootstrap, "--tls", "--timeout", "5")
    assert untrusted.exit_code == 1
    assert "ertificate" in untrusted.stderr
