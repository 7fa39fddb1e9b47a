"""The reader against the fake cluster: what it refuses, what it survives, and what it leaves behind."""

from __future__ import annotations

import _thread
import contextlib
import gc
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from tests.produce.interrupting import interrupted
from tests.waiting import eventually

from ottla.config import Timeouts
from ottla.errors import (
    BrokerError,
    ConfigError,
    ConnectionLost,
    CorruptBatch,
    DeadlineExceeded,
    ErrorCode,
    InputError,
    OffsetsLost,
    OttlaError,
    UsedAfterFork,
)
from ottla.events import Event, FetchRetried, RangeLost
from ottla.fetch.options import Fetching
from ottla.fetch.reader import Reader, ReadFailure
from ottla.model import OffsetRange, TopicPartition
from ottla.net import Cluster
from ottla.net.frames import Frames
from ottla.testing import FakeKafka

from .logs import fill, plain, plant
from .watching import (
    QUICK,
    TIMES,
    Told,
    by_partition,
    names,
    new_reader,
    open_sockets,
    raised_by,
    threads_of_reading,
    values,
)

SHORT = Timeouts(connect=0.5, request=0.5, total=0.6)
SMALL = Fetching(memory_bytes=1 << 16, request_bytes=1 << 10, max_wait=0.1)
MANY = {number: list(range(500)) for number in range(4)}


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    """`t` has 100 records in one partition, `many` 500 in each of four, `none` none."""
    with FakeKafka(brokers=2, topics={"t": 1, "many": 4, "none": 1}, auto_create=None) as cluster:
        fill(cluster, 10)
        for number in range(4):
            fill(cluster, 50, at=TopicPartition("many", number))
        yield cluster


@pytest.fixture
def reader(kafka: FakeKafka) -> Iterator[Reader]:
    with new_reader(kafka.bootstrap) as one:
        yield one


def cut_off(kafka: FakeKafka, offset: int, topic: str = "t") -> None:
    """Retention takes what lies before the offset."""
    with kafka._dispatcher.changed:
        kafka._partition(topic, 0).log.delete_before(offset)


