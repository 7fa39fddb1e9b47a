"""What is read of topics and ranges, which arguments are refused, and folding."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from tests.fetch.logs import fill, plain, plant
from tests.fetch.watching import by_partition, names, new_reader, raised_by, threads_of_reading, values

from ottla.config import Timeouts
from ottla.errors import (
    BrokerError,
    ConfigError,
    CorruptBatch,
    DeadlineExceeded,
    ErrorCode,
    InputError,
    OffsetsLost,
    OttlaError,
)
from ottla.fetch.options import Fetching
from ottla.fetch.reader import Reader, ReadFailure
from ottla.model import OffsetRange, TopicPartition
from ottla.net.frames import Buffers
from ottla.produce.options import Buffering
from ottla.produce.producer import Producer
from ottla.testing import FakeKafka

from .stand import MANY, SHORT, SMALL, cut_off

# Reading


def test_a_topic_is_read_whole_and_each_partition_in_its_order(reader: Reader) -> None:
    assert by_partition(reader.read("many")) == MANY
    assert reader.count("many") == 2000


def test_several_topics_are_read_at_once(reader: Reader) -> None:
    assert sum(batch.num_rows for batch in reader.read(["t", "many", "none"])) == 2100


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (3, 57), (99, 100), (40, 50), (5, 5), (0, 100)])
def test_a_range_is_read_exactly(reader: Reader, start: int, stop: int) -> None:
    wanted = [b"%d" % offset for offset in range(start, stop)]
    assert values(reader.read(OffsetRange("t", 0, start, stop))) == wanted
    assert values(reader.read("t", start, stop)) == wanted
    assert reader.count("t", start, stop) == len(wanted)
    raw = [(item.topic, item.partition, item.batch.header.base_offset) for item in reader.batches("t", start, stop)]
    assert raw == [("t", 0, base) for base in range(start // 10 * 10, stop, 10) if start < stop]


def test_ranges_are_read_side_by_side(reader: Reader) -> None:
    ranges = [OffsetRange("many", 2, 10, 20), OffsetRange("t", 0, 5, 7), OffsetRange("many", 0, 0, 3)]
    counts = sorted((batch.column("topic")[0].as_py(), batch.num_rows) for batch in reader.read(ranges))
    assert counts == [("many", 3), ("many", 10), ("t", 2)]


def test_only_some_partitions_and_columns_are_read(reader: Reader) -> None:
    (table,) = {batch.schema for batch in reader.read("many", columns=["offset"], partitions=[1])}
    assert table.names == ["offset"]
    assert reader.count("many", partitions=[1, 3]) == 1000
    assert reader.count("many", {TopicPartition("many", 2): 450}, {2: 480}) == 30


def test_latest_is_where_the_log_ended_when_the_call_was_made(kafka: FakeKafka, reader: Reader) -> None:
    reading = reader.read("t")
    fill(kafka, 10)
    assert len(values(reading)) == 100


def test_a_time_is_a_place_to_begin(reader: Reader) -> None:
    assert reader.count("t", datetime(2020, 1, 1, tzinfo=UTC)) == 100
    assert reader.count("t", datetime(2100, 1, 1, tzinfo=UTC)) == 0


def test_an_endless_read_gets_what_comes_later(kafka: FakeKafka, reader: Reader) -> None:
    reading = names(reader.read("t", "latest", None))
    fill(kafka, 1)
    writer = threading.Timer(0.2, lambda: fill(kafka, 1))
    writer.start()
    assert [next(reading).offset for _ in range(20)] == list(range(100, 120))
    writer.join()
    reading.close()


def test_partitions_that_are_added_are_followed(kafka: FakeKafka) -> None:
    times = Timeouts(connect=2, request=3, total=10, metadata_age=0.2)
    with new_reader(kafka.bootstrap, timeouts=times) as reader:
        reading = names(reader.read("none", "latest", None))
        fill(kafka, 1, at=TopicPartition("none", 0))
        assert next(reading) == (0, 0)
        with kafka._dispatcher.changed:
            topic = kafka._dispatcher.state.topics["none"]
            topic.partitions.append(type(topic.partitions[0])((1,), 1))
        fill(kafka, 1, at=TopicPartition("none", 1))
        records = [next(reading) for _ in range(19)]
        assert [offset for partition, offset in records if partition == 1] == list(range(10))
        reading.close()


def test_a_batch_larger_than_the_request_and_the_memory_is_read(kafka: FakeKafka) -> None:
    big = plain(0, 20_000)
    assert len(big) > SMALL.memory_bytes
    plant(kafka, big, base=0, stop=20_000, at=TopicPartition("none", 0))
    with new_reader(kafka.bootstrap, fetching=SMALL) as reader:
        assert len(values(reader.read("none"))) == 20_000


def test_a_broker_does_not_wait_for_more_than_a_range_has() -> None:
    fetching = Fetching(min_bytes=1 << 20, max_wait=60.0)
    with FakeKafka(topics={"large": 1}) as kafka:
        with Producer(kafka.bootstrap, compression="none") as producer:
            producer.send_many("large", [b"x" * 10_000] * 300)
        with new_reader(kafka.bootstrap, fetching=fetching) as reader:
            began = time.monotonic()
            assert reader.count("large", 100, 110) == 10
            assert time.monotonic() - began < 30


def _noted_buffers(monkeypatch: pytest.MonkeyPatch) -> list[Buffers]:
    """Those that are made from now on."""
    made: list[Buffers] = []

    def noted(self: Buffers, keep_bytes: int = 0) -> None:
        made.append(self)
        original(self, keep_bytes)

    original = Buffers.__init__
    monkeypatch.setattr(Buffers, "__init__", noted)
    return made


def test_memory_that_is_used_again_is_bounded_for_all_brokers_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug: each connection kept as much memory as all of them together may."""
    fetching = Fetching(memory_bytes=16 << 20, request_bytes=4 << 20)
    most = 0
    made = _noted_buffers(monkeypatch)
    with FakeKafka(brokers=3, topics={"large": 3}) as kafka:
        with Producer(kafka.bootstrap, compression="none", buffering=Buffering(bytes=128 << 20)) as producer:
            for number in range(600):
                producer.send("large", b"x" * 100_000, partition=number % 3)
        with new_reader(kafka.bootstrap, fetching=fetching) as reader:
            for batch in reader.read("large"):
                most = max(most, sum(pool.kept_bytes for pool in made))
                assert batch.num_rows
    assert 4 << 20 <= most <= 8 << 20


