"""Rows into the open batches of the partitions they are routed to.

Comes in: what callers handed over, and the topic with its lanes. Goes out: batches in the lanes, filled and sealed as
they get full, and what is settled without being sent. Pure but for codecs and batch hooks: the time comes with the
rows, and nothing here knows of brokers.
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
from ottla.produce.delivery import Outcome, Placement, Shipment
from ottla.produce.hook import HookedDraft
from ottla.produce.intake import Handover
from ottla.produce.lane import MOST_IN_FLIGHT, Lane
from ottla.produce.options import Settings
from ottla.produce.outgoing import Account, Outgoing, ShipmentShare
from ottla.produce.route import Partitions, Router, Spread, invalid, runs, spread
from ottla.wire.batch import Codec
from ottla.wire.draft import Draft
from ottla.wire.encode import ALL_ROWS, BatchLimits, NewBatch
from ottla.wire.slots import ELSEWHERE, MOST_PARTITIONS, Slot, Slots


class Settle(NamedTuple):
    """The records of a batch have their outcome."""

    batch: Outgoing
    outcome: Outcome


class RefuseRows(NamedTuple):
    """Rows of a shipment get into no batch: the topic has no such partition."""

    shipment: Shipment
    partition: int
    rows: npt.NDArray[np.int64]
    error: OttlaError


class Sealing(NamedTuple):
    """A batch that has its place in the line and is still to be compressed: several at once, if there are more."""

    batch: Outgoing
    draft: Draft
    codec: Codec
    level: int | None

    def compressed(self) -> NewBatch:
        """As it will be sent. Any thread may do it."""
        return self.draft.seal(self.codec, self.level)


class Packing:
    """What packing has done: the lanes that got something, what is to be compressed, what has its outcome already."""

    __slots__ = ("account", "sealing", "settled", "touched")

    def __init__(self, account: Account) -> None:
        self.account = account
        self.touched: list[Lane] = []
        self.sealing: list[Sealing] = []
        self.settled: list[Settle | RefuseRows] = []


class Late(NamedTuple):
    """Rows for partitions that the topic did not have at `since` (by the monotonic clock), as far as was known."""

    handover: Handover
    rows: npt.NDArray[np.int64]
    since: float


class Topic:
    """One topic in use: its settings, its partitions as far as they are known, and their lanes."""

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
        """For partitions that may have been added since the last look."""
        self.used_at = 0.0
        """When something was last handed over, by the monotonic clock."""
        self.limits = settings.limits
        """Shrinks when a broker finds batches too large."""
        self.unknown_since: float | None = None
        self._slots: Slots | None = None
        self.is_express = (
            settings.batching.linger == 0
            and settings.codec is Codec.NONE
            and settings.acks != 0
            and settings.batch_hook is None
            and settings.partitioner is None
            and not callable(settings.strategy)
        )
        """Whether a single record need not wait for anything, nor ask anybody."""

    @property
    def numbered(self) -> bool:
        """Whether its batches carry a producer id and sequence."""
        return self.settings.idempotent and self.settings.acks != 0

    @property
    def unplaced(self) -> list[Handover]:
        """What waits for news of the partitions, all of it or some rows."""
        return [*self.waiting, *(late.handover for late in self.late)]

    @property
    def is_idle(self) -> bool:
        """Whether nothing of it is to be sent or waited for."""
        return not self.waiting and not self.late and all(lane.is_idle for lane in self.lanes.values())

    def slots(self) -> Slots:
        """Where batches of many partitions begin, made when it is first used."""
        if self._slots is None:
            assert self.partitions is not None
            self._slots = Slots(min(self.partitions.count, MOST_PARTITIONS))
        return self._slots

    def lane(self, partition: int) -> Lane:
        """The lane of a partition, made when it is first used."""
        lane = self.lanes.get(partition)
        if lane is None:
            # Without numbers only one batch at a time keeps the order when it has to be sent again.
            in_flight = MOST_IN_FLIGHT if self.numbered or self.settings.acks == 0 else 1
            lane = self.lanes[partition] = Lane(
                TopicPartition(self.name, partition), in_flight=in_flight, numbered=self.numbered
            )
        return lane


def pack(
    topic: Topic,
    handover: Handover,
    into: Packing,
    *,
    rows: npt.NDArray[np.int64] | None = None,
    refuse: bool = True,
) -> npt.NDArray[np.int64]:
    """Puts rows into the open batches of their partitions.

    Returns the rows whose partition the topic does not have. They are refused, unless `refuse` is false: then they are
    still to be packed, as `rows` of another call.
    """
    assert topic.partitions is not None
    partitions = _begin(topic, handover) if rows is None else _explicit(handover, rows)
    wrong = _NO_ROWS
    if handover.partitions is not None:
        wrong = invalid(partitions, topic.partitions.count)
        wrong = wrong if rows is None else np.intersect1d(wrong, rows)
        if len(wrong) and refuse:
            into.settled += _refusals(topic, handover.shipment, partitions, wrong)
        partitions[wrong] = _NOWHERE
    found = spread(partitions)
    if found is not None and len(found.partitions) >= _MANY and topic.settings.batch_hook is None:
        _fill_many(topic, handover, found, into)
        return wrong
    for partition, chosen in runs(partitions) if found is None else found.runs():
        if partition != _NOWHERE:
            lane = topic.lane(partition)
            _fill(topic, lane, handover, chosen, into)
            into.touched.append(lane)
    return wrong


def _begin(topic: Topic, handover: Handover) -> npt.NDArray[np.int32]:
    """Where the rows go, all of them and for the first time."""
    assert topic.partitions is not None
    columns = handover.columns
    shipment = handover.shipment
    shipment.now_ms = int(handover.created * 1000)
    shipment.times = columns.times if len(columns.times) else None
    shipment.unsettled = columns.count
    return topic.router.route(columns.key, columns.count, partitions=topic.partitions, explicit=handover.partitions)


def _explicit(handover: Handover, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Where these rows are to go; the others have gone already."""
    assert handover.partitions is not None
    partitions = np.full(handover.columns.count, _NOWHERE, np.int32)
    partitions[rows] = handover.partitions[rows]
    return partitions


