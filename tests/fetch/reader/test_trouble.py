"""Lost offsets, topics created again, failing brokers: reported, or survived with every record once."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

import pytest
from tests.fetch.logs import cut_back, fill
from tests.fetch.watching import EventLog, by_partition, names, new_reader, raised_by
from tests.net.test_cluster import closed_port
from tests.waiting import eventually

from ottla.config import Timeouts
from ottla.errors import DeadlineExceeded, ErrorCode, OffsetsLost, OttlaError
from ottla.events import ConnectionDown, Event, FetchRetried, RangeLost, TimeDown
from ottla.fetch.options import Fetching
from ottla.fetch.reader import Reader
from ottla.model import OffsetRange, TopicPartition
from ottla.net.frames import Frames
from ottla.testing import FakeKafka

from .stand import MANY, SHORT, SMALL, cut_off, recreate

LENIENT = pytest.mark.parametrize("policy", ["earliest", "latest"])

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
def test_following_from_an_offset_out_of_range_is_reported_and_continues_where_the_policy_says(
    kafka: FakeKafka, policy: str, start: int, first: int, lost: tuple[int, int, int]
) -> None:
    cut_off(kafka, 60)
    events = EventLog()

    def write_on(event: Event) -> None:
        if isinstance(event, RangeLost):
            fill(kafka, 10)

    with new_reader(kafka.bootstrap, on_lost=policy, events=[events, write_on]) as reader:
        reading = names(reader.read("t", start, None))
        assert [next(reading).offset for _ in range(first, 200)] == list(range(first, 200))
        reading.close()
    (event,) = events.of(RangeLost)
    assert (event.topic, event.partition) == ("t", 0)
    assert (event.start, event.stop, event.resume) == lost
    assert event.reason


@pytest.mark.parametrize(("start", "lost"), [(10, (10, 60)), (150, (100, 150))])
def test_an_offset_out_of_range_is_an_error_by_default(
    kafka: FakeKafka, reader: Reader, start: int, lost: tuple[int, int]
) -> None:
    cut_off(kafka, 60)
    with pytest.raises(OffsetsLost, match=r"t-0: offsets \[.*on_lost='earliest'") as caught:
        list(reader.read("t", start, 200))
    assert (caught.value.start, caught.value.stop, caught.value.resume) == (*lost, 60)


@LENIENT
@pytest.mark.parametrize(
    ("start", "stop", "lost"),
    [
        pytest.param(10, 90, (10, 60, 60), id="begins before the log"),
        pytest.param(10, 40, (10, 40, 40), id="lies before the log"),
        pytest.param(10, 60, (10, 60, 60), id="ends where the log begins"),
        pytest.param(150, 200, (150, 200, 200), id="lies behind the log"),
    ],
)
def test_a_range_gives_what_there_is_of_it_and_tells_the_rest(
    kafka: FakeKafka, policy: str, start: int, stop: int, lost: tuple[int, int, int]
) -> None:
    cut_off(kafka, 60)
    events = EventLog()
    with new_reader(kafka.bootstrap, on_lost=policy, events=[events]) as reader:
        offsets = [record.offset for record in names(reader.read("t", start, stop))]
    assert offsets == list(range(lost[1], stop))
    assert [(event.start, event.stop, event.resume) for event in events.of(RangeLost)] == [lost]


@LENIENT
def test_a_log_that_is_cut_while_a_range_of_it_is_read_ends_the_range(kafka: FakeKafka, policy: str) -> None:
    events = EventLog()
    with new_reader(kafka.bootstrap, on_lost=policy, fetching=SMALL, events=[events]) as reader:
        reading = names(reader.read("t", 20, 150))
        offsets = [next(reading).offset for _ in range(20, 100)]
        cut_back(kafka, 10)
        offsets += [record.offset for record in reading]
    assert offsets == list(range(20, 100))
    (event,) = events.of(RangeLost)
    assert (event.start, event.stop, event.resume) == (100, 150, 150)


@LENIENT
@pytest.mark.parametrize("start", [90, 100], ids=["before the end", "at the end"])
def test_the_part_of_a_range_that_the_log_does_not_have_is_lost_when_nothing_comes(
    kafka: FakeKafka, policy: str, start: int
) -> None:
    events = EventLog()
    with new_reader(kafka.bootstrap, on_lost=policy, timeouts=SHORT, fetching=SMALL, events=[events]) as reader:
        assert [record.offset for record in names(reader.read("t", start, 120))] == list(range(start, 100))
    (event,) = events.of(RangeLost)
    assert (event.start, event.stop, event.resume) == (100, 120, 120)
    assert "the log ends at 100" in event.reason


def test_where_the_log_ends_is_not_guessed(kafka: FakeKafka) -> None:
    events = EventLog()
    kafka.fail("ListOffsets", ErrorCode.offset_not_available, times=None)
    with new_reader(kafka.bootstrap, on_lost="earliest", timeouts=SHORT, fetching=SMALL, events=[events]) as reader:
        reading = reader.read(OffsetRange("t", 0, 90, 120))
        error = raised_by(lambda: list(reading), DeadlineExceeded, within=5)
    assert "OFFSET_NOT_AVAILABLE" in str(error)
    assert not events.of(RangeLost)


@pytest.mark.parametrize("policy", ["error", "earliest", "latest"])
def test_what_was_fetched_before_the_loss_is_handed_out_before_it_is_reported(kafka: FakeKafka, policy: str) -> None:
    tiny = Fetching(memory_bytes=1 << 17, request_bytes=1 << 10, max_wait=0.1)
    events = EventLog()
    with new_reader(kafka.bootstrap, on_lost=policy, fetching=tiny, events=[events]) as reader:
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
    lost = failed or (events.of(RangeLost) or [None])[0]
    if lost is None:
        assert handed == list(range(500)), "all was fetched before"
        return
    before = [offset for offset in handed if offset < lost.start]
    assert before == list(range(lost.start)), "nothing is missing before what was told"
    assert lost.stop == 490


def test_what_waits_on_the_buffer_survives_a_loss_behind_it(kafka: FakeKafka) -> None:
    events = EventLog()
    fetching = Fetching(memory_bytes=1 << 20, request_bytes=1 << 10, max_wait=0.1)
    with new_reader(kafka.bootstrap, on_lost="earliest", fetching=fetching, events=[events]) as reader:
        kafka.delay("Fetch", 0.05, times=None)
        reading = reader.read("many", 0, 500, partitions=[0])
        handed = next(reading).column("offset").to_pylist()
        kafka.wait_for_request("Fetch", count=4)  # some pieces lie on the buffer, more are to come
        with kafka._dispatcher.changed:
            kafka._partition("many", 0).log.delete_before(490)
        eventually(lambda: events.of(RangeLost), "the loss is noticed while the reader sleeps")
        handed += [record.offset for record in names(reading)]
    (lost,) = events.of(RangeLost)
    assert lost.start > 20, "there was something on the buffer"
    assert handed == [*range(lost.start), *range(490, 500)]


# Another topic under the same name


@pytest.mark.parametrize("size", [1, 40], ids=["shorter", "longer"])
@pytest.mark.parametrize("policy", ["error", "earliest"])
def test_a_recreated_topic_is_noticed(kafka: FakeKafka, size: int, policy: str) -> None:
    events = EventLog()
    with new_reader(kafka.bootstrap, on_lost=policy, fetching=SMALL, events=[events]) as reader:
        reading = names(reader.read("t", 0, None))
        assert [next(reading).offset for _ in range(100)] == list(range(100))
        recreate(kafka, records=10 * size)
        if policy == "error":
            with pytest.raises(OffsetsLost, match=r"t-0.*deleted and created again"):
                next(reading)
        else:
            assert next(reading).offset == 0
            (event,) = events.of(RangeLost)
            assert "deleted and created again" in event.reason
            assert (event.start, event.resume) == (100, 0)
            reading.close()


@LENIENT
@pytest.mark.parametrize(("size", "resume"), [(1, 150), (40, 100)], ids=["shorter", "longer"])
def test_a_range_of_a_recreated_topic_continues_with_what_the_new_one_has_of_it(
    kafka: FakeKafka, policy: str, size: int, resume: int
) -> None:
    events = EventLog()
    with new_reader(kafka.bootstrap, on_lost=policy, fetching=SMALL, events=[events]) as reader:
        reading = names(reader.read("t", 20, 150))
        offsets = [next(reading).offset for _ in range(20, 100)]
        recreate(kafka, records=10 * size)
        offsets += [record.offset for record in reading]
    assert offsets == [*range(20, 100), *range(resume, 150)]
    (event,) = events.of(RangeLost)
    assert "deleted and created again" in event.reason
    assert (event.start, event.stop, event.resume) == (100, 150, resume)


def test_a_reader_that_knew_the_old_topic_reads_ranges_of_the_new_one(kafka: FakeKafka) -> None:
    with new_reader(kafka.bootstrap, on_lost="earliest", fetching=SMALL) as reader:
        assert reader.count("t") == 100
        recreate(kafka, records=100)
        reading = names(reader.read(OffsetRange("t", 0, 30, 60)))
        assert [record.offset for record in reading] == list(range(30, 60))


def test_a_range_that_was_fetched_whole_is_not_spoilt_by_a_new_topic(kafka: FakeKafka) -> None:
    times = Timeouts(connect=2, request=3, total=10, metadata_age=0.05)
    with new_reader(kafka.bootstrap, timeouts=times) as reader:
        ranges = [OffsetRange("t", 0, 0, 100), OffsetRange("none", 0, 0, 10)]
        reading = names(reader.read(ranges))
        assert next(reading).offset == 0  # all of t is on the buffer or in use
        recreate(kafka)
        kafka.fail("Fetch", ErrorCode.not_leader_or_follower, times=2)  # metadata is looked at again
        fill(kafka, 1, at=TopicPartition("none", 0))
        assert len(list(reading)) == 109


def test_a_topic_that_is_gone_is_reported(kafka: FakeKafka) -> None:
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
        time.sleep(1.5)  # much longer than `total`, with a full buffer
        rest = list(reading)
    records: dict[int, list[int]] = {}
    for partition, offset in [first, *rest]:
        records.setdefault(partition, []).append(offset)
    assert records == {number: list(range(18_000)) for number in range(4)}


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
    events = EventLog()
    with new_reader(kafka.bootstrap, fetching=SMALL, events=[events]) as reader:
        reading = reader.read("many")
        spoil(kafka)
        assert by_partition(reading) == MANY


def test_a_silent_broker_is_left_after_the_request_timeout(kafka: FakeKafka) -> None:
    times = Timeouts(connect=1, request=0.4, total=10)
    events = EventLog()
    with new_reader(kafka.bootstrap, timeouts=times, fetching=SMALL, events=[events]) as reader:
        reading = reader.read("many")
        kafka.silence("Fetch", times=2)
        assert by_partition(reading) == MANY
    assert events.of(FetchRetried)


def test_leaders_move_and_brokers_go_and_come_back_while_a_topic_is_read(kafka: FakeKafka) -> None:
    with new_reader(kafka.bootstrap, fetching=SMALL) as reader:
        records: dict[int, list[int]] = {}
        for number, record in enumerate(names(reader.read("many"))):
            records.setdefault(record.partition, []).append(record.offset)
            if number % 100 == 0:
                index = number // 100
                live = sorted(kafka._dispatcher.state.live)
                kafka.move_leader("many", index % 4, to=live[index // 4 % len(live)])
            if number in (510, 1210):
                kafka.down(1 if number == 510 else 2)
            if number in (710, 1510):
                kafka.all_up()
        assert records == MANY


def test_all_brokers_away_for_a_while_is_survived(kafka: FakeKafka) -> None:
    with new_reader(kafka.bootstrap, fetching=SMALL) as reader:
        reading = names(reader.read("many"))
        records = [next(reading)]
        kafka.all_down()
        back = threading.Timer(0.5, kafka.all_up)
        back.start()
        records += list(reading)
        back.join()
    assert len(set(records)) == len(records) == 2000


def test_a_range_that_is_given_up_without_any_broker_names_the_addresses(kafka: FakeKafka) -> None:
    times = Timeouts(connect=0.5, request=0.5, total=2.0)
    with new_reader(kafka.bootstrap, fetching=SMALL, timeouts=times) as reader:
        reading = names(reader.read("many"))
        next(reading)
        kafka.all_down()
        with pytest.raises(DeadlineExceeded) as raised:
            list(reading)
    assert {cause.partition(": ")[0] for cause in raised.value.causes} <= set(map(str, kafka.addresses.values()))
    assert all("connection refused" in cause for cause in raised.value.causes)


def test_addresses_that_do_not_answer_are_reported_as_a_producer_reports_them(kafka: FakeKafka) -> None:
    events = EventLog()
    with new_reader(f"{kafka.bootstrap},{closed_port()}", fetching=SMALL, events=[events]) as reader:
        reading = names(reader.read("many"))
        records = [next(reading)]
        kafka.all_down()
        back = threading.Thread(target=_up_when, args=(kafka, lambda: _nowhere(events)))
        back.start()
        records += list(reading)
        back.join()
    assert len(set(records)) == len(records) == 2000
    assert {event.broker_id for event in events.of(TimeDown)} >= {None}


def _up_when(kafka: FakeKafka, condition: Callable[[], object]) -> None:
    eventually(condition)
    kafka.all_up()


def _nowhere(events: EventLog) -> list[ConnectionDown]:
    return [event for event in events.of(ConnectionDown) if event.broker_id is None]


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
    return sum(type(thing) is Frames for thing in gc.get_objects())