def test_little_memory_is_enough_for_many_partitions(kafka: FakeKafka) -> None:
    with new_reader(kafka.bootstrap, fetching=SMALL) as reader:
        assert by_partition(reader.read("many")) == MANY


# What is refused


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda r: r.read("t", "tomorrow"), InputError, "start is 'tomorrow'; accepted are"),
        (lambda r: r.read("t", stop="never"), InputError, "stop is 'never'; accepted are"),
        (lambda r: r.read("t", 5, 3), InputError, "stop 3 lies before start 5"),
        (lambda r: r.read("t", datetime(2026, 1, 1)), InputError, "no time zone"),
        (lambda r: r.read("t", -3), InputError, "offsets begin at 0"),
        (lambda r: r.read("t", columns=["valeu"]), ConfigError, "unknown columns valeu; there are key, value"),
        (lambda r: r.read("t", columns="valeu"), ConfigError, "unknown columns valeu"),
        (lambda r: r.read("many", partitions=[2, 9]), InputError, "many has no partition 9; it has 4"),
        (lambda r: r.read("many", partitions=2), InputError, "partitions is 2; accepted is a collection"),
        (lambda r: r.read("many", {9: 0}), InputError, "offsets are given for 9, which is no partition"),
        (lambda r: r.read("many", {"0": 0}), InputError, "offsets are given for 0, which is no partition"),
        (lambda r: r.read("many", 0, {0: 5}), InputError, "no offset is given for many-1"),
        (lambda r: r.read(5), InputError, "what to read is 5; accepted are names of topics, or OffsetRange"),
        (lambda r: r.read(["t", 5]), InputError, "what to read is"),
        (lambda r: r.read(["t", OffsetRange("t", 0, 0, 5)]), InputError, "what to read is"),
        (lambda r: r.read([OffsetRange("t", 0, 0, 5), OffsetRange("t", 0, 7, 9)]), InputError, "t-0 is named twice"),
        (lambda r: r.read(OffsetRange("t", 0, 0, 5), 2), InputError, "leave out start, stop and partitions"),
        (lambda r: r.count("t", stop=None), InputError, "stop is None"),
        (lambda r: r.profile("t", stop=None), InputError, "stop is None"),
        (lambda r: r.fingerprint("t", stop=None), InputError, "stop is None"),
        (lambda r: r.fold(lambda n, _: n, 0, "t", stop=None), InputError, "stop is None"),
        (lambda r: r.offsets("t", "soon"), InputError, "at is 'soon'; accepted are"),
        (lambda r: r.ranges("t", 7, 5), InputError, "stop 5 lies before start 7"),
    ],
)
def test_wrong_arguments_are_reported_by_the_call_itself(
    reader: Reader, call: Callable[[Any], object], kind: type[OttlaError], text: str
) -> None:
    with pytest.raises(kind, match=text):
        call(reader)


