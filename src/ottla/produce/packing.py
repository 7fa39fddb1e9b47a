"""Packs rows into the open batches of the partitions they are routed to.

What callers handed over and the topic with its lanes come in. Batches in the lanes, filled and sealed as they get full,
go out, and what is settled without being sent. Pure except for codecs and batch hooks: the time comes with the rows,
and this module knows no brokers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ottla.errors import InputError, OttlaError
from ottla.model import TopicPartition
from ottla.produce.delivery import Outcome, Shipment
from ottla.produce.hook import HookedDraft
from ottla.produce.intake import Handover
from ottla.produce.lane import MOST_IN_FLIGHT, Lane
from ottla.produce.options import Settings
from ottla.produce.outgoing import Account, Outgoing
from ottla.produce.route import Partitions, Router, Spread, invalid, runs, spread
from ottla.wire.batch import Codec
from ottla.wire.draft import Draft
from ottla.wire.encode import ALL_ROWS, BatchLimits, NewBatch
from ottla.wire.slots import ELSEWHERE, MOST_PARTITIONS, Slot, Slots

_NO_ROWS = np.empty(0, np.int64)
_NOWHERE = -1
"""The partition of rows that are not packed now."""
_MANY = 16
"""From this many partitions on, their rows are encoded in one call."""


class Settle(NamedTuple):
    """The outcome of all records of a batch."""

    batch: Outgoing
    outcome: Outcome


class RefuseRows(NamedTuple):
    """Fail rows of a shipment: the topic has no such partition."""

    shipment: Shipment
    partition: int
    rows: npt.NDArray[np.int64]
    error: OttlaError


class Sealing(NamedTuple):
    """A batch that has its place in the queue and is still to be compressed, together with others if there are any."""

    batch: Outgoing
    draft: Draft
    codec: Codec
    level: int | None
    bucket_ms: int = 0
    """The length of the time buckets in which records are counted; 0 if they are not."""

    def compressed(self) -> NewBatch:
        """The batch as it will be sent. Any thread may call it."""
        if self.bucket_ms:
            from ottla.tally.slices import slices_of  # few producers count

            self.batch.slices = slices_of(self.draft.measured(self.bucket_ms), partition=self.batch.partition)
        return self.draft.seal(self.codec, self.level)


class Packing:
    """The results of packing: lanes that got rows, batches to compress, and outcomes that are known already."""

    __slots__ = ("account", "sealing", "settled", "touched")

    def __init__(self, account: Account) -> None:
        self.account = account
        self.touched: list[Lane] = []
        self.sealing: list[Sealing] = []
        self.settled: list[Settle | RefuseRows] = []


class Late(NamedTuple):
    """Rows for partitions that the topic was not known to have at `since` (monotonic clock)."""

    handover: Handover
    rows: npt.NDArray[np.int64]
    since: float


class Topic:
    """A topic in use: its settings, its partitions as far as known, and their lanes."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        *,
        router: Router | None = None,
    ) -> None:
        self.name = name
        self.settings = settings
        self.router = router or Router(name, partitioner=settings.partitioner, strategy=settings.strategy)
        self.partitions: Partitions | None = None
        self.leaders: Mapping[int, int] = {}
        self.lanes: dict[int, Lane] = {}
        self.waiting: deque[Handover] = deque()
        """Handed over before the partitions were known."""
        self.late: deque[Late] = deque()
        """Rows for partitions that may have been added since the last lookup."""
        self.used_at = 0.0
        """When something was last handed over, by the monotonic clock."""
        self.limits = settings.limits
        """Shrinks when a broker rejects batches as too large."""
        self.unknown_since: float | None = None
        self.bucket_ms = 0
        """The length of the time buckets in which its records are counted; 0 if they are not."""
        self._slots: Slots | None = None
        self.allows_fast_path = (
            settings.batching.linger == 0
            and settings.codec is Codec.NONE
            and settings.acks != 0
            and settings.batch_hook is None
            and settings.partitioner is None
            and not callable(settings.strategy)
        )
        """Whether a caller may send a single record itself: no lingering, no compression, no user code to call."""

    @property
    def numbered(self) -> bool:
        """Whether its batches carry a producer id and sequence."""
        return self.settings.idempotent and self.settings.acks != 0

    @property
    def unplaced(self) -> list[Handover]:
        """Handovers with rows that wait for news of the partitions."""
        return [*self.waiting, *(late.handover for late in self.late)]

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to send and nothing to wait for."""
        return not self.waiting and not self.late and all(lane.is_idle for lane in self.lanes.values())

    def slots(self) -> Slots:
        """Where batches of many partitions begin, created on first use."""
        if self._slots is None:
            assert self.partitions is not None
            self._slots = Slots(min(self.partitions.count, MOST_PARTITIONS))
        return self._slots

    def lane(self, partition: int) -> Lane:
        """The lane of a partition, created on first use."""
        lane = self.lanes.get(partition)
        if lane is None:
            # Without sequence numbers, retries keep the order only with one batch in flight.
            max_in_flight = MOST_IN_FLIGHT if self.numbered or self.settings.acks == 0 else 1
            lane = self.lanes[partition] = Lane(
                TopicPartition(self.name, partition), max_in_flight=max_in_flight, numbered=self.numbered
            )
        return lane


def pack(
    topic: Topic,
    handover: Handover,
    packing: Packing,
    *,
    rows: npt.NDArray[np.int64] | None = None,
    refuse: bool = True,
) -> npt.NDArray[np.int64]:
    """Put rows into the open batches of their partitions.

    Returns the rows whose partition the topic does not have. They are refused unless `refuse` is false; then the caller
    packs them later, as `rows` of another call.
    """
    assert topic.partitions is not None
    partitions = _route(topic, handover) if rows is None else _explicit(handover, rows)
    missing = _NO_ROWS
    if handover.partitions is not None:
        missing = invalid(partitions, topic.partitions.count)
        missing = missing if rows is None else np.intersect1d(missing, rows)
        if len(missing) and refuse:
            packing.settled += _refusals(topic, handover.shipment, partitions, missing)
        partitions[missing] = _NOWHERE
    by_partition = spread(partitions)
    if by_partition is not None and len(by_partition.partitions) >= _MANY and topic.settings.batch_hook is None:
        _fill_many(topic, handover, by_partition, packing)
        return missing
    for partition, chosen in runs(partitions) if by_partition is None else by_partition.runs():
        if partition != _NOWHERE:
            lane = topic.lane(partition)
            _fill(topic, lane, handover, chosen, packing)
            packing.touched.append(lane)
    return missing


def _route(topic: Topic, handover: Handover) -> npt.NDArray[np.int32]:
    """Route all rows of a new handover."""
    assert topic.partitions is not None
    columns = handover.columns
    shipment = handover.shipment
    shipment.now_ms = int(handover.created * 1000)
    shipment.times = columns.times if len(columns.times) else None
    shipment.unsettled = columns.count
    return topic.router.route(columns.key, columns.count, partitions=topic.partitions, explicit=handover.partitions)


def _explicit(handover: Handover, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """The explicit partitions of these rows; all others have been packed already."""
    assert handover.partitions is not None
    partitions = np.full(handover.columns.count, _NOWHERE, np.int32)
    partitions[rows] = handover.partitions[rows]
    return partitions


def _refusals(
    topic: Topic, shipment: Shipment, partitions: npt.NDArray[np.int32], missing: npt.NDArray[np.int64]
) -> list[RefuseRows]:
    """The refusals of rows with a missing partition, one for each partition."""
    assert topic.partitions is not None
    last = topic.partitions.count - 1
    return [
        RefuseRows(
            shipment,
            partition,
            missing[partitions[missing] == partition],
            InputError(f"topic {topic.name} has no partition {partition}: it has partitions 0 to {last}"),
        )
        for partition in np.unique(partitions[missing]).tolist()
    ]


def _fill(
    topic: Topic,
    lane: Lane,
    handover: Handover,
    rows: slice | npt.NDArray[np.int64],
    packing: Packing,
) -> None:
    """Append rows to the open batch of one lane. Full batches are sealed and new ones opened."""
    row_numbers, start, stop = (
        (ALL_ROWS, rows.start, rows.stop) if isinstance(rows, slice) else (_readonly(rows), 0, len(rows))
    )
    while start < stop:
        batch = lane.open or _open(topic, lane, handover)
        draft = _own_draft(topic, batch)
        first = draft.count
        reached = draft.append(
            handover.columns, rows=row_numbers, start=start, stop=stop, now_ms=handover.shipment.now_ms
        )
        if reached > start:
            placed = row_numbers[start:reached] if len(row_numbers) else range(start, reached)
            batch.place(handover.shipment, placed, first)
            packing.account.resize(batch, draft.size_bytes)
        start = reached
        if start < stop or draft.count >= topic.limits.max_records:
            seal(topic, lane, packing)


def _fill_many(topic: Topic, handover: Handover, by_partition: Spread, packing: Packing) -> None:
    """Pack rows for many partitions: one kernel call puts into slots what fits there."""
    slots = topic.slots()
    lanes = [topic.lane(partition) if partition != _NOWHERE else None for partition in by_partition.partitions.tolist()]
    targets = by_partition.partitions.copy()
    for run, lane in enumerate(lanes):
        if lane is None or lane.tp.partition >= len(slots):
            targets[run] = ELSEWHERE
        elif lane.open is None:
            _open(topic, lane, handover).draft = slots.begin(lane.tp.partition)
        elif type(lane.open.draft) is not Slot:
            targets[run] = ELSEWHERE
    targets.flags.writeable = False
    shipment, rows = handover.shipment, by_partition.rows
    appended = slots.append(
        handover.columns,
        limits=topic.limits,
        rows=rows,
        edges=by_partition.edges,
        partitions=targets,
        now_ms=shipment.now_ms,
    )
    unfinished: list[tuple[Lane, npt.NDArray[np.int64]]] = []
    for lane, (start, stop), reached, first, grown in zip(
        lanes, pairwise(by_partition.edges.tolist()), *appended, strict=True
    ):
        if lane is None:
            continue
        if reached > start:
            batch = lane.open
            assert batch is not None
            before_bytes = batch.shipments_bytes
            batch.place(shipment, rows[start:reached], first)
            packing.account.hold(batch, grown + batch.shipments_bytes - before_bytes)
        if reached < stop:
            unfinished.append((lane, rows[reached:stop]))
        packing.touched.append(lane)
    for lane, remaining in unfinished:  # only after everything that was encoded has its placement
        _fill(topic, lane, handover, remaining, packing)


def _own_draft(topic: Topic, batch: Outgoing) -> Draft | HookedDraft:
    """The draft of an open batch. A batch in a slot leaves it."""
    draft = batch.draft
    if isinstance(draft, Slot):
        draft = batch.draft = draft.leave(topic.limits)
    assert isinstance(draft, Draft | HookedDraft)
    return draft


def _open(topic: Topic, lane: Lane, handover: Handover) -> Outgoing:
    """Open a batch for the lane. Its deadline and due time count from its first record."""
    settings = topic.settings
    batch = Outgoing(topic.name, lane.tp.partition, opened=handover.opened, created=handover.created)
    batch.due = handover.opened + settings.batching.linger
    batch.deadline = handover.opened + settings.delivery_timeout
    is_hooked = settings.batch_hook is not None
    batch.draft = HookedDraft(topic.limits) if is_hooked else Draft(topic.limits, bucket_ms=topic.bucket_ms)
    lane.open = batch
    return batch


def seal(topic: Topic, lane: Lane, packing: Packing) -> None:
    """Move a lane's open batch to its queue. It may still have to be compressed."""
    batch = lane.open
    assert batch is not None
    draft = _own_draft(topic, batch)
    lane.open = None
    batch.raw_bytes = draft.size_bytes
    if isinstance(draft, HookedDraft):
        _seal_hooked(topic, lane, batch, draft, packing)
        return
    settings = topic.settings
    sealing = Sealing(batch, draft, settings.codec, settings.level, topic.bucket_ms)
    lane.add(batch)
    if settings.codec is Codec.NONE:
        finish(sealing, sealing.compressed(), packing.account)
    else:
        batch.count = draft.count
        packing.sealing.append(sealing)


