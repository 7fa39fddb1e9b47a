"""Keeps a consumer a member of its group: a thread that joins, sends heartbeats and leaves.

The topics and the partitions that the program holds come in from its thread; the partitions that the group assigned go
out as `TargetAssignment`. The state machines (`modern.py`, `classic.py`) make all decisions; this module drives them.
It reads no records.
"""

from __future__ import annotations

import logging
import random
import threading
import time
import uuid
from collections.abc import Callable
from math import inf

from ottla.consume.coordinator import CoordinatorClient
from ottla.consume.options import GroupOptions, Protocol
from ottla.consume.ownership import OwnedPartitions, TargetAssignment
from ottla.consume.protocol import ChosenProtocol, MemberSettings
from ottla.consume.steps import Ask, Look, Rest, refusal
from ottla.errors import ConfigError, OttlaError
from ottla.model import GroupMember, TopicPartition
from ottla.net import Cluster, Deadline
from ottla.net.attempts import headline

__all__ = ["GroupOptions", "Membership", "Protocol", "TargetAssignment"]

_log = logging.getLogger(__name__)
_SESSION_SHARE = 1 / 3
"""A heartbeat waits at most this fraction of the session for its response, to leave time for another one."""


class Membership:
    """A member of one group. Its thread runs between `start` and `leave`.

    The program's thread calls `target`, releases and takes over partitions, and then calls `report_held`. `changed` is
    called on the membership's thread whenever `target` or `check` have something new; it must not block.
    """

    def __init__(self, cluster: Cluster, group: str, *, options: GroupOptions, changed: Callable[[], None]) -> None:
        if not group:
            raise ConfigError("the name of a consumer group must not be empty")
        self._group = group
        self._options = options
        self._changed = changed
        # Ctrl-C while entering a Condition would keep the lock held; while entering a lock it does not.
        self._lock = threading.RLock()
        self._wake = threading.Condition(self._lock)
        self._ownership = OwnedPartitions()
        self._announced = self._ownership.version
        self._topics: frozenset[str] = frozenset()
        self._polled = time.monotonic()
        self._is_dormant = True  # Only the program can wake it.
        self._stopping: Deadline | None = None
        self._is_failing = False
        self._error: OttlaError | None = None
        self._seconds = min(cluster.timeouts.request, options.session_timeout * _SESSION_SHARE)
        self._coordinator = CoordinatorClient(cluster, group, seconds=self._seconds)
        settings = MemberSettings(
            options=options,
            ownership=self._ownership,
            member_id=str(uuid.uuid4()),
            waits=lambda failures: cluster.retry.wait(failures, random.random()),
            seconds=self._seconds,
            metadata_age=cluster.timeouts.metadata_age,
        )
        self._machine = ChosenProtocol(group, settings)
        self._thread = threading.Thread(target=self._run, name=f"ottla-group-{group}", daemon=True)

    def __repr__(self) -> str:
        protocol = self.protocol
        return f"<Membership in {self._group}, {protocol.value if protocol else 'undecided'}, {self.member}>"

    def start(self) -> None:
        """Start the thread. It joins the group as soon as there are topics."""
        self._polled = time.monotonic()
        self._thread.start()

    def subscribe(self, topics: frozenset[str]) -> None:
        """Replace the subscribed topics. With none, the member releases everything and leaves the group."""
        with self._lock:
            self._topics = topics
            self._wake.notify()

    def target(self) -> TargetAssignment:
        """Return what this member should hold. Act on it and call `report_held` before the next call."""
        with self._lock:
            claimed_before = self._ownership.claimed
            target = self._ownership.target()
            claimed = self._ownership.claimed
            if claimed is not claimed_before and claimed != claimed_before:
                self._wake.notify()
            return target

    def report_held(self, partitions: frozenset[TopicPartition]) -> None:
        """Report the exact set of partitions that the program holds now."""
        with self._lock:
            self._ownership.hold(partitions)
            self._wake.notify()

    def keeps(self, partitions: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        """Return those of the partitions that the program holds and that no other member can have."""
        with self._lock:
            return partitions & self._ownership.kept

    def polled(self) -> None:
        """Note that the program asked for records."""
        self._polled = time.monotonic()
        if self._is_dormant:
            with self._lock:
                self._wake.notify()

    def check(self) -> None:
        """Raise the error that ended the membership, if any."""
        if self._error is not None:
            raise self._error

    @property
    def member(self) -> GroupMember:
        """The current member id and generation. With a negative generation it is not a member and must not commit."""
        with self._lock:
            machine = self._machine
            return GroupMember(self._group, machine.member_id, machine.generation, self._options.instance_id)

    @property
    def protocol(self) -> Protocol | None:
        """The protocol in use, None until it is decided."""
        return self._machine.protocol

    def leave(self, timeout: float) -> None:
        """Leave the group and stop the thread, within `timeout` seconds. A static member says that it will return."""
        deadline = Deadline.after(timeout)
        with self._lock:
            self._stopping = self._stopping or deadline
            self._wake.notify()
        self._coordinator.hurry()
        if self._thread.ident is None:
            return
        # A healthy broker answers a heartbeat at once, so waiting longer for one is of no use.
        self._thread.join(deadline.remaining() / 2)
        if self._thread.is_alive():
            self._coordinator.cut()
            self._thread.join(deadline.remaining())

    def _run(self) -> None:
        try:
            while self._stopping is None:
                self._turn()
        except OttlaError as error:
            self._end(error)
        except BaseException as error:  # A bug, or `changed` raised: the program must get an error.
            _log.exception("group %s: unexpected error in the membership thread; this is a bug", self._group)
            wrapped = OttlaError(f"group {self._group}: unexpected {type(error).__name__}: {error}")
            wrapped.__cause__ = error
            self._end(wrapped)
        finally:
            self._leave_group()

    def _turn(self) -> None:
        with self._lock:
            self._is_dormant = True  # Set before reading the time of the last poll, so that no poll is missed.
            now = time.monotonic()
            step = self._machine.step(now, topics=self._topics, polled=self._polled)
            self._is_dormant = isinstance(step, Rest) and step.until == inf
            is_new = self._log_notes()
            if isinstance(step, Rest) and not is_new and self._stopping is None:
                self._wake.wait(None if self._is_dormant else max(0.0, step.until - now))
        if is_new:
            self._changed()
        if not isinstance(step, Rest):
            self._carry_out(step)

    def _log_notes(self) -> bool:
        """Write the machine's notes to the log. Returns whether the target changed. The caller holds the lock."""
        for note in self._machine.notes:
            _log.info("group %s: %s", self._group, note)
        self._machine.notes.clear()
        is_new = self._ownership.version != self._announced
        self._announced = self._ownership.version
        return is_new

    def _carry_out(self, step: Ask | Look) -> None:
        try:
            response = self._coordinator.ask(step) if isinstance(step, Ask) else self._coordinator.look(step)
        except OttlaError as error:
            self._failed(step, error)
            return
        self._is_failing = False
        if isinstance(step, Ask):
            refused = refusal(step, response)
            if refused is not None and refused.row.refresh:
                self._coordinator.doubt()
        with self._lock:
            now = time.monotonic()
            if isinstance(step, Ask):
                self._machine.answered(step, response, now)
            else:
                self._machine.learned(response, now)

    def _failed(self, step: Ask | Look, error: OttlaError) -> None:
        if self._stopping is not None:
            return
        self._coordinator.check_usable()
        if isinstance(step, Ask):
            self._coordinator.doubt()
        # Logged once at INFO: while a coordinator is down, this happens several times a second.
        _log.log(logging.DEBUG if self._is_failing else logging.INFO, "group %s: %s", self._group, headline(error))
        self._is_failing = True
        with self._lock:
            self._machine.failed(step, error, time.monotonic())

    def _end(self, error: OttlaError) -> None:
        with self._lock:
            self._error = error
            self._ownership.lose()
        try:
            self._changed()
        except Exception:
            _log.exception("group %s: the consumer raised when it was notified of an error", self._group)

    def _leave_group(self) -> None:
        with self._lock:
            ask = self._machine.farewell()
            deadline = self._stopping or Deadline.after(self._seconds)
        if ask is None:
            return
        try:
            self._coordinator.ask_by(ask, deadline.sooner(ask.seconds))
        except OttlaError as error:
            _log.info("group %s: could not leave, the session will expire: %s", self._group, headline(error))
