"""Hostile batches with valid checksums, and lying brokers: one error with the offset, and never an endless loop."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.errors import CorruptBatch, DeadlineExceeded, OttlaError
from ottla.fetch.options import Fetching
from ottla.fetch.reader import Reader
from ottla.model import OffsetRange, TopicPartition
from ottla.testing import FakeKafka

from .hostile_program import GOOD, TIMES
from .logs import fill, plain, plant
from .watching import QUICK, names, raised_by

# A time that no column can hold becomes the nearest that fits: its checksum is right, and its partition goes on.
HARMLESS = {"count-of-zero-with-records", "control", "headers-many", "headers-many-not-text", "time-delta-extreme"}


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, Any]]:
    """The outcome of reading every hostile batch in every way, by a program with limited memory."""
    program = [sys.executable, "-m", "tests.fetch.hostile_program"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def _of(outcomes: list[dict[str, Any]], way: str) -> dict[str, dict[str, Any]]:
    selected = {outcome["topic"].removeprefix("h-"): outcome for outcome in outcomes if outcome["way"] == way}
    assert len(selected) > 60
    return selected


def test_every_hostile_batch_gets_one_error_that_names_topic_partition_and_offset(
    outcomes: list[dict[str, Any]],
) -> None:
    for name, outcome in _of(outcomes, "read").items():
        if name in HARMLESS:
            assert "error" not in outcome, outcome
            continue
        assert f"h-{name}-0" in outcome["text"], outcome
        assert "offset" in outcome["text"], outcome
        assert outcome["error"] in {"CorruptBatch", "UnsupportedFormat", "DeadlineExceeded"}


def test_what_lies_before_a_hostile_batch_is_read(outcomes: list[dict[str, Any]]) -> None:
    assert {outcome["rows"] for outcome in _of(outcomes, "read").values()} == {GOOD, GOOD + 1}


def test_a_fold_gets_the_place_of_a_hostile_batch(outcomes: list[dict[str, Any]]) -> None:
    for name, outcome in _of(outcomes, "fold").items():
        if "error" in outcome and outcome["error"] == "CorruptBatch":
            assert outcome["offset"] >= GOOD, (name, outcome)
        assert outcome["rows"] >= GOOD


def test_counting_and_raw_batches_touch_no_record(outcomes: list[dict[str, Any]]) -> None:
    counted = _of(outcomes, "count")
    assert all("error" not in outcome for name, outcome in counted.items() if name.startswith("bomb"))
    assert all("error" not in outcome for name, outcome in _of(outcomes, "batches").items() if name.startswith("bomb"))


def test_no_hostile_batch_takes_long(outcomes: list[dict[str, Any]]) -> None:
    # Generous, for a busy machine: to inflate a bomb, or to believe a huge count, would take far longer.
    assert max(outcome["seconds"] for outcome in outcomes) < 60


# Brokers that lie about offsets


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka(topics={"t": 1}, auto_create=None) as cluster:
        yield cluster


@pytest.fixture
def reader(kafka: FakeKafka) -> Iterator[Reader]:
    with Reader(kafka.bootstrap, retry=QUICK, timeouts=TIMES, fetching=Fetching(max_wait=0.05)) as reader:
        yield reader


def end_at(kafka: FakeKafka, offset: int) -> None:
    """Make the log claim that it ends at an offset."""
    with kafka._dispatcher.changed:
        kafka._partition("t", 0).log.end = offset


def test_a_broker_that_answers_with_what_lies_before_is_no_endless_loop(kafka: FakeKafka, reader: Reader) -> None:
    fill(kafka, 1)
    end_at(kafka, 100)
    for stop in (100, None):
        error = raised_by(lambda stop=stop: list(reader.read("t", 50, stop)), CorruptBatch, within=3)  # type: ignore[misc]
        assert "batch at offset 0 of t-0" in str(error)
        assert "offset 50 was requested" in str(error)


def test_a_broker_that_has_nothing_for_offsets_it_claims_is_no_endless_loop(kafka: FakeKafka, reader: Reader) -> None:
    fill(kafka, 1)
    plant(kafka, b"", base=10, stop=50)
    reading = names(reader.read("t"))
    assert [next(reading).offset for _ in range(10)] == list(range(10))
    error = raised_by(lambda: next(reading), DeadlineExceeded, within=3)
    assert "t-0 at offset 10" in str(error)
    assert "offset 50 was to be reached" in str(error)


def test_batches_without_records_are_passed_over_to_the_end(kafka: FakeKafka, reader: Reader) -> None:
    for base in range(0, 1000, 10):
        plant(kafka, plain(base, deltas=(), last=9), base=base, stop=base + 10)
    assert list(reader.read("t")) == []
    assert reader.count("t") == 0
    (profile,) = reader.profile("t")
    assert profile.batches == 100


def test_batches_that_run_backwards_are_never_handed_out_twice(kafka: FakeKafka, reader: Reader) -> None:
    plant(kafka, plain(0, 10) + plain(10, 10) + plain(5, 10), base=0, stop=20)
    plant(kafka, plain(3, 5) + plain(20, 5) + plain(0, 3), base=20, stop=25)
    assert [record.offset for record in names(reader.read("t"))] == list(range(25))
    plant(kafka, plain(25, 1) + plain(25, 1), base=25, stop=27)
    reading = names(reader.read("t", 25))
    assert next(reading).offset == 25
    with pytest.raises(CorruptBatch, match="of t-0"):
        next(reading)


def test_a_batch_that_never_comes_whole_is_reported_without_a_spin(kafka: FakeKafka, reader: Reader) -> None:
    fill(kafka, 1)
    plant(kafka, plain(10, 10)[:-5], base=10, stop=20)
    error = raised_by(lambda: list(reader.read("t")), OttlaError, within=3)
    assert "t-0 at offset 10" in str(error)
    assert "ends within its first batch" in str(error)
    asked = sum(seen.api == "Fetch" for seen in kafka.requests)
    assert asked < 100


def test_a_flipped_bit_is_reported_with_its_place(kafka: FakeKafka, reader: Reader) -> None:
    fill(kafka, 3)
    for position in (25, 60, 70, 100):
        with kafka._dispatcher.changed:
            log = kafka._partition("t", 0).log
            good = log.batches[1]
            spoilt = bytearray(good.data)
            spoilt[position] ^= 4
            log.batches[1] = type(good)(bytes(spoilt), good.header)
        with pytest.raises(CorruptBatch, match=r"batch at offset 10 of t-0"):
            list(reader.read(OffsetRange("t", 0, 0, 30)))
        with kafka._dispatcher.changed:
            log.batches[1] = good
    assert reader.count(OffsetRange("t", 0, 0, 30)) == 30
    assert TopicPartition("t", 0) in reader.offsets("t")