@pytest.mark.parametrize("options", [{"isolation": "dirty"}, {"on_lost": "ignore"}, {"fetching": 5}, {"events": 5}])
def test_wrong_settings_are_refused_before_anything_connects(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Reader("127.0.0.1:1", **options)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("nope", "topic nope"),
        (OffsetRange("nope", 0, 0, 5), "reading nope-0 at offset 0"),
        (OffsetRange("t", 7, 0, 5), "reading t-7 at offset 0"),
    ],
)
def test_what_does_not_exist_is_named(kafka: FakeKafka, what: Any, text: str) -> None:
    with new_reader(kafka.bootstrap, timeouts=SHORT) as reader:
        error = raised_by(lambda: list(reader.read(what)), OttlaError, within=5)
    assert text in str(error)
    assert "UNKNOWN_TOPIC_OR_PARTITION" in str(error)


def test_a_stop_that_is_never_reached_is_reported_and_not_waited_for_forever(kafka: FakeKafka) -> None:
    with new_reader(kafka.bootstrap, timeouts=SHORT, fetching=SMALL) as reader:
        reading = reader.read("t", 95, 200)
        error = raised_by(lambda: list(reading), DeadlineExceeded, within=5)
    assert "t-0 at offset 100" in str(error)
    assert "offset 200 was to be reached" in str(error)


def test_a_refusal_that_no_retry_cures_comes_at_once(kafka: FakeKafka, reader: Reader) -> None:
    kafka.fail("Fetch", ErrorCode.topic_authorization_failed, times=None)
    error = raised_by(lambda: list(reader.read("t")), BrokerError, within=3)
    assert "t-0 at offset 0" in str(error)
    assert "ACL" in str(error)


def test_a_leader_that_cannot_be_reached_is_reported_in_time(kafka: FakeKafka) -> None:
    kafka.move_leader("t", 0, to=2)
    kafka._servers[2].close()  # metadata still names it, as a broker behind a firewall
    with new_reader(kafka.bootstrap, timeouts=SHORT) as reader:
        error = raised_by(lambda: list(reader.read(OffsetRange("t", 0, 0, 5))), DeadlineExceeded, within=5)
    assert "t-0 at offset 0" in str(error)
    assert "refused" in str(error)


# Folding


def test_a_fold_gets_what_failed_and_continues_with_the_rest(kafka: FakeKafka, reader: Reader) -> None:
    damaged = bytearray(plain(500, 10))
    damaged[70] ^= 1
    plant(kafka, bytes(damaged), base=500, stop=510, at=TopicPartition("many", 1))
    cut_off(kafka, 60)

    def add(so_far: tuple[int, list[ReadFailure]], item: pa.RecordBatch | ReadFailure) -> tuple[int, list[ReadFailure]]:
        rows, failures = so_far
        return (rows, [*failures, item]) if isinstance(item, ReadFailure) else (rows + item.num_rows, failures)

    ranges = [OffsetRange("many", number, 0, 510 if number == 1 else 500) for number in range(4)]
    start: tuple[int, list[ReadFailure]] = (0, [])
    rows, failures = reader.fold(add, start, [*ranges, OffsetRange("t", 0, 10, 100)])
    assert rows == 2000
    errors = {(failure.topic, failure.partition, failure.offset): type(failure.error) for failure in failures}
    assert errors == {("many", 1, 500): CorruptBatch, ("t", 0, 10): OffsetsLost}


def test_an_error_of_the_folding_function_is_its_own(reader: Reader) -> None:
    def refuse(_: int, __: object) -> int:
        raise ConfigError("mine")

    with pytest.raises(ConfigError, match="mine"):
        reader.fold(refuse, 0, "t")
    assert not threads_of_reading()


def test_the_next_read_of_a_reader_receives_into_the_memory_of_the_one_before(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert by_partition(reader.read("many")) == MANY
    made = _noted_buffers(monkeypatch)
    assert by_partition(reader.read("many")) == MANY
    assert not [pool for pool in made if pool._keep_bytes]
