"""How commands connect, and what they say when that does not work: in the words of the command line, and soon."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from ottla import Producer
from ottla.cli.advice import WORDS, reword
from ottla.cli.options import bootstrap as options
from ottla.config import Plain, Security
from ottla.errors import Advice, BrokerError, ErrorCode, OffsetsLost, RecordTooLarge
from ottla.lake.lake import Lake
from ottla.lake.layout import LakeSettings
from ottla.testing import FakeKafka

from .commands import SECONDS, program, run, write

API_NAMES = re.compile(r"\b(Security|Tls|Scram|Plain|OAuthBearer|Fetching|Retry|Timeouts)\(|on_lost=|max_record_bytes")
COMMANDS = (
    ("topics", "list"),
    ("topics", "describe", "clicks"),
    ("groups", "list"),
    ("query", "clicks"),
    ("query", "clicks", "--count"),
    ("consume", "clicks"),
    ("consume", "clicks", "--until", "latest"),
    ("produce", "clicks", "/etc/hostname"),
)
PATIENT = (
    ("archive", "clicks", "--to", "archive", "--bootstrap"),
    ("lake", "verify", "there", "--against"),
    ("replay", "there", "--to", "clicks", "--bootstrap"),
    ("rollup", "clicks", "--window", "1m", "--to", "/tmp", "--bootstrap"),
    ("mirror", "clicks", "--to", "localhost:1", "--from"),
    ("work", "run", "--handler", "builtins:print", "--topic", "clicks", "--store", "memory://", "--bootstrap"),
)
"""Commands that wait for brokers later on. There is an archive at `there`."""


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka(topics={"clicks": 1}, auto_create=None) as kafka:
        yield kafka


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address at which nothing listens."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{reserved.getsockname()[1]}"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_port_that_refuses_is_tried_a_few_times(command: tuple[str, ...], nobody: str) -> None:
    ended = run(*command, "--bootstrap", nobody, "--timeout", "60")
    assert ended.exit_code == 1
    assert "connection refused" in ended.stderr
    (tries,) = map(int, re.findall(r"tried (\d+) times", ended.stderr))
    assert tries < 10
    assert "nothing listens there: check the addresses and that the brokers are up" in ended.stderr


@pytest.mark.parametrize("command", PATIENT, ids=" ".join)
def test_a_patient_command_says_soon_too_that_a_port_refuses(
    command: tuple[str, ...], nobody: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Lake.create("there", LakeSettings())
    ended = run(*command, nobody)
    assert ended.exit_code == 1
    assert re.findall(r"connection refused .*tried (\d+) times", ended.stderr) == ["4"]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_tls_on_a_port_without_it_is_reported_soon(command: tuple[str, ...], fake: FakeKafka) -> None:
    ended = run(*command, "--bootstrap", fake.bootstrap, "--tls", "--timeout", "60")
    assert ended.exit_code == 1
    assert "is this a listener without TLS? Then leave out --tls" in ended.stderr
    assert not API_NAMES.search(ended.stderr)


def test_every_advice_has_words_for_the_command_line() -> None:
    assert set(WORDS) == set(Advice)
    assert not [words for words in WORDS.values() if API_NAMES.search(words)]
    errors = (
        RecordTooLarge("it", size_bytes=2, limit_bytes=1),
        OffsetsLost("clicks", 0, start=1, stop=2, resume=3, reason="deleted"),
        BrokerError(ErrorCode.invalid_fetch_size, "Fetch"),
    )
    for error in errors:
        assert not API_NAMES.search(reword(str(error))), reword(str(error))


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("localhost:99999", "'localhost:99999': a port is 1 to 65535"),
        ("localhost:0", "'localhost:0': a port is 1 to 65535"),
        ("alice:s3cret@kafka:9092", "'***@kafka:9092' has more than HOST:PORT: the user comes from --username"),
        ("SASL_SSL://alice:s3cret@kafka:9092", "'SASL_SSL://***@kafka:9092' has more than HOST:PORT"),
        ("kafka/9092", "'kafka/9092' is not HOST:PORT"),
    ],
)
def test_an_address_that_is_none(address: str, said: str) -> None:
    ended = run("topics", "list", "--bootstrap", address)
    assert ended.exit_code == 2
    assert said in " ".join(ended.stderr.split())
    assert "s3cret" not in ended.output


@pytest.mark.parametrize("command", [("topics", "list"), ("consume", "clicks"), ("produce", "clicks", "/etc/hostname")])
def test_an_interrupt_while_it_connects_ends_with_130(command: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with program(*command, "--bootstrap", address, "--timeout", "100") as started:
            silent.settimeout(SECONDS)
            connection, _ = silent.accept()
            with connection:
                connection.recv(1)  # the first request: it waits for an answer now
                started.send_signal(signal.SIGINT)
                assert started.wait(SECONDS) == 130


def test_a_password_without_tls_is_warned_of_once(fake: FakeKafka) -> None:
    login = ("--username", "alice", "--sasl-mechanism", "PLAIN")
    ended = run("topics", "list", *login, "--bootstrap", fake.bootstrap, env={"OTTLA_PASSWORD": "s3cret"})
    said = "warning: the password is sent without TLS and can be read on the way: pass --tls, or log in with SCRAM"
    assert ended.stderr.splitlines().count(said) == 1
    assert "s3cret" not in ended.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--sasl-mechanism", "OAUTHBEARER"], "OAUTHBEARER needs --oauth-token-file, or --oauth-token-url and"),
        (["--oauth-token-url", "https://idp/token"], "--oauth-token-url needs --oauth-client-id"),
        (["--oauth-client-id", "me"], "--oauth-client-id needs --oauth-token-url"),
        (
            ["--oauth-token-file", __file__, "--oauth-scope", "s"],
            "--oauth-token-file and --oauth-scope are mutually exclusive",
        ),
        (["--oauth-token-file", __file__, "--username", "me"], "a token is for --sasl-mechanism OAUTHBEARER alone"),
        (["--oauth-token-url", "https://idp/token", "--oauth-client-id", "me"], "set OTTLA_OAUTH_CLIENT_SECRET, or"),
        (
            [
                "--oauth-token-url",
                "http://idp/token",
                "--oauth-client-id",
                "me",
                "--oauth-client-secret-file",
                __file__,
            ],
            "'http://idp/token' is not https: the secret would be readable on the way",
        ),
    ],
)
def test_options_for_tokens_that_do_not_fit(options: list[str], said: str) -> None:
    ended = run("topics", "list", *options, "--bootstrap", "127.0.0.1:1")
    assert ended.exit_code == 2
    assert said in " ".join(ended.stderr.split())


def test_a_setting_that_is_none_is_not_shown(tmp_path: Path) -> None:
    ended = run("topics", "create", "clicks", "--setting", "password s3cret", "--bootstrap", "127.0.0.1:1")
    assert ended.exit_code == 2
    assert "write KEY=VALUE" in ended.stderr
    assert "s3cret" not in ended.output


def test_a_batch_that_decompresses_to_more_than_the_limit_names_the_option(fake: FakeKafka) -> None:
    from ottla import Producer

    with Producer(fake.bootstrap, compression="zstd") as producer:
        producer.send("clicks", bytes(100_000))
    read = ("consume", "clicks", "--until", "latest", "--format", "{value_size}", "--bootstrap", fake.bootstrap)
    ended = run(*read, "--max-batch-size", "50000")
    assert ended.exit_code == 1
    assert "decompresses to more than the limit of 50,000 bytes (--max-batch-size raises it)" in ended.stderr
    assert run(*read, "--max-batch-size", "200000").stdout == "100000"


def test_the_limit_of_a_batch_is_that_of_an_archive_and_of_its_proof(fake: FakeKafka, tmp_path: Path) -> None:
    with Producer(fake.bootstrap, compression="zstd") as producer:
        producer.send("clicks", bytes(100_000))
    path = str(tmp_path / "archive")
    few, enough = ("--max-batch-size", "50000"), ("--max-batch-size", "200000")
    said = "decompresses to more than the limit of 50,000 bytes (--max-batch-size raises it)"
    ended = run("archive", "clicks", "--to", path, "--bootstrap", fake.bootstrap, *few)
    assert ended.exit_code == 1
    assert said in ended.stderr
    assert run("archive", "clicks", "--to", path, "--bootstrap", fake.bootstrap, *enough).exit_code == 0
    ended = run("lake", "verify", path, "--against", fake.bootstrap, *few)
    assert ended.exit_code == 1
    assert said in ended.output
    assert run("lake", "verify", path, "--against", fake.bootstrap, *enough).exit_code == 0


@pytest.mark.parametrize("limit", ["50000", "200000"])
def test_the_limit_of_a_batch_is_that_of_a_fleet(fake: FakeKafka, tmp_path: Path, limit: str) -> None:
    with Producer(fake.bootstrap, compression="zstd") as producer:
        producer.send("clicks", bytes(100_000))
    store = f"sqlite:///{tmp_path}/fleet.db"
    work = ("work", "run", "--handler", "builtins:len", "--topic", "clicks", "--store", store, "--from", "earliest")
    ended = run(
        *work, "--until", "latest", "--max-attempts", "1", "--bootstrap", fake.bootstrap, "--max-batch-size", limit
    )
    assert ended.exit_code == (1 if limit == "50000" else 0), ended.output


def test_the_password_of_a_file_is_used(fake: FakeKafka, tmp_path: Path) -> None:
    assert Security(sasl=Plain("u", "p")).exposed == "password"
    file = write(tmp_path / "password", b"s3cret\n")
    ended = run("topics", "list", "--username", "me", "--password-file", file, "--bootstrap", fake.bootstrap)
    assert ended.exit_code == 1
    assert "s3cret" not in ended.output


def test_a_secure_local_cluster_says_all_that_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    secure = SimpleNamespace(
        name="default", bootstrap=None, secure_bootstrap="127.0.0.1:1", ca_file="/ca.pem", users={"alice": "s3cret"}
    )
    monkeypatch.setattr(options, "_local_clusters", lambda directory: [secure])
    ended = run("topics", "list")
    assert ended.exit_code == 2
    wanted = "set OTTLA_PASSWORD and pass --bootstrap 127.0.0.1:1 --ca-file /ca.pem --username alice"
    assert wanted in ended.stderr
    assert "s3cret" not in ended.stderr
