"""Truncated logs and topics that were created again: what a consumer returns and commits then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.consume.consuming import CLASSIC, SMALL, committed, new_consumer, offsets, read, take
from tests.fetch.logs import cut_back, fill
from tests.fetch.reader.stand import recreate
from tests.fetch.watching import EventLog, raised_by
from tests.waiting import eventually

from ottla.consume.consumer import Consumer
from ottla.errors import CommitFailed, ErrorCode, OffsetsLost, OttlaError
from ottla.events import RangeLost
from ottla.model import TopicPartition
from ottla.testing import FakeKafka
from ottla.testing.fake.groups import Committed as StoredOffset

from .stand import AT

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


@pytest.fixture(params=["by id", "by name"])
def naming(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How brokers take commits: before Kafka 4.1 they know topics by name only."""
    if request.param == "by name":
        monkeypatch.setattr("ottla.admin.committed._BY_ID", 99)
    return str(request.param)


def has_committed(kafka: FakeKafka, offset: int, *, epoch: int = -1) -> None:
    """Commit this offset, as an earlier program did."""
    with kafka._dispatcher.changed:
        kafka._dispatcher.state.group("g", broker=1).offsets[AT] = StoredOffset(offset, epoch, "")


def _is_at(consumer: Consumer, offset: int) -> bool:
    return AT in consumer.assignment and consumer.position(AT) == offset


def _where(consumer: Consumer) -> tuple[int | None, int | None]:
    return consumer.position(AT), consumer.positions().get(AT)


# A log that ends before the committed offset


def test_who_goes_back_to_the_beginning_commits_where_it_is_then(kafka: FakeKafka) -> None:
    """Regression: it committed the old offset, and the next program skipped everything up to it."""
    has_committed(kafka, 5000)
    with new_consumer(kafka.bootstrap, topics="t", on_lost="earliest", fetching=SMALL) as consumer:
        first = len(take(consumer))
        assert _where(consumer) == (first, first)
        consumer.commit()
        assert committed(kafka) == {AT: first}
        read(consumer, 50 - first)
        assert _where(consumer) == (50, 50)
    assert committed(kafka) == {AT: 50}


def test_a_consumer_that_continues_at_the_end_is_there_before_new_records(kafka: FakeKafka) -> None:
    has_committed(kafka, 5000)
    with new_consumer(kafka.bootstrap, topics="t", on_lost="latest", fetching=SMALL) as consumer:
        eventually(lambda: consumer.poll(0.05) is None and _is_at(consumer, 50), "it has gone to the end")
        assert _where(consumer) == (50, 50)
        consumer.commit()
        assert committed(kafka) == {AT: 50}
        fill(kafka, 1)
        assert offsets([take(consumer)]) == list(range(50, 60))


@pytest.mark.parametrize("commits", ["automatic", "by the program"])
def test_a_log_that_is_cut_back_takes_its_reader_back(kafka: FakeKafka, commits: str) -> None:
    automatic = commits == "automatic"
    options: dict[str, Any] = {"commit_every": 0.05 if automatic else None}
    with new_consumer(kafka.bootstrap, topics="t", on_lost="earliest", fetching=SMALL, **options) as consumer:
        read(consumer, 50)
        cut_back(kafka, 20)
        assert [offset for _, offset in read(consumer, 20)] == list(range(20))
        assert _where(consumer) == (20, 20)
        if automatic:
            eventually(lambda: consumer.poll(0.05) is None and committed(kafka) == {AT: 20}, "it is committed")
        else:
            consumer.commit()
    assert committed(kafka) == {AT: 20}


def test_who_seeks_back_commits_there(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics="t", fetching=SMALL) as consumer:
        read(consumer, 50)
        consumer.commit()
        consumer.seek(AT, 7)
        assert _where(consumer) == (7, 7)
    assert committed(kafka) == {AT: 7}


# A topic that was created again


def _lost(consumer: Consumer) -> OffsetsLost:
    """Poll until it raises."""

    def poll() -> None:
        while True:
            consumer.poll(0.2)

    error = raised_by(poll, OffsetsLost, within=10)
    assert isinstance(error, OffsetsLost)
    return error


