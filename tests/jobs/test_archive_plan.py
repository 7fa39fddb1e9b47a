"""What an archive needs next, from positions and logs alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ottla.config import Timeouts
from ottla.errors import ConfigError, InputError, OffsetsLost, OttlaError
from ottla.fetch.bounds import CommittedBy
from ottla.fetch.options import OnLost
from ottla.jobs import Brokers, archive
from ottla.jobs.archive_plan import Cutting, Logs, Round, beginnings, check, due, limited, up_to, within
from ottla.jobs.archiving import ArchiveRequest
from ottla.model import OffsetRange, TopicPartition

ONE, TWO = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
LOGS = Logs({ONE: 10, TWO: 0}, {ONE: 100, TWO: 50}, {"clicks": "id"}, 100.0)


def test_what_is_not_archived_is_due_and_new_partitions_begin_with_their_logs() -> None:
    assert due({ONE: 40}, LOGS, on_lost=OnLost.ERROR) == Round(
        (OffsetRange("clicks", 0, 40, 100), OffsetRange("clicks", 1, 0, 50))
    )
    assert due({ONE: 100, TWO: 50}, LOGS, on_lost=OnLost.ERROR) == Round(())
    assert due({ONE: 120, TWO: 50}, LOGS, on_lost=OnLost.ERROR) == Round(()), "another archiver was faster"


def test_what_retention_took_is_an_error_or_a_gap() -> None:
    with pytest.raises(OffsetsLost, match=r"clicks-0: offsets \[4, 10\) are lost"):
        due({ONE: 4, TWO: 50}, LOGS, on_lost=OnLost.ERROR)
    round_ = due({ONE: 4, TWO: 50}, LOGS, on_lost=OnLost.EARLIEST)
    assert [gap.range for gap in round_.gaps] == [OffsetRange("clicks", 0, 4, 10)]
    assert round_.ranges == (OffsetRange("clicks", 0, 10, 100),)
    with pytest.raises(InputError, match="use 'earliest'"):
        ArchiveRequest(topics=("clicks",), on_lost=OnLost.LATEST)


def test_a_log_that_ends_before_what_is_archived_is_another_one() -> None:
    check({ONE: 100}, LOGS)
    with pytest.raises(InputError, match="clicks-0 ends at offset 100, but is archived up to 101"):
        check({ONE: 101}, LOGS)


def test_logs_are_cut_where_the_archive_is_to_end_but_not_before_what_it_has() -> None:
    first, second, third = (TopicPartition("clicks", number) for number in range(3))
    logs = Logs(begins={first: 10, second: 0, third: 0}, ends={first: 100, second: 100, third: 100}, topics={})
    cut = up_to({second: 70}, logs, {first: 5, second: 50, third: 60})
    assert cut.ends == {first: 10, second: 70, third: 60}
    assert up_to({}, logs, {first: 500, second: 100}).ends == logs.ends


def test_a_round_has_about_as_much_as_it_should() -> None:
    whole = due({}, LOGS, on_lost=OnLost.ERROR)
    assert limited(whole, 1 << 30, 100.0) == whole
    part = limited(whole, 1400, 100.0)
    assert part.ranges == (OffsetRange("clicks", 0, 10, 19), OffsetRange("clicks", 1, 0, 5))


def test_large_ranges_are_cut_and_small_ones_are_not() -> None:
    cutting = Cutting(file_bytes=1_000_000, workers=4)
    assert cutting.round_bytes == 16_000_000
    small = Round((OffsetRange("clicks", 0, 0, 1000),))
    assert cutting.tasks(small, 100.0) == [OffsetRange("clicks", 0, 0, 1000)]
    large = Round((OffsetRange("clicks", 0, 0, 100_000),))
    assert len(cutting.tasks(large, 100.0)) == 10
    assert len(cutting.tasks(Round((OffsetRange("clicks", 0, 0, 400_000),)), 0.01)) == 4


def test_a_topic_that_the_archive_knows_does_not_start_over() -> None:
    other = TopicPartition("users", 0)
    starts = {ONE: 5, TWO: 6, other: 7}
    assert beginnings({ONE: 3}, starts, ("clicks", "users")) == {other: 7}
    assert beginnings({}, starts, ("users",)) == {other: 7}


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"start": "-2h"}, InputError, "start is '-2h'; accepted are 'earliest', 'latest', an offset"),
        ({"start": "group:etl"}, InputError, r"start is 'group:etl'; .*CommittedBy\(group\)"),
        ({"start": -5}, InputError, "start is offset -5; offsets begin at 0"),
        ({"on_lost": "skip"}, ConfigError, "on_lost is 'skip'; accepted are 'error', 'earliest', 'latest'"),
        ({"on_lost": None}, ConfigError, "on_lost is None"),
        ({"on_lost": "latest"}, InputError, "use 'earliest'"),
        ({"group": ""}, ConfigError, "group must be a name, got ''"),
        ({"group": 5}, ConfigError, "group must be a name, got 5"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_connects_or_is_written(
    tmp_path: Path, arguments: dict[str, Any], error: type[OttlaError], text: str
) -> None:
    nowhere = Brokers(bootstrap="127.0.0.1:1", timeouts=Timeouts(total=1.0))
    with pytest.raises(error, match=text):
        archive("clicks", tmp_path / "lake", brokers=nowhere, **arguments)
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize("arguments", [{"stop": "now"}, {"stop": -1}, {"on_lost": "earliest"}])
def test_a_request_is_checked_when_it_is_made(arguments: dict[str, Any]) -> None:
    with pytest.raises(OttlaError, match=next(iter(arguments))):
        ArchiveRequest(topics=("clicks",), **arguments)


def test_a_start_is_cut_to_the_log_of_each_partition() -> None:
    assert within(70, {ONE: 70, TWO: 70}, LOGS) == {ONE: 70, TWO: 50}, "one partition is shorter"
    assert within(3, {ONE: 3, TWO: 3}, LOGS) == {ONE: 10, TWO: 3}, "the other one begins later"
    assert within({0: 200, 1: 20}, {ONE: 200, TWO: 20}, LOGS) == {ONE: 100, TWO: 20}
    with pytest.raises(InputError, match="start is offset 101, which is beyond the end of every partition; the furth"):
        within(101, {ONE: 101, TWO: 101}, LOGS)


@pytest.mark.parametrize("start", [CommittedBy("etl"), {0: 4, 1: 20}])
def test_a_position_before_its_log_stays_a_loss(start: Any) -> None:
    starts = within(start, {ONE: 4, TWO: 20}, LOGS)
    with pytest.raises(OffsetsLost, match=r"clicks-0: offsets \[4, 10\) are lost"):
        due(starts, LOGS, on_lost=OnLost.ERROR)