def recreate(kafka: FakeKafka, topic: str = "t") -> None:
    """Another topic of the same name."""
    with kafka._dispatcher.changed:
        del kafka._dispatcher.state.topics[topic]
    kafka.create_topic(topic, 1)


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
    raw = [(one.topic, one.partition, one.batch.header.base_offset) for one in reader.batches("t", start, stop)]
    assert raw == [("t", 0, base) for base in range(start // 10 * 10, stop, 10) if start < stop]


def test_ranges_are_read_side_by_side(reader: Reader) -> None:
    ranges = [OffsetRange("many", 2, 10, 20), OffsetRange("t", 0, 5, 7), OffsetRange("many", 0, 0, 3)]
    found = sorted((batch.column("topic")[0].as_py(), batch.num_rows) for batch in reader.read(ranges))
    assert found == [("many", 3), ("many", 10), ("t", 2)]


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
        found = [next(reading) for _ in range(19)]
        assert [offset for partition, offset in found if partition == 1] == list(range(10))
        reading.close()


def test_a_batch_larger_than_the_request_and_the_memory_is_read(kafka: FakeKafka) -> None:
    big = plain(0, 20_000)
    assert len(big) > SMALL.memory_bytes
    plant(kafka, big, base=0, stop=20_000, at=TopicPartition("none", 0))
    with new_reader(kafka.bootstrap, fetching=SMALL) as reader:
        assert len(values(reader.read("none"))) == 20_000


def test_little_memory_is_enough_for_many_partitions(kafka: FakeKafka) -> None:
    with new_reader(kafka.bootstrap, fetching=SMALL) as reader:
        assert by_partition(reader.read("many")) == MANY


# What is refused


@pytest.mark.parametrize(
    ("call", "kind", "told"),
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
def test_wrong_arguments_are_told_by_the_call_itself(
    reader: Reader, call: Callable[[Any], object], kind: type[OttlaError], told: str
) -> None:
    with pytest.raises(kind, match=told):
        call(reader)


@pytest.mark.parametrize("options", [{"isolation": "dirty"}, {"on_lost": "ignore"}, {"fetching": 5}, {"events": 5}])
def test_wrong_settings_are_refused_before_anything_connects(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Reader("127.0.0.1:1", **options)


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("nope", "topic nope"),
        (OffsetRange("nope", 0, 0, 5), "reading nope-0 at offset 0"),
        (OffsetRange("t", 7, 0, 5), "reading t-7 at offset 0"),
    ],
)
def test_what_does_not_exist_is_named(kafka: FakeKafka, what: Any, told: str) -> None:
    with new_reader(kafka.bootstrap, timeouts=SHORT) as reader:
        error = raised_by(lambda: list(reader.read(what)), OttlaError, within=5)
    assert told in str(error)
    assert "UNKNOWN_TOPIC_OR_PARTITION" in str(error)


def test_a_stop_that_is_never_reached_is_told_and_not_waited_for_for_ever(kafka: FakeKafka) -> None:
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


def test_a_leader_that_cannot_be_reached_is_told_in_time(kafka: FakeKafka) -> None:
    kafka.move_leader("t", 0, to=2)
    kafka._servers[2].close()  # metadata still names it, as a broker behind a firewall
    with new_reader(kafka.bootstrap, timeouts=SHORT) as reader:
        error = raised_by(lambda: list(reader.read(OffsetRange("t", 0, 0, 5))), DeadlineExceeded, within=5)
    assert "t-0 at offset 0" in str(error)
    assert "refused" in str(error)


# Offsets that are not there


@pytest.mark.parametrize(
    ("policy", "start", "first", "lost"),
    [
        ("earliest", 10, 60, (10, 60, 60)),
        ("latest", 10, 100, (10, 60, 100)),
        ("earliest", 150, 60, (100, 150, 60)),
        ("latest", 150, 100, (100, 150, 100)),
    ],
)
def test_an_offset_out_of_range_is_told_and_the_policy_is_followed(
    kafka: FakeKafka, policy: str, start: int, first: int, lost: tuple[int, int, int]
) -> None:
    cut_off(kafka, 60)
    told = Told()

    def write_on(event: Event) -> None:
        if isinstance(event, RangeLost):
            fill(kafka, 10)

    with new_reader(kafka.bootstrap, on_lost=policy, events=[told, write_on]) as reader:
        offsets = [record.offset for record in names(reader.read("t", start, 200))]
    (event,) = told.of(RangeLost)
    assert (event.topic, event.partition) == ("t", 0)
    assert (event.start, event.stop, event.resume) == lost
    assert event.reason
    assert offsets == list(range(first, 200))


@pytest.mark.parametrize(("start", "lost"), [(10, (10, 60)), (150, (100, 150))])
def test_an_offset_out_of_range_is_an_error_unless_told_otherwise(
    kafka: FakeKafka, reader: Reader, start: int, lost: tuple[int, int]
) -> None:
    cut_off(kafka, 60)
    with pytest.raises(OffsetsLost, match=r"t-0: offsets \[.*on_lost='earliest'") as caught:
        list(reader.read("t", start, 200))
    assert (caught.value.start, caught.value.stop, caught.value.resume) == (*lost, 60)


def test_a_range_that_is_lost_to_its_end_is_told_and_ends(kafka: FakeKafka) -> None:
    cut_off(kafka, 60)
    told = Told()
    with new_reader(kafka.bootstrap, on_lost="earliest", events=[told]) as reader:
        assert list(reader.read("t", 10, 40)) == []
    (event,) = told.of(RangeLost)
    assert (event.start, event.stop) == (10, 40)


@pytest.mark.parametrize("policy", ["error", "earliest", "latest"])
def test_what_was_fetched_before_the_loss_is_handed_out_before_it_is_told(kafka: FakeKafka, policy: str) -> None:
    tiny = Fetching(memory_bytes=1 << 17, request_bytes=1 << 10, max_wait=0.1)
    told = Told()
    with new_reader(kafka.bootstrap, on_lost=policy, fetching=tiny, events=[told]) as reader:
        reading = reader.read("many", 0, 500, partitions=[0])
        first = next(reading)
        handed = first.column("offset").to_pylist()
        with kafka._dispatcher.changed:  # what it has fetched ahead is all it will ever get
            kafka._partition("many", 0).log.delete_before(490)
        failed: OffsetsLost | None = None
        try:
            for batch in reading:
                handed += batch.column("offset").to_pylist()
        except OffsetsLost as error:
            failed = error
    lost = failed or (told.of(RangeLost) or [None])[0]
    if lost is None:
        assert handed == list(range(500)), "all was fetched before"
        return
    before = [offset for offset in handed if offset < lost.start]
    assert before == list(range(lost.start)), "nothing is missing before what was told"
    assert lost.stop == 490


def test_what_waits_on_the_shelf_survives_a_loss_behind_it(kafka: FakeKafka) -> None:
    told = Told()
    fetching = Fetching(memory_bytes=1 << 20, request_bytes=1 << 10, max_wait=0.1)
    with new_reader(kafka.bootstrap, on_lost="earliest", fetching=fetching, events=[told]) as reader:
        kafka.delay("Fetch", 0.05, times=None)
        reading = reader.read("many", 0, 500, partitions=[0])
        handed = next(reading).column("offset").to_pylist()
        kafka.wait_for_request("Fetch", count=4)  # some pieces lie on the shelf, more are to come
        with kafka._dispatcher.changed:
            kafka._partition("many", 0).log.delete_before(490)
        eventually(lambda: told.of(RangeLost), "the loss is noticed while the reader sleeps")
        handed += [record.offset for record in names(reading)]
    (lost,) = told.of(RangeLost)
    assert lost.start > 20, "there was something on the shelf"
    assert handed == [*range(lost.start), *range(490, 500)]


# Another topic under the same name


@pytest.mark.parametrize("size", [1, 40], ids=["shorter", "longer"])
@pytest.mark.parametrize("policy", ["error", "earliest"])
def test_a_topic_that_was_created_anew_is_noticed(kafka: FakeKafka, size: int, policy: str) -> None:
    told = Told()
    with new_reader(kafka.bootstrap, on_lost=policy, fetching=SMALL, events=[told]) as reader:
        reading = names(reader.read("t", 0, None))
        assert [next(reading).offset for _ in range(100)] == list(range(100))
        recreate(kafka)
        fill(kafka, size)
        if policy == "error":
            with pytest.raises(OffsetsLost, match=r"t-0.*deleted and created again"):
                next(reading)
        else:
            assert next(reading).offset == 0
            (event,) = told.of(RangeLost)
            assert "deleted and created again" in event.reason
            assert (event.start, event.resume) == (100, 0)
            reading.close()


def test_a_range_that_was_fetched_whole_is_not_spoilt_by_a_new_topic(kafka: FakeKafka) -> None:
    times = Timeouts(connect=2, request=3, total=10, metadata_age=0.05)
    with new_reader(kafka.bootstrap, timeouts=times) as reader:
        ranges = [OffsetRange("t", 0, 0, 100), OffsetRange("none", 0, 0, 10)]
        reading = names(reader.read(ranges))
        assert next(reading).offset == 0  # all of t is on the shelf or in use
        recreate(kafka)
        kafka.fail("Fetch", ErrorCode.not_leader_or_follower, times=2)  # metadata is looked at again
        fill(kafka, 1, at=TopicPartition("none", 0))
        assert len(list(reading)) == 109


def test_a_topic_that_is_gone_is_told(kafka: FakeKafka) -> None:
    with new_reader(kafka.bootstrap, timeouts=SHORT, fetching=SMALL) as reader:
        reading = names(reader.read("t", 0, 200))
        next(reading)
        with kafka._dispatcher.changed:
            del kafka._dispatcher.state.topics["t"]
        error = raised_by(lambda: list(reading), OttlaError, within=5)
    assert "t-0 at offset" in str(error)
    assert "UNKNOWN_TOPIC" in str(error)


# Slow readers


def test_a_reader_that_takes_its_time_is_not_given_up(kafka: FakeKafka) -> None:
    fetching = Fetching(memory_bytes=1 << 16, request_bytes=1 << 16, max_wait=0.05)
    kafka.create_topic("large", 4)
    for number in range(4):
        fill(kafka, 6, each=3000, at=TopicPartition("large", number))  # too large for two in one answer
    with new_reader(kafka.bootstrap, timeouts=SHORT, fetching=fetching) as reader:
        reading = names(reader.read("large"))
        first = next(reading)
        time.sleep(1.5)  # much longer than `total`, with a full shelf
        rest = list(reading)
    found: dict[int, list[int]] = {}
    for partition, offset in [first, *rest]:
        found.setdefault(partition, []).append(offset)
    assert found == {number: list(range(18_000)) for number in range(4)}


# Trouble on the way


@pytest.mark.parametrize(
    "spoil",
    [
        lambda kafka: kafka.cut("Fetch", times=3),
        lambda kafka: kafka.half_response("Fetch", times=3),
        lambda kafka: kafka.half_response("Fetch", times=2, keep_bytes=2),
        lambda kafka: kafka.fail("Fetch", ErrorCode.not_leader_or_follower, times=3),
        lambda kafka: kafka.fail("Fetch", ErrorCode.kafka_storage_error, times=3),
        lambda kafka: kafka.fail("Fetch", ErrorCode.unknown_leader_epoch, times=3),
        lambda kafka: kafka.fail("Fetch", ErrorCode.offset_out_of_range, times=2),
        lambda kafka: kafka.fail("Metadata", ErrorCode.leader_not_available, times=2),
        lambda kafka: kafka.delay("Fetch", 0.2, times=3),
    ],
    ids=["cut", "half", "two bytes", "not leader", "storage", "epoch", "range", "metadata", "delay"],
)
def test_every_record_comes_once_whatever_goes_wrong_on_the_way(
    kafka: FakeKafka, spoil: Callable[[FakeKafka], object]
) -> None:
    told = Told()
    with new_reader(kafka.bootstrap, fetching=SMALL, events=[told]) as reader:
        reading = reader.read("many")
        spoil(kafka)
        assert by_partition(reading) == MANY


def test_a_silent_broker_is_left_after_the_request_timeout(kafka: FakeKafka) -> None:
    times = Timeouts(connect=1, request=0.4, total=10)
    told = Told()
    with new_reader(kafka.bootstrap, timeouts=times, fetching=SMALL, events=[told]) as reader:
        reading = reader.read("many")
        kafka.silence("Fetch", times=2)
        assert by_partition(reading) == MANY
    assert told.of(FetchRetried)


def test_leaders_move_and_brokers_go_and_come_back_while_a_topic_is_read(kafka: FakeKafka) -> None:
    with new_reader(kafka.bootstrap, fetching=SMALL) as reader:
        found: dict[int, list[int]] = {}
        for number, record in enumerate(names(reader.read("many"))):
            found.setdefault(record.partition, []).append(record.offset)
            if number % 100 == 0:
                index = number // 100
                live = sorted(kafka._dispatcher.state.live)
                kafka.move_leader("many", index % 4, to=live[index // 4 % len(live)])
            if number in (510, 1210):
                kafka.down(1 if number == 510 else 2)
            if number in (710, 1510):
                kafka.all_up()
        assert found == MANY


def test_all_brokers_away_for_a_while_is_survived(kafka: FakeKafka) -> None:
    with new_reader(kafka.bootstrap, fetching=SMALL) as reader:
        reading = names(reader.read("many"))
        found = [next(reading)]
        kafka.all_down()
        back = threading.Timer(0.5, kafka.all_up)
        back.start()
        found += list(reading)
        back.join()
    assert len(set(found)) == len(found) == 2000


def test_a_connection_that_broke_is_let_go_of_with_the_half_answer_on_it(kafka: FakeKafka) -> None:
    gc.collect()
    before = _receiving()  # of clients that other tests keep open
    gc.disable()  # megabytes must not wait for it
    try:
        with new_reader(kafka.bootstrap, fetching=SMALL) as reader:
            reading = names(reader.read("many"))
            spoilt = kafka.half_response("Fetch", times=20)
            assert len(list(reading)) == 2000
            assert spoilt.hits == 20
            received = _receiving() - before
    finally:
        gc.enable()
    assert received < 8, "each has the answer that was under way"


def _receiving() -> int:
    return sum(isinstance(one, Frames) for one in gc.get_objects())


# Using one from several threads, closing, interrupting, forking


def test_several_reads_at_once_on_one_reader(reader: Reader) -> None:
    found: list[dict[int, list[int]]] = []
    threads = [threading.Thread(target=lambda: found.append(by_partition(reader.read("many")))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == [MANY] * 6


def test_two_iterators_may_be_read_in_turn(reader: Reader) -> None:
    pairs = list(zip(names(reader.read("t")), names(reader.read("t")), strict=True))
    assert len(pairs) == 100
    assert all(left == right for left, right in pairs)


def test_an_iterator_that_is_closed_early_leaves_nothing_behind(kafka: FakeKafka, reader: Reader) -> None:
    list(reader.read("many"))
    before = open_sockets()
    for _ in range(5):
        reading = reader.read("many", 0, None)
        next(reading)
        assert threads_of_reading()
        reading.close()
        assert not threads_of_reading()
    for _ in reader.read("many"):
        break
    assert not threads_of_reading()
    # One connection to each broker may have been made just then; it is kept for the next read.
    eventually(lambda: open_sockets() <= before + 4, f"about {before} sockets as before, not {open_sockets()}")


def test_an_iterator_that_is_never_begun_costs_nothing(reader: Reader) -> None:
    reading = reader.read("t")
    assert not threads_of_reading()
    del reading


def test_closing_a_reader_ends_iterators_that_are_open(kafka: FakeKafka) -> None:
    before = open_sockets()
    reader = new_reader(kafka.bootstrap)
    reading = reader.read("many", 0, None)
    next(reading)
    reader.close()
    assert not threads_of_reading()
    with pytest.raises(ConnectionLost, match="closed"):
        list(reading)
    with pytest.raises(ConnectionLost, match="closed"):
        reader.read("t")
    eventually(lambda: open_sockets() <= before, "the sockets are closed")


def test_closing_a_reader_ends_its_iterators_although_the_cluster_is_shared(kafka: FakeKafka) -> None:
    with Cluster(kafka.bootstrap, retry=QUICK, timeouts=TIMES) as shared:
        with Reader(shared) as reader:
            reading = reader.read("t", 0, None)
            next(reading)
        assert not threads_of_reading()
        with pytest.raises(ConnectionLost, match="closed"):
            next(reading)
        with Reader(shared) as another:
            assert another.count("t") == 100


def test_closing_wakes_a_thread_that_waits_for_records(kafka: FakeKafka) -> None:
    reader = new_reader(kafka.bootstrap)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            list(reader.read("none", 0, None))
        except OttlaError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    kafka.wait_for_request("Fetch")
    began = time.monotonic()
    reader.close()
    thread.join(5)
    assert not thread.is_alive()
    assert time.monotonic() - began < 3
    assert [type(error) for error in errors] == [ConnectionLost]


def test_ctrl_c_ends_a_wait_at_once_and_the_reader_can_be_used_again(kafka: FakeKafka, reader: Reader) -> None:
    pressed: list[float] = []

    def press() -> None:
        kafka.wait_for_request("Fetch")
        pressed.append(time.monotonic())
        _thread.interrupt_main()

    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        list(reader.read("none", 0, None))
    assert time.monotonic() - pressed[0] < 2
    thread.join()
    assert not threads_of_reading()
    assert reader.count("t") == 100


# A socket that was made at that very instruction is closed by the garbage collector, which says so.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_at_any_instruction_leaves_no_thread_when_the_reader_is_closed(kafka: FakeKafka) -> None:
    def press() -> None:
        raise KeyboardInterrupt

    def work(reader: Reader) -> None:
        assert len(values(reader.read(OffsetRange("t", 0, 0, 100)))) == 100

    for at in range(1, 10_000, 5):
        reached = True
        with new_reader(kafka.bootstrap) as reader, contextlib.suppress(KeyboardInterrupt):
            doing = partial(work, reader)
            reached = interrupted(doing, at, press, files=("fetch/reader.py", "fetch/shelf.py", "fetch/fetcher.py"))
        eventually(lambda: not threads_of_reading(), "no thread is left")
        if not reached:
            assert at > 300, "it was interrupted in many places"
            return
    pytest.fail("reading has no end")


def _child(reading: Iterator[pa.RecordBatch], reader: Reader, told: Any) -> None:
    for call in (lambda: next(reading), lambda: reader.read("t"), lambda: reader.count("t")):
        try:
            call()
            told.put("nothing")
        except UsedAfterFork as error:
            told.put(str(error))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_gets_an_error_at_once_and_the_parent_reads_on(kafka: FakeKafka, reader: Reader) -> None:
    context = multiprocessing.get_context("fork")
    told = context.Queue()
    reading = reader.read("many", 0, 500)
    first = next(reading)
    child = context.Process(target=_child, args=(reading, reader, told))
    child.start()
    answers = [told.get(timeout=10) for _ in range(3)]
    child.join(10)
    told.close()
    assert child.exitcode == 0
    assert all(f"made in process {os.getpid()} before fork()" in answer for answer in answers)
    assert first.num_rows + sum(batch.num_rows for batch in reading) == 2000


# Folding


def test_a_fold_hears_of_what_failed_and_goes_on_with_the_rest(kafka: FakeKafka, reader: Reader) -> None:
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
    found = {(one.topic, one.partition, one.offset): type(one.error) for one in failures}
    assert found == {("many", 1, 500): CorruptBatch, ("t", 0, 10): OffsetsLost}


def test_an_error_of_the_folding_function_is_its_own(reader: Reader) -> None:
    def refuse(_: int, __: object) -> int:
        raise ConfigError("mine")

    with pytest.raises(ConfigError, match="mine"):
        reader.fold(refuse, 0, "t")
    assert not threads_of_reading()
