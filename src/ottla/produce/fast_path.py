"""A record that does not wait for a thread: with nothing in front of it, its caller packs it and sends it himself.

While the sender's loop sleeps, it leaves an `Offer`. A caller who finds one makes the batch and the request by himself,
from what the loop left behind, and then claims the offer; the first claim counts, and the loop's own, which it makes
when it wakes up, is one of them. So either the loop has not woken since the caller looked, and the record is his, or
nothing has happened and the record goes the usual way. No lock is held, and nothing is changed before the claim; the
loop finds the claim and does the bookkeeping when it wakes up, at the latest for the answer.

An interrupt between the claim and the last byte leaves a request that may never go out: the loop gives the connection
up then, and sends the batch again under the same number.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from ottla.errors import OttlaError
from ottla.model import TopicPartition
from ottla.net.connection import Connection
from ottla.net.links import Link, Links
from ottla.net.loop import Loop
from ottla.produce.core import Caller, Carried, Core, Send
from ottla.produce.delivery import Delivery, Placement, Shipment
from ottla.produce.intake import Intake
from ottla.produce.lane import Lane
from ottla.produce.outgoing import Outgoing, ShipmentShare
from ottla.produce.packing import Topic
from ottla.wire import produce as wire
from ottla.wire.single import one_record

MOST_BYTES = 1 << 14
"""Larger records are not worth it: a socket may not take them at once."""


class FastRecord:
    """One record on its way, as its caller has made it."""

    __slots__ = ("connection", "has_key", "is_started", "lane", "link", "send", "shipment", "topic")

    def __init__(
        self, send: Send, carried: Carried, link: Link, connection: Connection, shipment: Shipment, *, has_key: bool
    ) -> None:
        self.send = send
        self.topic: Topic = carried.topic
        self.lane: Lane = carried.lane
        self.link = link
        self.connection = connection
        self.shipment = shipment
        self.has_key = has_key
        self.is_started = False
        """Whether the request is on the connection, or has failed there."""


class Offer:
    """One record may go now. The first claim counts; None is the loop's."""

    __slots__ = ("claims",)

    def __init__(self) -> None:
        self.claims: list[FastRecord | None] = []

    def claim(self, express: FastRecord | None) -> bool:
        """Whether this claim is the first."""
        self.claims.append(express)
        return self.claims[0] is express


class _Way(NamedTuple):
    """Where a record can go at once."""

    topic: Topic
    lane: Lane
    link: Link
    connection: Connection


class FastPath:
    """The callers' side. `offer` is the loop's: None while it is awake."""

    def __init__(self, core: Core, loop: Loop[Send], intake: Intake, *, request_seconds: float) -> None:
        self.offer: Offer | None = None
        self._core = core
        self._loop = loop
        self._links: Links = loop.links
        self._intake = intake
        self._seconds = request_seconds

    def send(self, topic: str, value: bytes | None, key: bytes | None) -> Delivery | None:
        """Sends one record at once; None when something is in front of it, and it must go the usual way."""
        offer = self.offer
        if offer is None or offer.claims or not self._intake.idle():
            return None
        way = self._way(topic, key)
        if way is None:
            return None
        express = self._made(way, value, key)
        body = self._body(express.send)  # before the claim: the loop may send the batch again, and have it acknowledged
        if not offer.claim(express):
            return None
        try:
            version = express.connection.version(wire.API_KEY, highest=wire.HIGHEST_VERSION)
            self._loop.request_beside(
                express.send, express.link, express.connection, wire.API_KEY, version, body, seconds=self._seconds
            )
        except OttlaError as error:
            self._loop.failed_beside(express.send, express.link, express.connection, error)
        express.is_started = True
        if len(offer.claims) > 1:
            self._loop.wakeup.ring()  # it has woken up meanwhile, and waits for us before it uses the connection
        return Delivery(express.shipment, 0)

    def _way(self, name: str, key: bytes | None) -> _Way | None:
        topic = self._core.topics.get(name)
        if topic is None or topic.partitions is None or not topic.is_express or topic.waiting or topic.late:
            return None
        partition = topic.router.one(key, partitions=topic.partitions)
        lane = topic.lanes.get(partition)
        if lane is None or not lane.is_idle or lane.needs_identity or lane.resume_at > time.monotonic():
            return None
        link = self._links.find(topic.leaders.get(partition, -1))
        if link is None or not link.has_room or link.connection is None:
            return None
        # Others could wait for a lock of OpenSSL's socket that an interrupted caller holds.
        if link.connection.is_encrypted or link.connection.unsent_bytes:
            return None
        return _Way(topic, lane, link, link.connection)

    def _made(self, way: _Way, value: bytes | None, key: bytes | None) -> FastRecord:
        topic, lane, link, connection = way
        opened, created = time.monotonic(), time.time()
        batch = Outgoing(topic.name, lane.at.partition, opened=opened, created=created)
        batch.deadline = opened + topic.settings.delivery_timeout
        batch.sent_at = opened  # the loop may hear of it as late as of its answer
        now_ms = int(created * 1000)
        identity = lane.next_identity
        made = (
            one_record(value, key, now_ms=now_ms)
            if identity is None
            else one_record(value, key, now_ms=now_ms, producer=identity)
        )
        batch.raw_bytes = len(made.records)
        batch.identity = identity
        batch.seal(made.header, made.records)
        shipment = Shipment(topic.name)
        shipment.count = shipment.unsettled = 1
        shipment.now_ms = now_ms
        shipment.placements.append(Placement(batch, range(1), 0))
        batch.shipments.append(ShipmentShare(shipment, 1))
        carried = Carried(topic, lane, batch)
        send = Send(link.broker.id, topic.settings.acks_code, {lane.at: carried}, Caller())
        return FastRecord(send, carried, link, connection, shipment, has_key=key is not None)

    def _body(self, send: Send) -> list[bytes | memoryview]:
        parts: dict[TopicPartition, list[bytes | memoryview]] = {
            at: carried.batch.parts() for at, carried in send.carried.items()
        }
        timeout_ms = int(self._seconds * 800)
        return list(wire.produce_request(parts, acks=send.acks, timeout_ms=timeout_ms, transactional_id=None))
