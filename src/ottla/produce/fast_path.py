"""Lets a caller send a single record itself, without waiting for the sender's thread, if nothing is queued before it.

While the sender's loop sleeps, it leaves an `Offer`. A caller who finds one builds the batch and the request from the
state that the loop left behind, and then claims the offer. The first claim wins. The loop makes a claim of its own when
it wakes up. So either the loop has not woken since the caller looked, and the caller sends the record, or nothing has
changed and the record goes through the intake. No lock is held, and nothing is changed before the claim. The loop finds
the claim when it wakes up, at the latest for the answer, and does the bookkeeping.

An interrupt between the claim and the last byte leaves a request that may never go out. The loop then closes the
connection and sends the batch again under the same number.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from ottla.errors import OttlaError
from ottla.model import TopicPartition
from ottla.net.connection import Connection
from ottla.net.links import Link, Links
from ottla.net.loop import Loop
from ottla.produce.core import Core
from ottla.produce.delivery import Delivery, Placement, Shipment
from ottla.produce.effects import CallerToken, Carried, Send
from ottla.produce.intake import Intake
from ottla.produce.lane import Lane
from ottla.produce.outgoing import Outgoing, ShipmentShare
from ottla.produce.packing import Topic
from ottla.wire import produce as wire
from ottla.wire.single import one_record

MOST_BYTES = 1 << 14
"""Larger records take the usual path: a socket may not accept them at once."""


class FastRecord:
    """One record that its caller sends."""

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
    """Permission for one record. The first claim wins; None is the loop's own."""

    __slots__ = ("claims",)

    def __init__(self) -> None:
        self.claims: list[FastRecord | None] = []

    def claim(self, record: FastRecord | None) -> bool:
        """Claim the offer. Returns whether this claim is the first."""
        self.claims.append(record)
        return self.claims[0] is record


class _Route(NamedTuple):
    """Where a record can be sent at once."""

    topic: Topic
    lane: Lane
    link: Link
    connection: Connection


class FastPath:
    """The callers' side. The loop sets `offer`; it is None while the loop is awake."""

    def __init__(self, core: Core, loop: Loop[Send], intake: Intake, *, request_seconds: float) -> None:
        self.offer: Offer | None = None
        self._core = core
        self._loop = loop
        self._links: Links = loop.links
        self._intake = intake
        self._seconds = request_seconds

    def send(self, topic: str, value: bytes | None, key: bytes | None) -> Delivery | None:
        """Send one record at once. Returns None if something is queued before it: then it must take the usual path."""
        offer = self.offer
        if offer is None or offer.claims or not self._intake.idle():
            return None
        route = self._route(topic, key)
        if route is None:
            return None
        record = self._record_for(route, value, key)
        body = self._body(
            record.send
        )  # before the claim: after it, the loop may send the batch again and see it acknowledged
        if not offer.claim(record):
            return None
        try:
            version = record.connection.version(wire.API_KEY, highest=wire.HIGHEST_VERSION)
            self._loop.request_beside(
                record.send, record.link, record.connection, wire.API_KEY, version, body, seconds=self._seconds
            )
        except OttlaError as error:
            self._loop.failed_beside(record.send, record.link, record.connection, error)
        record.is_started = True
        if len(offer.claims) > 1:
            self._loop.wakeup.ring()  # the loop has woken up and waits for us before it uses the connection
        return Delivery(record.shipment, 0)

    def _route(self, name: str, key: bytes | None) -> _Route | None:
        """Where the record can be sent at once; None if anything is in its way. Changes nothing."""
        topic = self._core.topics.get(name)
        if topic is None or topic.partitions is None or not topic.allows_fast_path or topic.waiting or topic.late:
            return None
        partition = topic.router.next_partition(key, partitions=topic.partitions)
        lane = topic.lanes.get(partition)
        if lane is None or not lane.is_idle or lane.needs_identity or lane.resume_at > time.monotonic():
            return None
        link = self._links.find(topic.leaders.get(partition, -1))
        if link is None or not link.has_room or link.connection is None:
            return None
        # Not over TLS: other threads could wait for a lock of the OpenSSL socket that an interrupted caller holds.
        if link.connection.is_encrypted or link.connection.unsent_bytes:
            return None
        return _Route(topic, lane, link, link.connection)

    def _record_for(self, route: _Route, value: bytes | None, key: bytes | None) -> FastRecord:
        """Build the batch, shipment and request of a record. Nothing else knows them before the claim."""
        topic, lane, link, connection = route
        opened, created = time.monotonic(), time.time()
        batch = Outgoing(topic.name, lane.tp.partition, opened=opened, created=created)
        batch.deadline = opened + topic.settings.delivery_timeout
        batch.sent_at = opened  # the loop may learn of the record only with its answer
        now_ms = int(created * 1000)
        identity = lane.next_identity
        encoded = (
            one_record(value, key, now_ms=now_ms)
            if identity is None
            else one_record(value, key, now_ms=now_ms, producer=identity)
        )
        batch.raw_bytes = len(encoded.records)
        batch.identity = identity
        batch.seal(encoded.header, encoded.records)
        shipment = Shipment(topic.name)
        shipment.count = shipment.unsettled = 1
        shipment.now_ms = now_ms
        shipment.placements.append(Placement(batch, range(1), 0))
        batch.shipments.append(ShipmentShare(shipment, 1))
        carried = Carried(topic, lane, batch)
        send = Send(link.broker.id, topic.settings.acks_code, {lane.tp: carried}, CallerToken())
        return FastRecord(send, carried, link, connection, shipment, has_key=key is not None)

    def _body(self, send: Send) -> list[bytes | memoryview]:
        """The body of the request. Its timeout is 80 % of ours, as in `Sender._send`."""
        parts: dict[TopicPartition, list[bytes | memoryview]] = {
            tp: carried.batch.parts() for tp, carried in send.carried.items()
        }
        timeout_ms = int(self._seconds * 800)
        return list(wire.produce_request(parts, acks=send.acks, timeout_ms=timeout_ms, transactional_id=None))
