"""Replaying with one call, as programs do it."""

from __future__ import annotations

import uuid
from collections.abc import Generator, Iterable
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from ottla.cluster import LocalCluster
from ottla.engines import local
from ottla.errors import ConfigError, InputError, LakeDamaged, OttlaError
from ottla.jobs import Brokers, Rate, archive, replay
from ottla.jobs.replay_partition import Target
from ottla.jobs.replay_plan import plan
from ottla.jobs.replay_source import open_source
from ottla.jobs.replay_throttle import ReplayControl
from ottla.jobs.replay_where import AllOf, Compared, parse
from ottla.jobs.replays import prove, run_replay, select
from ottla.model import Fingerprint, OffsetRange

from . import archived
from .replay_kills import check

SOURCE = "jobs-replays-source"
RECORDS = 3000


@pytest.fixture(scope="module")
def lake(kafka: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replays") / "lake"
    archived.create(kafka.bootstrap, SOURCE)
    archived.fill(kafka.bootstrap, SOURCE, archived.rows(0, RECORDS))
    archive(SOURCE, path, brokers=kafka.bootstrap, partition_by="topic,date,hour")
    return path


@pytest.fixture
def target(kafka: LocalCluster) -> str:
    return archived.create(kafka.bootstrap, f"jobs-replays-{uuid.uuid4().hex[:8]}")


@pytest.mark.broker
def test_everything_comes_back_and_is_proven(kafka: LocalCluster, lake: Path, target: str) -> None:
    report = replay(lake, target, brokers=kafka.bootstrap, keep_partitions=True)
    assert report.records == RECORDS
    assert report.is_finished
    assert report.is_proven is True
    assert not report.had_nothing_left
    assert report.fingerprint == archived.committed(kafka.bootstrap, target)
    assert check(kafka.bootstrap, SOURCE, target) == RECORDS
    assert report.to_json()["verified"] is True


@pytest.mark.broker
def test_a_second_call_has_nothing_left_and_again_writes_once_more(
    kafka: LocalCluster, lake: Path, target: str
) -> None:
    brokers = Brokers(bootstrap=kafka.bootstrap)
    first = replay(str(lake), target, brokers=brokers)
    second = replay(str(lake), target, brokers=brokers)
    assert (second.name, second.records, second.had_nothing_left) == (first.name, 0, True)
    third = replay(str(lake), target, brokers=brokers, again=True, workers=1)
    assert third.name != first.name
    assert third.records == RECORDS
    assert archived.committed(kafka.bootstrap, target) == first.fingerprint + third.fingerprint


@pytest.mark.broker
def test_a_replay_is_selected_by_time_offset_and_condition(kafka: LocalCluster, lake: Path, target: str) -> None:
    noon = datetime.fromtimestamp(archived.BEGIN + 10_000, UTC)
    rows = [
        row
        for partition in range(3)
        for offset, row in enumerate(archived.contents(kafka.bootstrap, SOURCE, partition))
        if offset < 500 and row["timestamp"] >= noon and row["key"] == b"user-1"
    ]
    report = replay(lake, target, brokers=kafka.bootstrap, topics=SOURCE, start=noon, stop=500, where="key = 'user-1'")
    assert report.is_finished
    assert report.is_proven is None
    replayed = [row for partition in range(3) for row in archived.contents(kafka.bootstrap, target, partition)]
    assert len(replayed) == len(rows) > 0
    assert sorted(row["value"] or b"" for row in replayed) == sorted(row["value"] or b"" for row in rows)


@pytest.mark.broker
def test_any_engine_runs_it_with_its_share_of_the_rate(kafka: LocalCluster, lake: Path, target: str) -> None:
    rates: list[Rate | None] = []

    def engine(job: Any, ranges: Iterable[OffsetRange], /) -> Generator[Any, None, None]:
        rates.append(job.control.rate)
        yield from local.run(job, ranges, workers=1)

    report = replay(lake, target, brokers=kafka.bootstrap, rate=3_000_000.0, engine=engine)
    assert rates == [Rate(1_000_000.0)]
    assert report.is_proven is True


@pytest.mark.broker
def test_a_run_that_is_stopped_is_not_proven_until_the_next_one_finishes(
    kafka: LocalCluster, lake: Path, target: str
) -> None:
    planned = plan(open_source(str(lake)), select(), Target(access=Brokers(bootstrap=kafka.bootstrap), topic=target))
    control = ReplayControl(Rate(4000))
    stopped = run_replay(planned, local.run, control=control, is_stopped=lambda: control.records >= 1000)
    assert 1000 <= stopped.records < RECORDS
    assert not stopped.is_finished
    assert stopped.is_proven is None
    prove(stopped)
    finished = run_replay(planned, local.run)
    assert stopped.records + finished.records == RECORDS
    assert finished.is_finished
    prove(finished)


@pytest.mark.broker
def test_what_is_not_in_the_receipts_is_an_error_after_the_replay(kafka: LocalCluster, lake: Path, target: str) -> None:
    report = replay(lake, target, brokers=kafka.bootstrap)
    receipts = report.plan.source.receipts
    wrong = tuple(replace(receipt, fingerprint=receipt.fingerprint + Fingerprint(1, 1)) for receipt in receipts)
    damaged = replace(report, plan=replace(report.plan, source=replace(report.plan.source, receipts=wrong)))
    assert damaged.is_proven is False
    with pytest.raises(LakeDamaged, match=rf"{SOURCE}-0: 1,000 records were sent, the archive has receipts for 1,00"):
        prove(damaged)


@pytest.mark.broker
def test_wrong_arguments_write_nothing(kafka: LocalCluster, lake: Path, target: str) -> None:
    for error, arguments in (
        (ConfigError, {"again": True, "name": "mine"}),
        (ConfigError, {"engine": "spark"}),
        (ConfigError, {"engine": "fleet"}),
        (ConfigError, {"rate": 0}),
        (ConfigError, {"rate": "10MB/s"}),
        (InputError, {"topics": ["no-such-topic"]}),
        (InputError, {"where": "colour = 'red'"}),
        (InputError, {"start": datetime(2026, 1, 1)}),
        (InputError, {"start": "2030-01-01T00:00Z"}),
    ):
        with pytest.raises(error):
            replay(lake, target, brokers=kafka.bootstrap, **arguments)
    with pytest.raises(OttlaError, match="neither an archive"):
        replay(lake / "_ottla" / "ledger", target, brokers=kafka.bootstrap)
    assert archived.committed(kafka.bootstrap, target) == Fingerprint()


def test_a_selection_of_offsets_is_a_condition() -> None:
    assert select(["a", "a"]).topics == ("a",)
    assert select(start=5).where == Compared("offset", ">=", 5)
    assert select(stop=9, where="partition = 1").where == AllOf((parse("partition = 1"), Compared("offset", "<", 9)))
    with pytest.raises(InputError, match="stop=5 is not after start=5"):
        select(start=5, stop=5)


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (
            {"start": "2030-01-01T00:00Z"},
            "start is '2030-01-01T00:00Z'; accepted are 'earliest', a source offset",
        ),
        ({"start": 1767225600.0}, r"start is 1767225600\.0"),
        ({"start": True}, "start is True"),
        ({"start": "latest"}, "start is 'latest'"),
        ({"stop": "earliest"}, "stop is 'earliest'; accepted are 'latest', a source offset"),
        ({"start": date(2026, 1, 1)}, r"start is datetime\.date\(2026, 1, 1\)"),
        ({"start": -5}, "start is offset -5; offsets begin at 0"),
        ({"stop": -1}, "stop is offset -1"),
    ],
)
def test_a_limit_that_is_not_understood_is_refused_and_does_not_select_everything(
    limits: dict[str, Any], text: str
) -> None:
    with pytest.raises(InputError, match=text):
        select(**limits)


def test_earliest_and_latest_are_no_limits() -> None:
    assert select(start="earliest", stop="latest") == select()


@pytest.mark.parametrize("amount", ["10MB/s", True, None])
def test_a_rate_is_a_number(amount: Any) -> None:
    with pytest.raises(ConfigError, match=f"a rate must be a number a second, got {amount!r}: for example 5000"):
        Rate(amount)