@pytest.mark.parametrize("last", ["close", "commit", "commit these", "commit_soon"])
def test_offsets_of_a_topic_are_never_committed_for_its_successor(kafka: FakeKafka, naming: str, last: str) -> None:
    """Regression: closing committed the old topic's offset for the new one, whose first records were never read."""
    consumer = new_consumer(kafka.bootstrap, topics=["t", "long"], fetching=SMALL, commit_every=None)
    with consumer:
        read(consumer, 450)
        consumer.commit()
        consumer.seek(AT, 40)
        read(consumer, 10)
        recreate(kafka, records=300)
        kafka._dispatcher.state.group("g", broker=1).offsets.clear()
        errors: list[OttlaError | None] = []
        match last:
            case "commit":
                with pytest.raises(CommitFailed, match=r"t-0.*created again"):
                    consumer.commit()
            case "commit these":
                with pytest.raises(CommitFailed, match=r"t-0.*created again"):
                    consumer.commit({AT: 45})
            case "commit_soon":
                consumer.commit_soon(done=lambda _, error: errors.append(error))
                eventually(lambda: errors, "it is decided")
                assert isinstance(errors[0], CommitFailed)
            case _:
                pass
    expected = {TopicPartition("long", 0): 400} if last in ("commit", "commit_soon") else {}
    assert committed(kafka) == expected, "the others are committed all the same"


@pytest.mark.parametrize("closing", ["told", "not yet told"])
def test_closing_commits_nothing_for_a_topic_that_was_created_again(
    kafka: FakeKafka, naming: str, closing: str
) -> None:
    consumer = new_consumer(kafka.bootstrap, topics="t", fetching=SMALL)
    with consumer:
        read(consumer, 50)
        recreate(kafka, records=300)
        if closing == "told":
            error = _lost(consumer)
            assert error.replaced
            assert (error.start, error.resume) == (50, 0)
            assert consumer.positions() == {}, "a transaction would commit it by name"
    assert committed(kafka) == {}
    with new_consumer(kafka.bootstrap, topics="t", fetching=SMALL) as another:
        assert offsets([take(another)])[0] == 0


def test_a_transaction_is_not_given_offsets_of_a_topic_that_was_created_again(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics="t", fetching=SMALL, commit_every=None) as consumer:
        read(consumer, 50)
        assert consumer.member.group == "g"
        recreate(kafka, records=300)
        with pytest.raises(CommitFailed, match=r"t-0.*created again"):
            _ = consumer.member
        _lost(consumer)
        assert (consumer.positions(), consumer.member.group) == ({}, "g"), "the others can go on"


def test_a_successor_is_read_and_committed_from_its_beginning(kafka: FakeKafka, naming: str) -> None:
    """The same number of records as before: offsets alone do not tell the two topics apart."""
    sink = EventLog()
    options: dict[str, Any] = {"on_lost": "earliest", "events": [sink], "commit_every": None}
    with new_consumer(kafka.bootstrap, topics="t", fetching=SMALL, **options) as consumer:
        read(consumer, 50)
        consumer.commit()
        recreate(kafka, records=50)
        kafka._dispatcher.state.group("g", broker=1).offsets.clear()
        assert [offset for _, offset in read(consumer, 50)] == list(range(50))
        assert len(sink.of(RangeLost)) == 1
        consumer.commit()
    assert committed(kafka) == {AT: 50}


def test_automatic_commits_know_two_topics_apart(kafka: FakeKafka, naming: str) -> None:
    with new_consumer(kafka.bootstrap, topics="t", on_lost="earliest", fetching=SMALL, commit_every=0.05) as consumer:
        read(consumer, 50)
        eventually(lambda: consumer.poll(0.05) is None and committed(kafka) == {AT: 50}, "it is committed")
        recreate(kafka, records=50)
        kafka._dispatcher.state.group("g", broker=1).offsets.clear()
        read(consumer, 50)
    assert committed(kafka) == {AT: 50}


@pytest.mark.parametrize(
    "stop",
    [
        pytest.param(lambda consumer: consumer.pause(AT), id="paused"),
        pytest.param(lambda consumer: setattr(consumer, "_is_shaken", True), id="interrupted"),
    ],
)
def test_a_topic_that_is_created_again_while_nothing_is_asked_for_is_noticed(
    kafka: FakeKafka, stop: Callable[[Consumer], None]
) -> None:
    """Regression: it continued in the middle of the new topic."""
    with new_consumer(kafka.bootstrap, topics="t", fetching=SMALL) as consumer:
        read(consumer, 20)
        stop(consumer)
        recreate(kafka, records=300)
        consumer.resume(AT)
        assert _lost(consumer).replaced


def test_a_group_without_a_commit_for_the_current_topic_starts_at_start(kafka: FakeKafka) -> None:
    """The consumer remembers the earlier topic, but what the brokers say now counts."""
    with new_consumer(kafka.bootstrap, topics="long", fetching=SMALL, commit_every=None) as consumer:
        read(consumer, 10)
        consumer._cluster.topic("t")
        recreate(kafka, records=30)
        consumer.subscribe(["t"])
        got: list[int] = []

        def gets_all() -> bool:
            batch = consumer.poll(0.05)
            got.extend([] if batch is None or batch.column("topic")[0].as_py() != "t" else offsets([batch]))
            return len(got) >= 30

        eventually(gets_all, "it has all")
        assert got == list(range(30))