_NO_ROWS = np.empty(0, np.int64)
_NOWHERE = -1
_MANY = 16
"""Partitions from which on their rows are encoded in one call."""


def _refusals(
    topic: Topic, shipment: Shipment, partitions: npt.NDArray[np.int32], wrong: npt.NDArray[np.int64]
) -> list[RefuseRows]:
    assert topic.partitions is not None
    last = topic.partitions.count - 1
    return [
        RefuseRows(
            shipment,
            partition,
            wrong[partitions[wrong] == partition],
            InputError(f"topic {topic.name} has no partition {partition}: it has partitions 0 to {last}"),
        )
        for partition in np.unique(partitions[wrong]).tolist()
    ]


def _fill(
    topic: Topic,
    lane: Lane,
    handover: Handover,
    rows: slice | npt.NDArray[np.int64],
    into: Packing,
) -> None:
    picked, at, stop = (ALL_ROWS, rows.start, rows.stop) if isinstance(rows, slice) else (_readonly(rows), 0, len(rows))
    while at < stop:
        batch = lane.open or _open(topic, lane, handover)
        draft = _own_draft(topic, batch)
        first = draft.count
        reached = draft.append(handover.columns, rows=picked, start=at, stop=stop, now_ms=handover.shipment.now_ms)
        if reached > at:
            _place(batch, handover.shipment, picked, range(at, reached), first)
            into.account.hold(batch, draft.size_bytes - batch.held_bytes)
        at = reached
        if at < stop or draft.count >= topic.limits.max_records:
            seal(topic, lane, into)


