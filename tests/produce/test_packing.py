"""Rows get into batches of their partitions: each once, in order, within the limits, with their memory counted."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.errors import NotDelivered
from ottla.events import Events
from ottla.produce.delivery import BulkDelivery, Delivery, Outcome, Shipment
from ottla.produce.failures import Failures
from ottla.produce.hook import decoded
from ottla.produce.intake import Handover
from ottla.produce.options import Batching, Settings
from ottla.produce.outgoing import Account, Outgoing
from ottla.produce.packing import Packing, Settle, Topic, finish, pack, seal, shrink
from ottla.produce.route import Partitions, RoundRobin
from ottla.wire.columns import from_arrow, from_list


class Packed:
    """A topic that rows are packed into."""

    def __init__(self, partitions: int = 3, **options: Any) -> None:
        options.setdefault("strategy", RoundRobin())
        self.topic = Topic("t", Settings(**options))
        self.topic.partitions = Partitions(partitions, tuple(range(partitions)))
        self.account = Account()
        self.packing = Packing(self.account)
        self.settled: list[Settle] = []

    def pack(self, columns: Any, partitions: list[int] | None = None, *, opened: float = 100.0) -> Shipment:
        shipment = Shipment("t")
        shipment.count = columns.count
        chosen = None if partitions is None else np.array(partitions, np.int32)
        handover = Handover("t", shipment, columns, chosen, opened, 1.5)
        pack(self.topic, handover, self.packing)
        self._finish()
        return shipment

    def _settle(self) -> None:
        settled, self.packing.settled = self.packing.settled, []
        for effect in settled:
            if isinstance(effect, Settle):
                self.settled.append(effect)
                self.account.release(effect.batch)
                effect.batch.decide(effect.outcome)
            else:
                Failures(events=Events()).refuse_rows(effect)

    def seal_all(self) -> None:
        for lane in self.topic.lanes.values():
            if lane.open is not None:
                seal(self.topic, lane, self.packing)
        self._finish()

    def _finish(self) -> None:
        sealing, self.packing.sealing = self.packing.sealing, []
        for batch in sealing:
            finish(batch, batch.compressed(), self.account)
        self._settle()

    def values(self, partition: int) -> list[bytes | None]:
        return [value for batch in self.topic.lane(partition).queue for value in _values(batch)]


def _values(batch: Outgoing) -> list[bytes | None]:
    assert batch.header is not None
    assert batch.records is not None
    values: list[bytes | None] = (
        decoded(batch.header, batch.records, topic="t", partition=0).column("value").to_pylist()
    )
    return values


@settings(max_examples=60, deadline=None)
@given(
    calls=st.lists(
        st.lists(st.tuples(st.one_of(st.none(), st.binary(max_size=3)), st.integers(0, 300)), max_size=40), max_size=6
    ),
    most_records=st.sampled_from([1, 3, 1000]),
    most_bytes=st.sampled_from([100, 500, 100_000]),
    repeats=st.sampled_from([1, 10]),
    partitions=st.sampled_from([3, 40]),
    codec=st.sampled_from(["none", "zstd"]),
)
def test_every_row_is_in_one_batch_in_order_and_its_delivery_finds_it(
    calls: list[list[tuple[bytes | None, int]]],
    most_records: int,
    most_bytes: int,
    repeats: int,
    partitions: int,
    codec: str,
) -> None:
    packed = Packed(partitions, batching=Batching(records=most_records, bytes=most_bytes), compression=codec)
    shipments = []
    number = 0
    for call in calls:
        items = [(key, b"%d/" % (number + i) + bytes(size)) for i, (key, size) in enumerate(call * repeats)]
        number += len(items)
        shipments.append((packed.pack(from_list(items)), [value for _, value in items]))
    packed.seal_all()
    seen: list[int] = []
    content: dict[tuple[int, int], bytes | None] = {}
    for partition, lane in packed.topic.lanes.items():
        numbers = [int((value or b"").split(b"/")[0]) for value in packed.values(partition)]
        assert numbers == sorted(numbers)
        seen += numbers
        offset = 0
        for batch in list(lane.queue):
            assert batch.count <= most_records
            assert batch.count == 1 or batch.raw_bytes + 61 <= most_bytes
            assert batch.held_bytes == batch.size_bytes + batch.shipments_bytes
            content |= {(partition, offset + i): value for i, value in enumerate(_values(batch))}
            batch.decide(Outcome(0, offset, -1))
            offset += batch.count
    assert sorted(seen) == list(range(number))
    for shipment, values in shipments:
        sent = [Delivery(shipment, row).result(0) for row in range(len(values))]
        assert [content[record.partition, record.offset] for record in sent] == values
        assert BulkDelivery([shipment]).result(0).records == len(values)


def test_a_batch_is_due_and_given_up_counted_from_its_first_record() -> None:
    packed = Packed(1, batching=Batching(linger=0.25), delivery_timeout=7.0)
    packed.pack(from_list([b"1"]), opened=100.0)
    packed.pack(from_list([b"2"]), opened=100.2)
    batch = packed.topic.lane(0).open
    assert batch is not None
    assert (batch.due, batch.deadline, batch.opened, batch.created) == (100.25, 107.0, 100.0, 1.5)


def test_rows_without_a_time_have_that_of_the_call() -> None:
    packed = Packed(1)
    shipment = packed.pack(from_list([b"1"]))
    packed.seal_all()
    (batch,) = packed.topic.lane(0).queue
    assert batch.header is not None
    assert batch.header.base_timestamp == 1500
    assert shipment.time_of(0) == 1.5


def test_rows_of_partitions_that_do_not_exist_are_refused_alone() -> None:
    packed = Packed(2)
    shipment = packed.pack(from_list([b"0", b"9", b"1", b"7", b"9"]), [0, 9, 1, 7, 9])
    packed.seal_all()
    assert [packed.values(p) for p in range(2)] == [[b"0"], [b"1"]]
    assert [Delivery(shipment, row).done for row in range(5)] == [False, True, False, True, True]
    with pytest.raises(NotDelivered, match="topic t has no partition 9: it has partitions 0 to 1"):
        Delivery(shipment, 4).result(0)
    with pytest.raises(NotDelivered, match="topic t has no partition 7"):
        Delivery(shipment, 3).result(0)
    for partition in range(2):
        packed.topic.lane(partition).queue[0].decide(Outcome(0, 0, -1))
    assert shipment.unsettled == 0


def test_every_lane_that_got_rows_is_returned() -> None:
    packed = Packed(4)
    packed.pack(from_list([b"1", b"2"]), [3, 1])
    assert sorted(lane.tp.partition for lane in packed.packing.touched) == [1, 3]


def test_lanes_have_as_many_batches_in_flight_as_keep_their_order() -> None:
    def in_flight(**options: Any) -> int:
        lane = Packed(1, **options).topic.lane(0)
        return lane._max_in_flight

    assert in_flight() == 5
    assert in_flight(acks=0) == 5
    assert in_flight(acks=1, idempotent=False) == 1
    assert in_flight(acks="all", idempotent=False) == 1


def test_batches_get_smaller_when_a_broker_finds_one_too_large() -> None:
    packed = Packed(1)
    packed.pack(from_list([bytes(100)] * 100))
    packed.seal_all()
    (batch,) = packed.topic.lane(0).queue
    shrink(packed.topic, batch)
    assert packed.topic.limits.max_bytes == batch.raw_bytes // 2
    shrink(packed.topic, batch)
    assert packed.topic.limits.max_bytes == batch.raw_bytes // 2
    batch.raw_bytes = 10
    shrink(packed.topic, batch)
    assert packed.topic.limits.max_bytes == 1024


def test_a_large_record_has_a_batch_of_its_own() -> None:
    packed = Packed(1, batching=Batching(bytes=1000))
    packed.pack(from_list([b"a", bytes(5000), b"b"]))
    packed.seal_all()
    assert [batch.count for batch in packed.topic.lane(0).queue] == [1, 1, 1]


def test_many_rows_of_many_partitions_are_packed_quickly() -> None:
    packed = Packed(16)
    columns = from_arrow(pa.array([b"%d" % i for i in range(200_000)]))
    packed.pack(columns)
    started = time.process_time()
    packed.pack(columns)
    assert time.process_time() - started < 2.0
    packed.seal_all()
    assert sum(b.count for lane in packed.topic.lanes.values() for b in lane.queue) == 400_000