def test_an_offset_that_is_sought_is_of_the_topic_that_was_read(kafka: FakeKafka) -> None:
    """Regression: a program that went back ten records got other ones, from the middle of the new topic."""
    with new_consumer(kafka.bootstrap, topics="t", fetching=SMALL) as consumer:
        read(consumer, 50)
        recreate(kafka, records=300)
        consumer.seek(AT, 40)
        error = _lost(consumer)
        assert error.replaced
        consumer.seek(AT, error.resume)
        assert offsets([take(consumer)])[0] == 0


@pytest.mark.parametrize(("place", "first"), [("earliest", 0), ("latest", 300)])
def test_a_place_that_is_sought_is_in_the_topic_that_is_there(kafka: FakeKafka, place: str, first: int) -> None:
    with new_consumer(kafka.bootstrap, topics="t", fetching=SMALL) as consumer:
        read(consumer, 50)
        recreate(kafka, records=300)
        consumer.seek(AT, place)
        assert consumer.position(AT) == first
        fill(kafka, 1)
        assert offsets([take(consumer)])[0] == first


@pytest.mark.parametrize("policy", ["error", "earliest"])
def test_a_topic_that_is_created_again_between_two_assignments_is_noticed(kafka: FakeKafka, policy: str) -> None:
    """A group that assigns by id revokes the old topic and assigns the new one, often before anything is noticed."""
    sink = EventLog()
    options: dict[str, Any] = {"start": "latest", "on_lost": policy, "commit_every": None, "events": [sink]}
    with new_consumer(kafka.bootstrap, topics=["long"], fetching=SMALL, **options) as consumer:
        consumer.poll(0.1)
        consumer.subscribe(["t"])
        eventually(lambda: consumer.poll(0.05) is None and _is_at(consumer, 50), "it is at the end of t")
        fill(kafka, 1)
        assert [offset for _, offset in read(consumer, 10)] == list(range(50, 60))
        consumer.subscribe(["long"])
        eventually(lambda: consumer.poll(0.05) is None and AT not in consumer.assignment, "it has let go")
        recreate(kafka, records=30)
        consumer.subscribe(["t"])
        if policy == "error":
            assert _lost(consumer).replaced
        else:
            assert [offset for _, offset in read(consumer, 30)] == list(range(30))
            assert [event.start for event in sink.of(RangeLost)] == [60]


# A leader epoch that the log never had


@pytest.mark.parametrize("policy", ["error", "earliest", "latest"])
def test_a_committed_epoch_that_the_log_never_had_is_noticed(kafka: FakeKafka, policy: str) -> None:
    """Regression: the broker refuses such an offset although it exists, and the consumer asked for it forever."""
    _with_epochs(kafka)
    has_committed(kafka, 30, epoch=7)
    sink = EventLog()
    with new_consumer(kafka.bootstrap, topics="t", on_lost=policy, fetching=SMALL, events=[sink]) as consumer:
        if policy == "error":
            error = _lost(consumer)
            assert error.start == 30
            assert "leader epoch 7" in str(error)
            return
        if policy == "earliest":
            assert [offset for _, offset in read(consumer, 50)] == list(range(50))
        eventually(lambda: consumer.poll(0.05) is None and _is_at(consumer, 50), "it is at the end")
    assert len(sink.of(RangeLost)) == 1
    assert _stored(kafka) == (50, -1), "the records here have no epoch, and the one before is forgotten"


def test_a_committed_epoch_of_the_log_is_nothing_to_talk_about(kafka: FakeKafka) -> None:
    _with_epochs(kafka)
    has_committed(kafka, 30, epoch=0)
    with new_consumer(kafka.bootstrap, topics="t", fetching=SMALL) as consumer:
        assert [offset for _, offset in read(consumer, 20)] == list(range(30, 50))


def test_a_broker_that_contradicts_itself_is_given_up(kafka: FakeKafka) -> None:
    """Make the fake refuse an offset within its log, whatever is tried."""
    kafka.fail("Fetch", ErrorCode.offset_out_of_range, times=None)
    with new_consumer(kafka.bootstrap, topics="t", on_lost="earliest", options=CLASSIC) as consumer:
        error = raised_by(lambda: [consumer.poll(0.2) for _ in range(1000)], OttlaError, within=30)
    assert "OFFSET_OUT_OF_RANGE" in str(error)


def _with_epochs(kafka: FakeKafka) -> None:
    """Make the log know its leader epochs, as real brokers do."""
    with kafka._dispatcher.changed:
        partition = kafka._partition(*AT)
        partition.log.epochs = [(0, 0)]
        partition.leader_epoch = 0


def _stored(kafka: FakeKafka) -> tuple[int, int]:
    with kafka._dispatcher.changed:
        stored = kafka._dispatcher.state.groups["g"].offsets[AT]
        return stored.offset, stored.leader_epoch