def finish(sealing: Sealing, compressed: NewBatch, account: Account) -> None:
    """Complete a batch with its compressed records, so that it can be sent."""
    batch = sealing.batch
    batch.seal(compressed.header, compressed.records)
    account.resize(batch, batch.size_bytes)


def _seal_hooked(topic: Topic, lane: Lane, whole: Outgoing, draft: HookedDraft, packing: Packing) -> None:
    """Let the batch hook change the rows, and add the resulting batches to the queue."""
    settings = topic.settings
    assert settings.batch_hook is not None
    try:
        parts = draft.parts(whole, settings.batch_hook, codec=settings.codec, level=settings.level)
    except OttlaError as error:
        packing.settled.append(Settle(whole, Outcome(0, -1, -1, error)))
        return
    if not parts:  # the hook filtered everything out, which is a success
        packing.settled.append(Settle(whole, Outcome(0, -1, -1, made=0)))
        return
    for part in parts:
        packing.account.resize(part, part.size_bytes)
        lane.add(part)
    packing.account.release(whole)


def shrink(topic: Topic, batch: Outgoing) -> None:
    """Make the next batches of the topic smaller: a broker rejected this one as too large."""
    smaller = max(1024, batch.raw_bytes // 2)
    if smaller < topic.limits.max_bytes:
        topic.limits = BatchLimits(max_bytes=smaller, max_records=topic.limits.max_records)


def _readonly(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """A read-only view: numba would compile another version of a kernel for writable arrays."""
    view = rows.view()
    view.flags.writeable = False
    return view
