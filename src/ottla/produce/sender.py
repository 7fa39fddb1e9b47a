"""The one thread of a producer: takes what callers handed in, packs it, sends it, and hears what became of it.

A loop around the pure parts. It waits for sockets, timers and callers at once and blocks on nothing else: whatever
takes long (connecting, metadata, producer ids, reading logs) is an errand beside it.
"""

from __future__ import annotations

import logging
import math
import random
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from ottla.config import LONGEST
from ottla.errors import NotDelivered, OttlaError
from ottla.net.deadline import Deadline
from ottla.net.errands import Errands
from ottla.net.links import Link, Links
from ottla.net.waiting import Flag
from ottla.produce.courier import Courier, Tools
from ottla.produce.delivery import SENDER_THREAD, Shipment
from ottla.produce.ends import Ends
from ottla.produce.lane import Lane
from ottla.produce.lanes import Lanes
from ottla.produce.options import WhenFull
from ottla.produce.packing import Topic
from ottla.produce.parts import Parts
from ottla.produce.reception import Reception
from ottla.produce.scout import Scout

_log = logging.getLogger(__name__)
T = TypeVar("T")
_LANE = "produce"
_MOST_REQUESTS = 5
"""In flight to one broker."""
_SWEEP_SECONDS = 0.1
"""How often deadlines are looked at."""
_LONGEST_NAP = 1.0
_SHORT_NAP = 0.005


