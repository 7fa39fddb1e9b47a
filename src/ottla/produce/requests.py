"""The produce requests of one producer on its loop: encodes and starts them, and feeds their answers to the core.

`Send` effects and answers of the loop come in; requests on connections and calls of the core go out. A caller may send
a record itself (`fast_path.py`): until it has, no other request goes to its connection, because the two must not mix.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakSet

from ottla.errors import ConnectionLost, OttlaError, WireError
from ottla.model import TopicPartition
from ottla.net import Cluster
from ottla.net.connection import Buffer
from ottla.net.loop import Answer, Loop
from ottla.net.pending import Reply
from ottla.produce.core import Core
from ottla.produce.effects import CallerToken, Send
from ottla.produce.fast_path import FastRecord
from ottla.wire import produce as wire

if TYPE_CHECKING:
    from ottla.produce.counting import Counting

UNSTARTED_SECONDS = 0.1
"""How long a caller may take to send a record itself: some microseconds, unless it was interrupted."""


class Requests:
    """Sends for the core. Used by the sender's thread."""

    def __init__(
        self,
        core: Core,
        loop: Loop[Send],
        cluster: Cluster,
        *,
        transactional_id: str | None,
        counting: Counting | None = None,
    ) -> None:
        self._core = core
        self._counting = counting
        self._loop = loop
        self._cluster = cluster
        self._transactional_id = transactional_id
        self.unstarted: list[tuple[FastRecord, float]] = []
        """Records whose callers had not finished sending when last checked."""
        self._held: list[tuple[Send, Sequence[Buffer]]] = []
        """Requests held back because such a caller is about to write to the same connection, or because no tally
        announces their records yet."""
        self.given_up: WeakSet[CallerToken] = WeakSet()
        """Callers who did not finish in time. A late one must not be counted twice; most never come."""

    def send(self, send: Send) -> None:
        """Encode a request, and send it unless a caller is about to write to the same connection."""
        body = wire.produce_request(
            {tp: carried.batch.parts() for tp, carried in send.carried.items()},
            acks=send.acks,
            # Milliseconds, 80 % of ours: a broker that waits for replicas answers before we give up.
            timeout_ms=int(self._cluster.timeouts.request * 800),
            transactional_id=self._transactional_id,
        )
        if self._counting is not None:
            self._counting.sending(send)
        self._held.append((send, body))
        self.send_held()

    def send_held(self) -> None:
        """Send the requests whose connection no caller is about to use, and whose records may go."""
        busy_brokers = {record.link.broker.id for record, _ in self.unstarted if not record.is_started}
        held, self._held = self._held, []
        for send, body in held:
            if send.broker in busy_brokers or not self._may_go(send):
                busy_brokers.add(send.broker)  # requests to a broker keep their order
                self._held.append((send, body))
            else:
                self._start(send, body)

    @property
    def has_held(self) -> bool:
        """Whether requests are held back."""
        return bool(self._held)

    def _may_go(self, send: Send) -> bool:
        """Whether tallies announce the records of a request, if they are counted."""
        return self._counting is None or self._counting.may_go(send)

    def sent_by_caller(self, record: FastRecord, now: float) -> None:
        """Track a request that a caller made itself like any other."""
        record.link.requests += 1
        self._core.sent_by_caller(record.send, now)
        if not record.is_started:
            self.unstarted.append((record, now))

    def give_up_unstarted(self, now: float) -> None:
        """Give up callers that were interrupted while sending: close the connection and send the batch again."""
        waiting = [(record, since) for record, since in self.unstarted if not record.is_started]
        self.unstarted = [entry for entry in waiting if now < entry[1] + UNSTARTED_SECONDS]
        for record, since in waiting:
            if now >= since + UNSTARTED_SECONDS:
                send, link = record.send, record.link
                error = ConnectionLost(link.broker.address, "interrupted while sending")
                assert send.caller is not None
                self.given_up.add(send.caller)
                link.requests -= 1
                self._loop.distrust(link, error)
                self._core.lost(send, error, now)

    def handle_answer(self, answer: Answer[Send], now: float) -> None:
        """Feed an answer, or the loss of a request, to the core."""
        send = answer.request
        if self.given_up and send.caller in self.given_up:
            answer.link.requests += 1  # undo the loop's count: the request was counted off when it was given up
        elif answer.error is not None:
            self._core.lost(send, answer.error, now)
        elif send.acks == 0:
            self._core.posted(send)
        else:
            try:
                answers = {TopicPartition(a.topic, a.partition): a for a in wire.produce_response(answer.body)}
            except WireError as error:
                self._loop.distrust(answer.link, error)
                self._core.lost(send, error, now)
            else:
                self._core.answered(send, answers, now, moved=self._moved(answers.values(), send.broker))

    def _start(self, send: Send, body: Sequence[Buffer]) -> None:
        """Start a request on the broker's connection. `handle_answer` gets its answer, or its loss."""
        link = self._loop.links.get(send.broker)
        assert link is not None
        connection = link.connection
        try:
            version = 0 if connection is None else connection.version(wire.API_KEY, highest=wire.HIGHEST_VERSION)
        except OttlaError as error:
            self._core.lost(send, error, time.monotonic())
            return
        reply = Reply.NONE if send.acks == 0 else Reply.DUE
        seconds = self._cluster.timeouts.request
        self._loop.request(send, link, wire.API_KEY, version, body, seconds=seconds, reply=reply)

    def _moved(self, answers: Iterable[wire.Produced], asked: int) -> set[TopicPartition]:
        """The partitions that have a newer leader than `asked`, according to the answers (KIP-951)."""
        return {
            TopicPartition(answer.topic, answer.partition)
            for answer in answers
            if (leader := answer.leader) is not None
            and leader.id not in (-1, asked)  # the same broker would be asked again at once, forever
            and self._cluster.leader_moved(answer.topic, answer.partition, leader=leader.id, epoch=leader.epoch)
        }
