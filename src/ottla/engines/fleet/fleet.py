"""`Fleet`: one node of a group whose nodes share the work on topics, unit by unit.

Topics and a store come in; units go out to the program's threads. A unit that is done is not handed out again; one that
a crash interrupts is done again by another node. Planning, leases and watching run on their own threads. This module
only connects the parts: `held_units`, `planner`, `steward` and `lookahead` do the work.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterator
from types import TracebackType
from typing import Any, Self

from ottla.config import PLAINTEXT, Retry, Security, Timeouts, check_callable, check_group, check_kind
from ottla.engines.fleet.backoff import Backoff
from ottla.engines.fleet.goal import Goal
from ottla.engines.fleet.held_units import Ending, Held, HeldUnits, failure
from ottla.engines.fleet.lookahead import Claimed, Lookahead, Slot
from ottla.engines.fleet.planner import Planner, Policy, Start
from ottla.engines.fleet.planning import Units
from ottla.engines.fleet.record_sharing import RecordSharing, Reiterable
from ottla.engines.fleet.steward import Steward
from ottla.engines.fleet.stop_flag import StopFlag
from ottla.engines.fleet.store import Store, open_store
from ottla.engines.fleet.tally import Tally
from ottla.engines.fleet.unit import Unit, reason_of, trace_of
from ottla.engines.fleet.unit_endings import ended, handle, log_failure
from ottla.engines.fleet.units import Charter, Snapshot
from ottla.errors import (
    Advice,
    BrokerError,
    ConfigError,
    ErrorCode,
    FleetConflict,
    FleetError,
    InputError,
    LeaseLost,
    OttlaError,
    StoreUnavailable,
    UsedAfterFork,
)
from ottla.events import Event, StoreWentBack
from ottla.fetch import bounds
from ottla.fetch.options import Fetching, OnLost, parse_isolation, parse_on_lost
from ottla.fetch.reader import Reader
from ottla.model import Isolation, OffsetRange, Record, TopicPartition
from ottla.net.context import Addresses, ClientContext, Sinks
from ottla.net.deadline import Deadline

_log = logging.getLogger(__name__)
_UNITS = Units()
_CHARTER = Charter()
_FETCHING = Fetching()
_NEWEST = 100
"""Number of events kept in memory."""
_SHORTEST_NAP, _LONGEST_NAP = 0.01, 0.25
"""Seconds between two requests for units while there are none."""
_CLOSE_SECONDS = 10.0


class Fleet:
    """One node of a group. Threads may share it. Leaving a `with` block closes it and gives unfinished units back."""

    def __init__(
        self,
        cluster: Addresses | None = None,
        *,
        group: str,
        topics: str | Collection[str] = (),
        store: str | Store,
        start: Start = "latest",
        units: Units = _UNITS,
        charter: Charter = _CHARTER,
        on_lost: OnLost | str = OnLost.ERROR,
        commit_group: str | None = None,
        most_seconds: float | None = None,
        fetching: Fetching = _FETCHING,
        isolation: Isolation | str = Isolation.READ_COMMITTED,
        security: Security = PLAINTEXT,
        client_id: str = "ottla-fleet",
        timeouts: Timeouts | None = None,
        retry: Retry | None = None,
        events: Sinks = (),
    ) -> None:
        """Create a node. Nothing connects before the first use.

        `store` is the address of what the nodes share, `charter` what all of them agree on, `units` how logs are cut,
        and `fetching` limits memory and requests. `topics` are added to those of the group. `start` is where a topic
        starts that is new to the group. `on_lost` says what happens to a position that its log no longer has.
        `commit_group` is a consumer group in Kafka to which the positions are committed. `most_seconds` limits how long
        a unit may take. Units end before the oldest open transaction of their partition, unless `isolation` is
        "read_uncommitted". Raises `ConfigError` or `InputError` for invalid settings.
        """
        check_kind("units", units, Units)
        check_kind("charter", charter, Charter)
        check_kind("fetching", fetching, Fetching)
        if start not in ("earliest", "latest"):
            bounds.check(start, "start")
        if commit_group is not None:
            check_group("commit_group", commit_group)
        if most_seconds is not None and most_seconds <= 0:
            raise ConfigError(f"most_seconds must be greater than 0, got {most_seconds}")
        self.group = group
        self._topics = (topics,) if isinstance(topics, str) else tuple(topics)
        self._store = open_store(store, group) if isinstance(store, str) else store
        self._charter = charter
        self._context = ClientContext(
            cluster, security=security, client_id=client_id, timeouts=timeouts, retry=retry, events=events
        )
        self._reader = Reader(
            self._context.cluster,
            fetching=fetching,
            isolation=isolation,
            on_lost=on_lost,
            events=self._context.events,
        )
        self._policy = Policy(
            group=group,
            topics=self._topics,
            units=units,
            start=start,
            on_lost=parse_on_lost(on_lost),
            isolation=parse_isolation(isolation),
            commit_group=commit_group,
        )
        self.host = socket.gethostname()
        self.node = f"{self.host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        """The unique name of this node."""
        self.newest: deque[Event] = deque(maxlen=_NEWEST)
        """The latest events of this node."""
        self._held_units = HeldUnits(
            self._store, self.node, host=self.host, most_seconds=most_seconds, went_back=self._went_back
        )
        self._planner = Planner(self._context.cluster, self._store, self._policy, self._emit)
        self._lookahead = Lookahead(self._take, self._reader.prefetch, self._return)
        self._steward: Steward | None = None
        self._tally = Tally()
        self._backoff = Backoff()
        self._taking = threading.RLock()
        self._starting = threading.RLock()
        self._stopped = StopFlag()
        self._closed = False
        self._pid = os.getpid()
        self._sharing = RecordSharing(Reiterable(lambda: self._poll(until_end=False)), self._stopped.is_set)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Fleet {self.group} at {self._store.address}, node {self.node}>"

    # Working

    def start(self) -> None:
        """Join the group: from now on this node watches the others, and plans if no other node does.

        All methods that take units call it. Raises `FleetConflict` if the group has another charter, `FleetError` if
        this node is closed, and `StoreUnavailable` if the store does not answer.
        """
        with self._starting:
            self._check_usable()
            if self._steward is not None:
                self._steward.start()  # an earlier call may have been interrupted
                return
            self._join_group()
            if self._topics:
                self._store.add_topics(dict.fromkeys(self._topics, ""))
            self._steward = Steward(
                self._store,
                self._held_units,
                self._planner,
                self._charter,
                node=self.node,
                report=self._report,
                tell=self._emit,
            )
            self._steward.start()

    def units(self, *, until_end: bool = False) -> Iterator[Unit]:
        """Yield units until `stop`, waiting while there are none. Several threads may iterate at once.

        With `until_end`, ends when everything is done that was in the topics at the time of the call; units on the
        error list do not block that. Raises what `start` raises, and with `until_end` `FleetError` if a partition has
        not been planned for long.
        """
        self.start()
        for unit in self._poll(until_end):
            if unit is not None:
                yield unit

    def records(self, *, until_end: bool = False) -> Iterator[Record]:
        """Yield records one by one. A unit is done when the program asks for the record after its last one.

        With `until_end` it ends when everything that was in the topics is done.
        A unit that cannot be read, or is lost on the way, is left to another attempt, which yields some of its records
        again. Raises what `units` raises.
        """
        for unit in self.units(until_end=until_end):
            try:
                with unit:
                    yield from unit.records()
            except Exception as error:
                log_failure(unit, error)

    def record(self) -> Record | None:
        """Return the next record, for threads that share the work record by record; None after `stop`.

        A thread that calls it has handled its previous record. A unit is done when all threads that got one of its
        records have called again. Raises what `start` raises.
        """
        self._check_process()
        if not self._stopped.is_set():
            self.start()
        try:
            return self._sharing.next()
        except BaseException:  # the record may be booked to this thread already, which will not receive it
            self._sharing.put_back()
            raise

    def run(self, handler: Callable[[Unit], object], *, threads: int = 1, until_end: bool = False) -> None:
        """Call `handler` with one unit after the other, in `threads` threads, until `stop`.

        With `until_end` it ends when everything that was in the topics is done.
        A unit is done when the handler returns. If the handler raises anything, even `SystemExit`, the unit is retried
        and the node continues. Raises `InputError` if the handler cannot be called with one argument or is a coroutine
        or generator function, and what `units` raises.
        """
        check_callable("the handler", handler, arguments=1)
        if threads < 1:
            raise InputError(f"threads must be at least 1, got {threads}")
        self.start()
        failures: list[BaseException] = []
        workers = [
            threading.Thread(
                target=self._work, args=(handler, until_end, failures), name=f"ottla-fleet-work-{number}", daemon=True
            )
            for number in range(threads)
        ]
        for thread in workers:
            thread.start()
        try:
            for thread in workers:
                while thread.is_alive():
                    thread.join(0.2)
        except BaseException:
            self.stop()
            deadline = time.monotonic() + _CLOSE_SECONDS
            for thread in workers:
                thread.join(max(0.0, deadline - time.monotonic()))
            raise
        if failures:
            raise failures[0]

    def stop(self) -> None:
        """Take no further units; those in progress can be finished. Any thread or signal handler may call it."""
        self._held_units.hurry()
        self._stopped.set()
        self._lookahead.hurry()

    def close(self) -> None:
        """Leave the group and give back the units in progress. In a forked child, this does nothing."""
        if os.getpid() != self._pid:
            return
        self.stop()
        with self._starting:
            self._closed = True
        try:
            with self._taking:  # a thread that was about to take a unit has it now, or will not get one
                self._held_units.give_up()
                self._give_back_astray()
        finally:
            self._lookahead.join(Deadline.after(_CLOSE_SECONDS))
            if self._steward is not None:
                self._steward.stop()
                self._steward = None
            self._reader.close()
            self._context.close()
            self._store.close()

    def _give_back_astray(self) -> None:
        """Give back units that an interrupt left with no owner."""
        try:
            self._held_units.give_back_astray(self._store.pulse().out, at_once=True)
        except OttlaError as error:
            _log.debug("could not look for units that went astray: %s", error)

    # The group

    def look(self) -> Snapshot:
        """Return the state of the whole group. Raises `StoreUnavailable` if the store does not answer."""
        self._check_process()
        return self._store.look()

    def add_topics(self, *topics: str) -> None:
        """Add topics to the group, for all nodes.

        Raises `BrokerError` if a topic does not exist, and `FleetConflict` if the group has another charter.
        """
        self._check_usable()
        for name in topics:
            self._context.cluster.topic(name)
        self._join_group()
        self._store.add_topics(dict.fromkeys(topics, ""))

    def remove_topics(self, *topics: str) -> None:
        """Stop planning topics, on all nodes. Units that wait are still worked on, and the positions are kept."""
        self._check_process()
        self._store.remove_topics(topics)

    # Parts

    def _poll(self, until_end: bool) -> Iterator[Unit | None]:
        """Yield units, and None each time there is nothing to take."""
        goal = self._goal() if until_end else None
        nap = _SHORTEST_NAP
        slot = self._lookahead.slot()
        while not self._stopped.wait(self._backoff.seconds(time.monotonic())):
            unit = self._next(slot)
            if unit is not None:
                nap = _SHORTEST_NAP
                yield unit
                continue
            if goal is not None and goal.is_reached(time.monotonic()):
                return
            yield None
            self._stopped.wait(nap)
            nap = min(_LONGEST_NAP, nap * 2)

    def _next(self, slot: Slot) -> Unit | None:
        """Return the unit that was taken ahead, or take one; None if there is none."""
        self._check_process()
        claimed = slot.claim()
        if claimed is None:
            held = self._take()
            claimed = None if held is None else Claimed(held, None)
        if claimed is None:
            return None
        return Unit(claimed.held, self._reader, self._ended, prefetch=claimed.prefetch, near_end=slot.opener())

    def _work(self, handler: Callable[[Unit], object], until_end: bool, failures: list[BaseException]) -> None:
        """The loop of a worker thread of `run`."""
        try:
            for unit in self._poll(until_end):
                if unit is not None:
                    handle(handler, unit)
        except BaseException as error:
            failures.append(error)
            self.stop()

    def _take(self) -> Held | None:
        """Take one unit; None if there is none, the node stops, or the store does not answer."""
        self._check_process()
        with self._taking:
            if self._stopped.is_set():
                return None
            try:
                taken = self._held_units.take(1)
            except StoreUnavailable:
                return None  # the steward reports it
        return taken[0] if taken else None

    def _return(self, held: Held) -> Ending:
        """Give back a unit that was taken ahead and not claimed."""
        return self._held_units.finish(held, held.grant.range.start)

    def _ended(self, unit: Unit, held: Held, reached: int, error: BaseException | None) -> Ending:
        """Report the end of a unit to the store, count it, and emit its event. Every unit calls this once."""
        if error is None:
            ending = self._held_units.finish(held, reached)
        elif isinstance(error, LeaseLost):
            self._held_units.forget(held)
            ending = Ending.LOST
        else:
            entry = failure(held.grant, reason_of(error), host=self.host, traceback=trace_of(error))
            ending = self._held_units.fail(held, entry)
        self._tally.count(unit, ending)
        if ending is Ending.FAILED:
            self._backoff.failed(time.monotonic())
        elif ending is Ending.DONE:
            self._backoff.went_well()
        self._emit(ended(unit, ending, error, host=self.host, broker_id=self._leader(unit.range)))
        return ending

    def _leader(self, unit: OffsetRange) -> int:
        """Return the leader as far as it is known without a request; -1 if it is not."""
        topic = self._context.cluster.known.topics.get(unit.topic)
        partition = None if topic is None else topic.partition(unit.partition)
        return -1 if partition is None else partition.leader

    def _emit(self, event: Event) -> None:
        self.newest.append(event)
        self._context.events.emit(event)

    def _went_back(self, reason: str) -> None:
        self._emit(StoreWentBack(self.group, store=self._store.address, reason=reason))

    def _report(self) -> dict[str, Any]:
        """What this node publishes about itself, for `ottla work status`."""
        steward = self._steward
        return {
            "host": self.host,
            "pid": self._pid,
            "planner": steward is not None and steward.is_planner,
            "holds": len(self._held_units),
            "halted": dict(self._planner.halted) if steward is not None and steward.is_planner else {},
            **self._tally.report(),
        }

    def _goal(self) -> Goal:
        """The ends of all logs now. Skips topics that were deleted, but not a name that was never planned."""
        snapshot = self._store.look()
        planned = {state.partition.topic for state in snapshot.partitions}
        ends: dict[TopicPartition, int] = {}
        for topic in sorted({*snapshot.topics, *self._topics}):
            try:
                ends |= self._reader.offsets(topic, "latest")
            except BrokerError as error:
                is_misspelled = topic in self._topics and topic not in planned
                if error.code is not ErrorCode.unknown_topic_or_partition or is_misspelled:
                    raise
                _log.warning("topic %s of group %s no longer exists and is skipped", topic, self.group)
        return Goal(self._store, self.group, ends, ordered=self._charter.ordered)

    def _join_group(self) -> None:
        """Create the group if it is new. Raises `FleetConflict` if it has another charter than this node."""
        charter = self._store.found(self._charter)
        if charter != self._charter:
            raise FleetConflict(_contradiction(self.group, charter, self._charter))

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise UsedAfterFork("this Fleet was created before fork(): create a new one in the child process")

    def _check_usable(self) -> None:
        self._check_process()
        if self._closed:
            raise FleetError(f"node {self.node} of group {self.group} is closed: create a new Fleet")


def _contradiction(group: str, stored: Charter, own: Charter) -> str:
    """Name the settings in which two charters differ."""
    names = [name for name in Charter.__slots__ if getattr(stored, name) != getattr(own, name)]
    settings = ", ".join(_differs(name, getattr(stored, name), getattr(own, name)) for name in names)
    return f"group {group} was begun {settings}: {Advice.GROUP_SETTINGS}"


def _differs(name: str, stored: object, own: object) -> str:
    """Say how a setting of a charter differs, in words that are no names of arguments or options."""
    match name:
        case "ordered":
            return "ordered, not unordered" if stored else "unordered, not ordered"
        case "max_attempts":
            return f"with {stored} attempts of a unit, not {own}"
        case "lease_seconds":
            return f"with leases of {stored:g} s, not {own:g} s"
    return f"by version {stored} of the format, not {own}"