class Sender:
    """The loop. `start` begins it, `stop` ends it."""

    def __init__(self, parts: Parts, *, name: str) -> None:
        self._parts = parts
        self._cluster = parts.cluster
        self._chance = random.Random()
        self._lanes = Lanes(transactional=parts.transactional_id is not None)
        self.reception = Reception(parts, self._lanes)
        self.errands = Errands(wake=parts.bell.ring, name=name)
        self._scout = self.reception.scout = Scout(
            parts.cluster,
            self.reception.topics,
            errands=self.errands,
            events=parts.events,
            retry=parts.retry,
            chance=self._chance,
            known=self.reception.known,
            unavailable=self.reception.without_metadata,
            refused=self.reception.no_such_topic,
        )
        self._links = self._scout.links = Links(
            parts.cluster,
            lane=_LANE,
            most_requests=_MOST_REQUESTS,
            errands=self.errands,
            events=parts.events,
            retry=parts.retry,
            chance=self._chance,
            changed=self._scout.link_changed,
        )
        self._ends = Ends(
            self._lanes, links=self._links, keeper=parts.keeper, outcomes=parts.outcomes, events=parts.events
        )
        self._courier = Courier(
            Tools(parts.cluster, self.errands, parts.outcomes, parts.events, parts.retry, self._chance),
            self._lanes,
            links=self._links,
            ends=self._ends,
            keeper=parts.keeper,
            may_carry=lambda lane: self.gate is None or self.gate(lane),
            doubt=self._scout.doubt,
            transactional_id=parts.transactional_id,
        )
        self.gate: Callable[[Lane], bool] | None = None
        """Asked whether a lane may send now; None when all may."""
        self.over: OttlaError | None = None
        """Why nothing will ever be sent again: also what callers hand in who have not heard of it yet is given up."""
        self._commands: deque[Callable[[], None]] = deque()
        self._swept_at = 0.0
        self._stray_bytes = 0
        self._stopping = False
        self._name = name
        self._entry = [True]
        """Whoever takes it out runs the loop."""
        self._thread: threading.Thread | None = None
        """The one that runs it."""
        self._over = Flag()
        """The loop has ended, and nothing is left without an outcome."""

    # Any thread

    def start(self) -> None:
        """Begins to send. To start it again does no harm, so that it may be interrupted anywhere."""
        if self._entry:
            threading.Thread(target=self._run, name=f"{SENDER_THREAD}-{self._name}", daemon=True).start()

    @property
    def has_stopped(self) -> bool:
        """Whether the loop was there and is not any more."""
        return self._over.is_set()

    @property
    def _is_elsewhere(self) -> bool:
        """Whether the loop runs, or is about to, in another thread than this."""
        return not self._over.is_set() and threading.current_thread() is not self._thread

    def ask(self, command: Callable[[], None]) -> None:
        """Has `command` called by the loop's thread."""
        self._commands.append(command)
        self._parts.bell.ring()

    def everything(self, deadline: Deadline) -> list[Shipment]:
        """All that was handed in so far and has no outcome; it is sent as soon as possible."""

        def collect() -> list[Shipment]:
            self.reception.hurry()
            return self.reception.unsettled()

        return self._do(collect, deadline)

    def identify(self, producer_id: int, epoch: int) -> None:
        """Batches are numbered under this identity from now on, in every partition."""

        def adopt() -> None:
            self._lanes.producer = producer_id, epoch
            for topic in self.reception.topics.values():
                for lane in topic.lanes.values():
                    lane.start_over()

        self._do(adopt)

    def drop_all(self, error: OttlaError, *, deadline: Deadline | None = None) -> None:
        """Gives up everything that was handed in, and returns when nothing is under way any more."""

        def drop() -> int:
            self.reception.hurry()
            self.fail_all(error)
            self.reception.let_go()
            return self._lanes.flying

        limit = deadline or Deadline.after(LONGEST)
        while self._do(drop) and self._is_elsewhere and not limit.expired():
            time.sleep(_SHORT_NAP)

    def fail_all(self, error: OttlaError) -> None:
        """On the loop's thread: nothing that is not under way will be delivered."""
        self.reception.refuse_all(error)
        self._ends.fail_all(error)

    def _do(self, command: Callable[[], T], deadline: Deadline | None = None) -> T:
        """What `command` returns, called by the loop's thread, or by this one when there is no loop any more."""
        if not self._is_elsewhere:
            return command()
        results: list[T] = []
        done = Flag()

        def call() -> None:
            results.append(command())
            done.set()

        limit = deadline or Deadline.after(LONGEST)
        self.ask(call)
        while not done.wait(min(1.0, limit.remaining())):
            if self.has_stopped:
                raise OttlaError("this producer has stopped; see the log")
            if limit.expired():
                raise TimeoutError("the sender did not answer")
        return results[0]

    def persist(self, deadline: Deadline) -> OttlaError | None:
        """Puts everything that was handed in so far on disk, unless it is acknowledged; why that did not work."""

        def keep() -> OttlaError | None:
            self.reception.hurry()
            waiting = self.reception.why_waiting()
            return self._ends.keep_all() or waiting

        return self._do(keep, deadline)

    def stop(self, deadline: Deadline) -> None:
        """Ends the loop; what has no outcome by then is given up, or stays in the spool."""
        self._stopping = True
        self._parts.bell.ring()
        if self._may_enter():  # it was never there, and will not be
            self._abandon(None)
            self._over.set()
        elif self._over.wait(deadline.remaining() + 5.0) and self._thread is not None:
            self._thread.join(5.0)
        self._cluster.close()
        self.errands.join(Deadline.after(5.0))

    def holding(self) -> str:
        """What most of the memory waits for, in words."""
        lanes = [(sum(b.held_bytes for b in list(lane.line)), topic, lane) for topic, lane in self._lanes]
        waiting = [topic for topic in list(self.reception.topics.values()) if topic.waiting]
        if waiting and self._scout.error is not None:
            return f"the partitions of topic {waiting[0].name} are not known: {self._scout.error}"
        if not lanes:
            return "nothing is under way at the moment: the buffer is small for what one call hands in"
        size, topic, lane = max(lanes, key=lambda entry: entry[0])
        link = self._links.find(topic.leaders.get(lane.at.partition, -1))
        error = next((batch.error for batch in list(lane.line) if batch.error is not None), None)
        where = "which has no leader" if link is None else f"led by {link}"
        last = "" if error is None else f"; last error: {error}"
        return f"{size:,} bytes of it wait for {lane.at}, {where}, {lane.flying} batches under way{last}"

    def topic(self, name: str) -> Topic | None:
        """What is known of a topic in use."""
        return self.reception.topics.get(name)

    # The loop

    def _may_enter(self) -> bool:
        try:
            return self._entry.pop()
        except IndexError:
            return False

    def _run(self) -> None:
        if not self._may_enter():
            return
        self._thread = threading.current_thread()
        try:
            self._loop()
        finally:
            self._over.set()

    def _loop(self) -> None:
        try:
            if self._parts.keeper is not None:
                self.reception.inherit(self._parts.keeper)
            while not self._stopping:
                self._turn()
        except BaseException as error:
            _log.exception("the sender stopped on an error that should not be")
            self._abandon(OttlaError(f"the sender stopped: {type(error).__name__}: {error}"))
            return
        self._abandon(None)

    def _turn(self) -> None:
        self._parts.bell.listen()
        now = time.monotonic()
        self.errands.collect()
        while self._commands:
            self._commands.popleft()()
        next_due = self.reception.take(now)
        if self.over is not None:
            self.fail_all(self.over)
        next_due = min(next_due, self._courier.dispatch(now))
        self._scout.look(now)
        if self.gate is None:  # a transactional producer is told its identity
            self._scout.identify(self._lanes, now)
        if now >= self._swept_at + _SWEEP_SECONDS:
            self._sweep(now)
        if self._parts.keeper is not None:
            self._parts.keeper.settle()
        self._wait(next_due)
        self._courier.collect(time.monotonic())

    def _wait(self, until: float) -> None:
        bell = self._parts.bell
        poller = select.poll()
        poller.register(bell.fileno(), select.POLLIN)
        links: dict[int, Link] = {}
        for link in self._links:
            connection = link.connection
            if connection is None or (fd := connection.fileno()) < 0:
                continue
            links[fd] = link
            poller.register(fd, select.POLLIN | (select.POLLOUT if connection.unsent_bytes else 0))
        until = min(until, time.monotonic() + _LONGEST_NAP)
        if self._is_watching:
            until = min(until, self._swept_at + _SWEEP_SECONDS)
        # Room in a socket alone is no reason for a whole turn: a large request leaves in many pieces.
        while bell.may_sleep():
            ready = poller.poll(math.ceil(max(0.0, until - time.monotonic()) * 1000))
            for fd, _ in ready:
                if fd in links:
                    self._pump(links[fd])
            if not all(self._goes_on_sending(poller, links.get(fd), events) for fd, events in ready) or not ready:
                break
        bell.drain()

    def _goes_on_sending(self, poller: select.poll, link: Link | None, events: int) -> bool:
        """Whether all that happened is that a part of a request has left, and nobody waits for the loop."""
        connection = None if link is None else link.connection
        if connection is None or connection.closed or events != select.POLLOUT or self._courier.has_answers:
            return False
        if not connection.unsent_bytes:
            poller.modify(connection.fileno(), select.POLLIN)
        return True

    @property
    def _is_watching(self) -> bool:
        """Whether there are deadlines to look at."""
        return not self._lanes.idle or self.reception.waiting

    def _pump(self, link: Link) -> None:
        connection = link.connection
        if connection is None:
            return
        connection.pump()
        if connection.closed and link.requests == 0:
            # With requests under way, their failure tells of it.
            self._links.idled(link)
            if self._scout.leads(link):
                self._links.connect(link, time.monotonic())  # was it idleness, or is the broker gone?

    def _keep(self, now: float) -> None:
        """With a spool: what waits for too long goes to disk, and leaves the memory when that is short."""
        keeper, budget = self._parts.keeper, self._parts.budget
        assert keeper is not None
        self._ends.keep(older_than=now - keeper.spool.after, now=now)
        if keeper.is_full and keeper.spool.when_full is WhenFull.DROP_OLDEST:
            self._ends.drop_stored(self._parts.budget.used)
        if budget.used > budget.buffering.bytes // 2:
            self._ends.unload()

    # Time

    def _sweep(self, now: float) -> None:
        self._swept_at = now
        self.reception.forget_settled(now)
        self.reception.forget_idle(now, seconds=self._cluster.timeouts.metadata_age)
        for link in list(self._links):
            if link.requests:
                self._pump(link)  # requests that nobody answers run out of time here
            if link.is_away and self._scout.leads(link):
                self._links.connect(link, now)  # nobody may have anything for it, as long as it is away
        if self._parts.keeper is not None:
            self._keep(now)
        self._ends.expire(now)
        self.reception.expire(now)
        self._balance()
        budget = self._parts.budget
        if budget.buffering.when_full is WhenFull.DROP_OLDEST and budget.full:
            self._ends.drop_unsent(budget.used - budget.buffering.bytes // 2)
            self.reception.drop_waiting()

    def _balance(self) -> None:
        """Where nothing is left that takes memory, none is in use: mends what an interrupted call did not add."""
        budget = self._parts.budget
        idle = self._lanes.idle and not self.reception.waiting and self._parts.intake.idle()
        stray = budget.used if idle else 0
        if stray and stray == self._stray_bytes:  # twice in a row: no call is just about to add it
            budget.add(-stray)
            stray = 0
        self._stray_bytes = stray

    def _why_unknown(self) -> str:
        kept = "" if self._parts.keeper is None else ", or kept: this spool has never seen the topic"
        return f"{kept}; {self._scout.error}" if self._scout.error is not None else kept

    def _why_closed(self) -> str:
        keeper = self._parts.keeper
        refused = "" if keeper is None or keeper.error is None else f" and could not keep them: {keeper.error}"
        return f"the producer was closed{refused}"

    def _abandon(self, error: OttlaError | None) -> None:
        """The loop has ended: nothing is left without an outcome."""
        self._stopping = True
        self._parts.intake.shut(error or OttlaError("this producer was closed"))
        try:
            handed, _ = self._parts.intake.take(math.inf, lambda _: 0.0)
            waiting = [handover for topic in self.reception.topics.values() for handover in topic.unplaced]
            for handover in [*handed, *waiting]:
                count = handover.columns.count
                reason = str(error or f"the producer was closed before they could be sent{self._why_unknown()}")
                self.reception.refuse(handover, NotDelivered(reason, topic=handover.topic, records=count, cause=error))
            self._ends.end_all(str(error or self._why_closed()))
        except Exception:
            _log.exception("could not tell every delivery that the sender has ended")
        self._parts.budget.wake()
