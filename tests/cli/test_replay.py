"""`ottla replay` as people use it: what it says, what it refuses, signals, Spark."""

from __future__ import annotations

import json
import signal
import subprocess
import uuid
from pathlib import Path

import pytest
from tests.jobs import archived
from tests.jobs.replay_kills import check
from tests.waiting import eventually

from ottla.cluster import LocalCluster
from ottla.jobs import replay_plan

from .commands import PROGRAM, SECONDS, program, run

pytestmark = pytest.mark.broker
SOURCE = "replay-cli-source"
SPARK_SECONDS = 300.0
"""A JVM, Spark and its first Python workers take a minute to start where others use the processors, too."""


@pytest.fixture(scope="module")
def lake(kafka: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of 6,000 records."""
    path = tmp_path_factory.mktemp("replay-cli") / "lake"
    archived.archive(kafka.bootstrap, SOURCE, path, steps=[archived.rows(0, 6000)])
    return path


@pytest.fixture
def target(kafka: LocalCluster) -> str:
    """An empty topic."""
    return archived.create(kafka.bootstrap, f"replay-cli-{uuid.uuid4().hex[:8]}")


def test_it_writes_once_and_says_so(kafka: LocalCluster, lake: Path, target: str) -> None:
    arguments = ("replay", str(lake), "--to", target, "--bootstrap", kafka.bootstrap, "--keep-partitions")
    first = run(*arguments)
    assert first.exit_code == 0, first.output
    assert "6,000 records" in first.stdout
    assert f"replayed into {target}" in first.stdout
    assert "the fingerprints match the archive" in first.stdout
    second = run(*arguments)
    assert second.exit_code == 0
    assert second.stdout.startswith("nothing to do: ")
    assert check(kafka.bootstrap, SOURCE, target) == 6000
    again = run(*arguments, "--again", "--json")
    assert again.exit_code == 0
    told = json.loads(again.stdout)
    assert (told["records"], told["finished"], told["verified"]) == (6000, True, True)
    assert archived.committed(kafka.bootstrap, target).count == 12_000


def test_a_replay_into_the_topic_that_was_archived_asks_first(kafka: LocalCluster, tmp_path: Path) -> None:
    topic = f"replay-cli-{uuid.uuid4().hex[:8]}"
    archived.archive(kafka.bootstrap, topic, tmp_path / "lake", steps=[archived.rows(0, 100)])
    arguments = ("replay", str(tmp_path / "lake"), "--to", topic, "--bootstrap", kafka.bootstrap)
    refused = run(*arguments)
    assert refused.exit_code == 2
    assert f"{topic} is the topic that was archived: it gets its records once more: pass --yes" in refused.stderr
    assert archived.committed(kafka.bootstrap, topic).count == 100
    assert run(*arguments, "--yes").exit_code == 0
    assert archived.committed(kafka.bootstrap, topic).count == 200
    assert run(*arguments).stdout.startswith("nothing to do: ")


def test_nothing_is_left_though_the_plan_could_not_see_it_yet(
    kafka: LocalCluster, lake: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("replay", str(lake), "--to", target, "--bootstrap", kafka.bootstrap, "--keep-partitions")
    assert run(*arguments).exit_code == 0
    # Brokers end a transaction after they have promised it: a request at once gets the positions before it.
    monkeypatch.setattr(replay_plan, "position", lambda *_, **__: None)
    second = run(*arguments)
    assert second.exit_code == 0, second.output
    assert second.stdout.startswith("nothing to do: ")
    assert check(kafka.bootstrap, SOURCE, target) == 6000


def test_a_selection_is_reported_as_json(kafka: LocalCluster, lake: Path, target: str) -> None:
    done = run(
        *("replay", str(lake), "--to", target, "--bootstrap", kafka.bootstrap, "--name", "some", "--json"),
        *("--topic", SOURCE, "--from", "2026-01-01T01:00:00Z", "--until", "2026-01-01T02:00+00:00"),
        *("--where", "key = 'user-1' or key = 'user-2'"),
    )
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    expected = sum(
        row["key"] in (b"user-1", b"user-2") and row["timestamp"].hour == 1
        for partition in range(3)
        for row in archived.contents(kafka.bootstrap, SOURCE, partition)
    )
    assert expected > 10
    assert (told["name"], told["records"], told["verified"], told["finished"]) == ("some", expected, None, True)
    assert [one["partition"] for one in told["lineages"]] == [0, 1, 2]
    assert sum(len(one["receipts"]) for one in told["lineages"]) == 3
    assert archived.committed(kafka.bootstrap, target).count == expected


def test_ctrl_c_ends_after_a_chunk_and_the_next_run_goes_on(kafka: LocalCluster, lake: Path, target: str) -> None:
    arguments = ("replay", str(lake), "--to", target, "--bootstrap", kafka.bootstrap, "--keep-partitions")
    with program(*arguments, "--rate", "1000/s", "--name", target) as process:
        notes = lake / "_ottla" / "replays"
        eventually(lambda: [note for note in notes.glob(f"{target}:*/[!.]*") if _begun(note)], "it began")
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 130, errors
    assert b"stopping after the current chunk" in errors
    assert b"run the same command to resume" in errors
    assert b"records" in output
    assert 0 < archived.committed(kafka.bootstrap, target).count < 6000
    done = run(*arguments, "--name", target)
    assert done.exit_code == 0, done.output
    assert "the fingerprints match the archive" in done.stdout
    assert check(kafka.bootstrap, SOURCE, target) == 6000


def _begun(note: Path) -> bool:
    return bool(json.loads(note.read_bytes())["position"])


@pytest.mark.long
def test_spark_does_it_as_well(kafka: LocalCluster, lake: Path, target: str) -> None:
    arguments = ("replay", str(lake), "--to", target, "--bootstrap", kafka.bootstrap, "--keep-partitions")
    command = [*PROGRAM, *arguments, "--engine", "spark", "--master", "local[2]", "--json"]
    done = subprocess.run(command, capture_output=True, timeout=SPARK_SECONDS)
    assert done.returncode == 0, done.stderr.decode()
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["records"], told["finished"], told["verified"]) == (6000, True, True)
    assert run(*arguments).stdout.startswith("nothing to do: ")
    assert check(kafka.bootstrap, SOURCE, target) == 6000


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (["--to", "no-such-topic"], 1, "topic no-such-topic: UNKNOWN_TOPIC_OR_PARTITION"),
        (["--topic", "orders"], 1, f"has no records of orders; it has {SOURCE}"),
        (["--from", "yesterday"], 2, "'yesterday' is not a place in a topic"),
        (["--from", "-2h"], 2, "'-2h' would be another time when the command is resumed: write 20"),
        (["--until", "now"], 2, "'now' would be another time when the command is resumed"),
        (["--from", "2026-01-02T00:00Z", "--until", "2026-01-01T00:00Z"], 2, "--until must be after --from"),
        (["--from", "2030-01-01T00:00Z"], 1, "nothing is selected: the records in"),
        (["--where", "user = 'x'"], 2, "a column was expected"),
        (["--rate", "fast"], 2, "'fast' is not a rate: use records (5000/s, 20k/s) or bytes (10MB/s)"),
        (["--rate", "0/s"], 2, "'0/s' is not a rate"),
        (["--name", "a:b"], 2, "'a:b' is no name for a replay"),
        (["--name", "a", "--again"], 2, "--again and --name are mutually exclusive"),
        (["--master", "local[2]"], 2, "--master needs --engine spark"),
        (["--engine", "spark", "--workers", "2"], 2, "--workers needs --engine local"),
    ],
)
def test_what_is_wrong_is_reported(
    kafka: LocalCluster, lake: Path, target: str, options: list[str], code: int, told: str
) -> None:
    done = run("replay", str(lake), "--to", target, "--bootstrap", kafka.bootstrap, "--timeout", "5", *options)
    assert done.exit_code == code, done.output
    assert told in done.stderr.replace("\n", " ")
    assert archived.committed(kafka.bootstrap, target).count == 0


def test_no_archive_there_is_reported(kafka: LocalCluster, tmp_path: Path) -> None:
    done = run("replay", str(tmp_path / "nothing"), "--to", "x", "--bootstrap", kafka.bootstrap)
    assert done.exit_code == 1
    assert "there is no such folder" in done.stderr
