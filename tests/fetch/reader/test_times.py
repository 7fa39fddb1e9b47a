"""Timestamps that do not fit into microseconds: every record is read, and an event reports the change."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from tests.consume.consuming import new_consumer
from tests.fetch.logs import fill, plant
from tests.fetch.watching import EventLog, new_reader
from tests.wire.rows import LATEST, Row, raw_batch, records_bytes

from ottla.events import TimesClamped
from ottla.model import TopicPartition
from ottla.testing import FakeKafka

AT = TopicPartition("none", 0)


@pytest.fixture
def odd(kafka: FakeKafka) -> FakeKafka:
    """Ten plain records, five from the end of time, ten plain ones, five from before it."""
    for time, base in ((2**63 - 1, 10), (-(2**63), 25)):
        fill(kafka, 1, at=AT)
        rows = [Row(b"k", b"odd", (), time)] * 5
        batch = raw_batch(records_bytes(rows), count=5, base_offset=base, base_time=time, max_time=time)
        plant(kafka, batch, base=base, stop=base + 5, at=AT)
    return kafka


def test_a_reader_reads_on_and_says_so(odd: FakeKafka) -> None:
    events = EventLog()
    with new_reader(odd.bootstrap, events=[events]) as reader:
        table = pa.Table.from_batches(reader.read(AT.topic))
        assert table["offset"].to_pylist() == list(range(30))
        odd_times = table["timestamp"].cast(pa.int64()).to_pylist()[10:15]
        assert odd_times == [LATEST * 1000] * 5
        first = events.of(TimesClamped)
        assert [(event.topic, event.partition) for event in first] == [AT] * len(first)
        assert 5 <= first[-1].count <= 10
        assert reader.count(AT.topic) == reader.fingerprint(AT.topic).count == 30
        assert events.of(TimesClamped) == first, "times were not requested"
        (profile,) = reader.profile(AT.topic)
        assert (profile.first_timestamp, profile.last_timestamp) == (-(2**63), 2**63 - 1)


def test_a_consumer_hands_them_out_one_by_one(odd: FakeKafka) -> None:
    events = EventLog()
    with new_consumer(odd.bootstrap, None, events=[events]) as consumer:
        consumer.assign([AT])
        got = list(itertools.islice(consumer.records(), 30))
    assert [record.offset for record in got] == list(range(30))
    assert {record.timestamp for record in got[10:15]} == {LATEST / 1000}
    assert events.of(TimesClamped)


def test_a_log_full_of_them_is_not_a_log_full_of_events(kafka: FakeKafka) -> None:
    time, events = 2**62, EventLog()
    for number in range(200):
        batch = raw_batch(records_bytes([Row(b"k", b"v", (), time)]), count=1, base_offset=number, base_time=time)
        plant(kafka, batch, base=number, stop=number + 1, at=AT)
    with new_reader(kafka.bootstrap, events=[events]) as reader:
        reader._fetching = type(reader._fetching)(memory_bytes=1 << 16, request_bytes=1 << 10)
        assert sum(map(len, reader.read(AT.topic))) == 200
    assert events.of(TimesClamped)[0].count < 20
    assert 1 <= len(events.of(TimesClamped)) <= 8