def _fill_many(topic: Topic, handover: Handover, found: Spread, into: Packing) -> None:
    """Rows for many partitions: one call puts into slots what fits there."""
    slots = topic.slots()
    lanes = [topic.lane(partition) if partition != _NOWHERE else None for partition in found.partitions.tolist()]
    targets = found.partitions.copy()
    for run, lane in enumerate(lanes):
        if lane is None or lane.at.partition >= len(slots):
            targets[run] = ELSEWHERE
        elif lane.open is None:
            _open(topic, lane, handover).draft = slots.begin(lane.at.partition)
        elif type(lane.open.draft) is not Slot:
            targets[run] = ELSEWHERE
    targets.flags.writeable = False
    shipment, rows = handover.shipment, found.rows
    appended = slots.append(
        handover.columns,
        limits=topic.limits,
        rows=rows,
        edges=found.edges,
        partitions=targets,
        now_ms=shipment.now_ms,
    )
    left: list[tuple[Lane, npt.NDArray[np.int64]]] = []
    for lane, (start, stop), reached, first, grown in zip(
        lanes, pairwise(found.edges.tolist()), *appended, strict=True
    ):
        if lane is None:
            continue
        if reached > start:
            batch = lane.open
            assert batch is not None
            shipment.placements.append(Placement(batch, rows[start:reached], first))
            batch.shipments.append(ShipmentShare(shipment, reached - start))
            into.account.hold(batch, grown)
        if reached < stop:
            left.append((lane, rows[reached:stop]))
        into.touched.append(lane)
    for lane, rest in left:  # once all that was encoded is noted
        _fill(topic, lane, handover, rest, into)


def _own_draft(topic: Topic, batch: Outgoing) -> Draft | HookedDraft:
    """The draft of an open batch, which leaves its slot if it has one."""
    draft = batch.draft
    if isinstance(draft, Slot):
        draft = batch.draft = draft.leave(topic.limits)
    assert isinstance(draft, Draft | HookedDraft)
    return draft


def _open(topic: Topic, lane: Lane, handover: Handover) -> Outgoing:
    settings = topic.settings
    batch = Outgoing(topic.name, lane.at.partition, opened=handover.opened, created=handover.created)
    batch.due = handover.opened + settings.batching.linger
    batch.deadline = handover.opened + settings.delivery_timeout
    batch.draft = Draft(topic.limits) if settings.batch_hook is None else HookedDraft(topic.limits)
    lane.open = batch
    return batch


def _place(batch: Outgoing, shipment: Shipment, picked: npt.NDArray[np.int64], rows: range, first: int) -> None:
    numbers = picked[rows.start : rows.stop] if len(picked) else rows
    shipment.placements.append(Placement(batch, numbers, first))
    batch.shipments.append(ShipmentShare(shipment, len(rows)))


def seal(topic: Topic, lane: Lane, into: Packing) -> None:
    """The open batch of a lane takes its place in the line; it may have to be compressed there."""
    batch = lane.open
    assert batch is not None
    draft = _own_draft(topic, batch)
    lane.open = None
    batch.raw_bytes = draft.size_bytes
    if isinstance(draft, HookedDraft):
        _seal_hooked(topic, lane, batch, draft, into)
        return
    settings = topic.settings
    sealing = Sealing(batch, draft, settings.codec, settings.level)
    lane.add(batch)
    if settings.codec is Codec.NONE:
        finish(sealing, sealing.compressed(), into.account)
    else:
        batch.count = draft.count
        into.sealing.append(sealing)


def finish(sealing: Sealing, compressed: NewBatch, account: Account) -> None:
    """The batch can be sent."""
    batch = sealing.batch
    batch.seal(compressed.header, compressed.records)
    account.hold(batch, batch.size_bytes - batch.held_bytes)


def _seal_hooked(topic: Topic, lane: Lane, whole: Outgoing, draft: HookedDraft, into: Packing) -> None:
    settings = topic.settings
    assert settings.batch_hook is not None
    try:
        parts = draft.parts(whole, settings.batch_hook, codec=settings.codec, level=settings.level)
    except OttlaError as error:
        into.settled.append(Settle(whole, Outcome(0, -1, -1, error)))
        return
    if not parts:  # everything was filtered out: that is what the program wanted
        into.settled.append(Settle(whole, Outcome(0, -1, -1, made=0)))
        return
    for part in parts:
        into.account.hold(part, part.size_bytes - part.held_bytes)
        lane.add(part)
    into.account.release(whole)


def shrink(topic: Topic, batch: Outgoing) -> None:
    """A broker found this batch too large: the next ones of the topic are smaller."""
    smaller = max(1024, batch.raw_bytes // 2)
    if smaller < topic.limits.max_bytes:
        topic.limits = BatchLimits(max_bytes=smaller, max_records=topic.limits.max_records)


def _readonly(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    view = rows.view()
    view.flags.writeable = False
    return view
