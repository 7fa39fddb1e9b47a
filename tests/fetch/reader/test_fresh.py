"""A long-lived reader and topics that change: it reports them as they are now, not from its cache."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import replace
from uuid import UUID

import pytest
from tests.fetch.logs import fill
from tests.fetch.watching import EventLog, names, new_reader, raised_by
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.admin.committed import Committed
from ottla.errors import OffsetsLost
from ottla.events import RangeLost
from ottla.fetch.bounds import CommittedBy
from ottla.fetch.reader import Reader
from ottla.model import OffsetRange, TopicPartition
from ottla.net import Cluster
from ottla.testing import FakeKafka

from .stand import SMALL, recreate


def _grow(kafka: FakeKafka, topic: str = "t") -> None:
    with kafka._dispatcher.changed:
        kafka._dispatcher.state.add_partitions(kafka._dispatcher.state.topics[topic], 2)
    fill(kafka, 5, at=TopicPartition(topic, 1))


# Partitions that were added


def test_a_proof_counts_partitions_that_were_added_a_moment_ago(kafka: FakeKafka, reader: Reader) -> None:
    """A bug: for five minutes they were missing from everything that counts as proof."""
    assert reader.count("t") == 100
    before = reader.fingerprint("t")
    _grow(kafka)
    assert reader.count("t") == 150
    assert reader.fingerprint("t").count == 150
    assert reader.fingerprint("t") != before
    assert [span.partition for span in reader.ranges("t")] == [0, 1]
    assert sorted(reader.offsets("t", "latest").values()) == [50, 100]
    assert [profile.records for profile in reader.profile("t")] == [100, 50]
    assert len(list(names(reader.read("t")))) == 150
    assert sum(decoded.rows for decoded in reader.decoded("t")) == 150
    assert reader.fold(lambda total, batch: total + len(batch), 0, "t") == 150
    assert {raw.partition for raw in reader.batches("t")} == {0, 1}
    assert len(list(names(reader.read("t", CommittedBy("nobody"))))) == 150


def test_so_do_the_offsets_of_a_whole_topic(kafka: FakeKafka) -> None:
    with Cluster(kafka.bootstrap) as cluster:
        admin = Admin(cluster)
        assert len(admin.list_offsets("t")) == 1
        _grow(kafka)
        assert len(admin.list_offsets("t")) == 2
        assert len(admin.log_ranges("t")) == 2


def test_what_another_thread_asked_before_is_no_answer_to_what_is_asked_now(kafka: FakeKafka) -> None:
    """That answer may be older than the change that the caller reacts to."""
    with Cluster(kafka.bootstrap) as cluster:
        cluster.metadata()
        kafka.delay("Metadata", 0.5, times=1)
        early = threading.Thread(target=cluster.metadata, args=(["t"],))
        before = _asked(kafka)
        early.start()
        kafka.wait_for_request("Metadata", count=before + 1)
        assert len(cluster.metadata(["t"]).topics["t"].partitions) == 1
        early.join()
        assert _asked(kafka) == before + 2


def _asked(kafka: FakeKafka) -> int:
    return sum(request.api == "Metadata" for request in kafka.requests)


# Topics that were created again


@pytest.mark.parametrize("what", ["t", OffsetRange("t", 0, 0, 30)], ids=["a topic", "a range"])
def test_a_new_read_begins_with_the_topic_that_is_there(kafka: FakeKafka, reader: Reader, what: str) -> None:
    """A bug: the first read after the topic was created again reported its offsets as lost."""
    assert reader.count("t") == 100
    recreate(kafka, records=30)
    assert [record.offset for record in names(reader.read(what))] == list(range(30))
    recreate(kafka, records=70)
    following = names(reader.read("t", stop=None))
    assert [next(following).offset for _ in range(70)] == list(range(70))
    following.close()


def test_a_topic_that_goes_while_it_is_read_is_still_noticed(kafka: FakeKafka) -> None:
    with new_reader(kafka.bootstrap, fetching=SMALL) as reader:
        reading = names(reader.read(OffsetRange("t", 0, 0, 200)))
        assert [next(reading).offset for _ in range(100)] == list(range(100))
        recreate(kafka, records=200)
        error = raised_by(lambda: list(reading), OffsetsLost, within=10)
    assert isinstance(error, OffsetsLost)
    assert error.replaced


def test_brokers_that_have_not_heard_of_the_topic_yet_do_not_take_its_reader_back() -> None:
    """A bug: a broker that lags behind names the id of the old topic, and the reader started over."""
    with FakeKafka(brokers=2, topics={"t": 1}, auto_create=None) as kafka:
        fill(kafka, 10)
        with new_reader(kafka.bootstrap, on_lost="earliest", fetching=SMALL) as reader:
            reading = names(reader.read("t", stop=None))
            assert [next(reading).offset for _ in range(100)] == list(range(100))
            (fetcher,) = reader._fetchers
            (cursor,) = fetcher._cursors.values()
            metadata = reader.cluster.metadata(["t"])
            assert cursor.topic_id == metadata.topics["t"].id
            behind = replace(metadata, topics={"t": replace(metadata.topics["t"], id=UUID(int=7))})
            fetcher._loop.call(lambda: fetcher._learn(behind, time.monotonic()))
            fill(kafka, 1)
            assert [next(reading).offset for _ in range(10)] == list(range(100, 110))
            reading.close()


@pytest.mark.parametrize("policy", ["earliest", "error"])
def test_a_partition_that_the_new_topic_does_not_have_is_reported_and_read_when_it_comes(
    kafka: FakeKafka, policy: str
) -> None:
    """A bug: the reader waited for it without reporting what it had not read of the old topic."""
    events = EventLog()
    with new_reader(kafka.bootstrap, on_lost=policy, fetching=SMALL, events=[events]) as reader:
        reading = names(reader.read("many", stop=None, partitions=[3]))
        assert [next(reading).offset for _ in range(500)] == list(range(500))
        recreate(kafka, "many", records=20)
        if policy == "error":
            error = raised_by(lambda: next(reading), OffsetsLost, within=10)
            assert (getattr(error, "partition", None), getattr(error, "resume", None)) == (3, 0)
            return
        eventually(lambda: events.of(RangeLost), "it is reported")
        with kafka._dispatcher.changed:
            kafka._dispatcher.state.add_partitions(kafka._dispatcher.state.topics["many"], 4)
        fill(kafka, 1, at=TopicPartition("many", 3))
        assert [next(reading).offset for _ in range(10)] == list(range(10))
        reading.close()
    assert [(event.partition, event.start, event.resume) for event in events.of(RangeLost)] == [(3, 500, 0)]


# Places that are not there


@pytest.mark.parametrize("call", ["read", "count", "fingerprint", "ranges", "profile"])
@pytest.mark.parametrize("start", [10**9, {0: 10**9}], ids=["an offset", "a mapping"])
def test_an_offset_behind_the_end_is_reported(reader: Reader, call: str, start: object) -> None:
    """A bug: no record came, and no error."""
    with pytest.raises(OffsetsLost, match=r"t-0: offsets \[100, 1000000000\).*the log ends at 100"):
        list(getattr(reader, call)("t", start, "latest"))


def test_an_offset_that_one_partition_has_is_a_place(kafka: FakeKafka, reader: Reader) -> None:
    _grow(kafka)
    assert list(names(reader.read("t", 90))) == [(0, offset) for offset in range(90, 100)]
    with pytest.raises(OffsetsLost, match="t-1"):
        list(reader.read("t", {0: 90, 1: 90}))
    assert list(reader.read("t", 100)) == [], "where the log ends there is nothing yet"


def test_a_partition_that_ends_before_one_offset_for_all_has_nothing_of_the_range(
    kafka: FakeKafka, reader: Reader
) -> None:
    _grow(kafka)  # partition 0 has 100 records, partition 1 has 50
    assert list(names(reader.read("t", 90, 92))) == [(0, 90), (0, 91)]
    assert reader.count("t", 90, 92) == 2
    assert reader.ranges("t", 90, 92) == [OffsetRange("t", 0, 90, 92), OffsetRange("t", 1, 90, 90)]
    with pytest.raises(OffsetsLost, match="t-1"):
        list(reader.read("t", 90, 92, partitions=[1]))
    with pytest.raises(OffsetsLost, match="the log ends at"):
        list(reader.read("t", 101, 103))
    with pytest.raises(OffsetsLost, match="t-1"):
        list(reader.read("t", {0: 90, 1: 90}, 92))
    with pytest.raises(OffsetsLost, match="t-1"):
        list(reader.read("t", {0: 10, 1: 90}, 80))


def test_an_offset_behind_the_end_of_every_partition_is_named_once(kafka: FakeKafka) -> None:
    _grow(kafka)
    events = EventLog()
    with new_reader(kafka.bootstrap, on_lost="earliest", events=[events]) as mild:
        assert list(mild.read("t", 101, 103)) == []
    assert sorted((event.partition, event.start, event.stop) for event in events.of(RangeLost)) == [
        (0, 101, 103),
        (1, 101, 103),
    ]


def test_following_needs_the_offset_in_every_partition(kafka: FakeKafka, reader: Reader) -> None:
    _grow(kafka)
    with closing(reader.read("t", 90, None)) as batches, pytest.raises(OffsetsLost, match="t-1"):
        list(batches)


def test_a_group_that_is_behind_the_end_is_an_error_or_an_event(kafka: FakeKafka) -> None:
    events = EventLog()
    with (
        new_reader(kafka.bootstrap) as strict,
        new_reader(kafka.bootstrap, on_lost="earliest", events=[events]) as mild,
    ):
        Admin(strict.cluster).groups.set_offsets("g", {TopicPartition("t", 0): Committed(5000)})
        with pytest.raises(OffsetsLost):
            list(strict.read("t", CommittedBy("g")))
        assert list(mild.read("t", CommittedBy("g"))) == []
    (event,) = events.of(RangeLost)
    assert (event.start, event.stop) == (100, 5000)
