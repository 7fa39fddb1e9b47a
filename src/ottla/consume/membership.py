"""A member of a consumer group: a thread that joins, sends heartbeats and leaves, whatever the program does meanwhile.

What the program wants and holds comes in from its thread; what the group wants it to hold goes out as
`TargetAssignment`. All decisions are those of the state machines (`modern.py`, `classic.py`); this drives them, and
reads no record.
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

__all__ = ["GroupOptions", "Membership", "Protocol", "TargetAssignment"]

_log = logging.getLogger(__name__)
_SESSION_SHARE = 1 / 3
"""No heartbeat waits longer for its answer than this share of the session: there must be time for another one."""


class Membership:
    """Constructing starts nothing. Between `start` and `leave` a thread of its own keeps the membership.

    The program's thread looks at `wanted`, lets go and takes over, and says what it then has with `holding`. `changed`
    is called from the membership's thread, and must not wait, whenever `wanted` or `check` have something new.
    """

    def __init__(self, cluster: Cluster, group: str, *, options: GroupOptions, changed: Callable[[], None]) -> None:
        if not group:
            raise ConfigError("a consumer group needs a name that is not empty")
        self._group = group
        self._options = options
        self._changed = changed
        # Ctrl-C within the entry of a Condition would keep the lock; within that of a lock it does not.
        self._lock = threading.RLock()
        self._wake = threading.Condition(self._lock)
        self._holdings = OwnedPartitions()
        self._announced = self._holdings.version
        self._topics: frozenset[str] = frozenset()
        self._polled = time.monotonic()
        self._is_dormant = True  # nothing but the program wakes it up
        self._stopping: Deadline | None = None
        self._in_trouble = False
        self._error: OttlaError | None = None
        self._seconds = min(cluster.timeouts.request, options.session_timeout * _SESSION_SHARE)
        self._talk = CoordinatorClient(cluster, group, seconds=self._seconds)
        setting = MemberSettings(
            options=options,
            holdings=self._holdings,
            member_id=str(uuid.uuid4()),
            waits=lambda failures: cluster.retry.wait(failures, random.random()),
            seconds=self._seconds,
            metadata_age=cluster.timeouts.metadata_age,
        )
        self._machine = ChosenProtocol(group, setting)
        self._thread = threading.Thread(target=self._run, name=f"ottla-group-{group}", daemon=True)

    def __repr__(self) -> str:
        spoken = self.protocol
        return f"<Membership in {self._group}, {spoken.value if spoken else 'undecided'}, {self.member}>"

    def start(self) -> None:
        """Starts the thread; the group is joined as soon as there are topics."""
        self._polled = time.monotonic()
        self._thread.start()

    def subscribe(self, topics: frozenset[str]) -> None:
        """What this member wants to read from now on; with none it lets go of everything and leaves the group."""
        with self._lock:
            self._topics = topics
            self._wake.notify()

    def wanted(self) -> TargetAssignment:
        """What the group wants this member to hold. Act on it, and call `holding`, before asking again."""
        with self._lock:
            before = self._holdings.claimed
            wanted = self._holdings.look()
            claimed = self._holdings.claimed
            if claimed is not before and claimed != before:
                self._wake.notify()
            return wanted

    def holding(self, partitions: frozenset[TopicPartition]) -> None:
        """The program's side holds exactly these now."""
        with self._lock:
            self._holdings.hold(partitions)
            self._wake.notify()

    def keeps(self, partitions: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        """Those of these that the program's side holds and the group cannot have given to others."""
        with self._lock:
            return partitions & self._holdings.kept

    def polled(self) -> None:
        """The program asked for records."""
        self._polled = time.monotonic()
        if self._is_dormant:
            with self._lock:
                self._wake.notify()

    def check(self) -> None:
        """Raises the error that ended the membership, if one did."""
        if self._error is not None:
            raise self._error

    @property
    def member(self) -> GroupMember:
        """Who this is at the moment. With a generation below 0 it is no member, and must not commit."""
        with self._lock:
            machine = self._machine
            return GroupMember(self._group, machine.member_id, machine.generation, self._options.instance_id)

    @property
    def protocol(self) -> Protocol | None:
        """The one in use, None while that is open."""
        return self._machine.protocol

    def leave(self, timeout: float) -> None:
        """Leaves the group and ends the thread, within `timeout` seconds; a static member says that it will be back."""
        deadline = Deadline.after(timeout)
        with self._lock:
            self._stopping = self._stopping or deadline
            self._wake.notify()
        self._talk.hurry()
        if self._thread.ident is None:
            return
        # A heartbeat that is under way is answered at once, or its broker is in trouble.
        self._thread.join(deadline.remaining() / 2)
        if self._thread.is_alive():
            self._talk.cut()
            self._thread.join(deadline.remaining())

    def _run(self) -> None:
        try:
            while self._stopping is None:
                self._turn()
        except OttlaError as error:
            self._end(error)
        except BaseException as error:  # a bug, or `changed` raised: the program must hear of it
            _log.exception("group %s: the membership failed in a way that it should not", self._group)
            wrapped = OttlaError(f"group {self._group}: unexpected {type(error).__name__}: {error}")
            wrapped.__cause__ = error
            self._end(wrapped)
        finally:
            self._say_goodbye()

    def _turn(self) -> None:
        with self._lock:
            self._is_dormant = True  # before the time of the last poll is read, so that none is missed
            now = time.monotonic()
            step = self._machine.step(now, topics=self._topics, polled=self._polled)
            self._is_dormant = isinstance(step, Rest) and step.until == inf
            news = self._news()
            if isinstance(step, Rest) and not news and self._stopping is None:
                self._wake.wait(None if self._is_dormant else max(0.0, step.until - now))
        if news:
            self._changed()
        if not isinstance(step, Rest):
            self._carry_out(step)

    def _news(self) -> bool:
        """Whether the program has something new to hear of. The caller has the lock."""
        for note in self._machine.notes:
            _log.info("group %s: %s", self._group, note)
        self._machine.notes.clear()
        is_new = self._holdings.version != self._announced
        self._announced = self._holdings.version
        return is_new

    def _carry_out(self, step: Ask | Look) -> None:
        try:
            found = self._talk.ask(step) if isinstance(step, Ask) else self._talk.look(step)
        except OttlaError as error:
            self._failed(step, error)
            return
        self._in_trouble = False
        if isinstance(step, Ask):
            refused = refusal(step, found)
            if refused is not None and refused.row.refresh:
                self._talk.doubt()
        with self._lock:
            now = time.monotonic()
            if isinstance(step, Ask):
                self._machine.answered(step, found, now)
            else:
                self._machine.learned(found, now)

    def _failed(self, step: Ask | Look, error: OttlaError) -> None:
        if self._stopping is not None:
            return
        self._talk.check_usable()
        if isinstance(step, Ask):
            self._talk.doubt()
        # Once: while a coordinator is away, this happens several times a second.
        _log.log(logging.DEBUG if self._in_trouble else logging.INFO, "group %s: %s", self._group, _headline(error))
        self._in_trouble = True
        with self._lock:
            self._machine.failed(step, error, time.monotonic())

    def _end(self, error: OttlaError) -> None:
        with self._lock:
            self._error = error
            self._holdings.lose()
        try:
            self._changed()
        except Exception:
            _log.exception("group %s: the consumer failed when it was told of an error", self._group)

    def _say_goodbye(self) -> None:
        with self._lock:
            ask = self._machine.farewell()
            deadline = self._stopping or Deadline.after(self._seconds)
        if ask is None:
            return
        try:
            self._talk.ask_by(ask, deadline.sooner(ask.seconds))
        except OttlaError as error:
            _log.info("group %s: left without a word, the session will run out: %s", self._group, _headline(error))


def _headline(error: OttlaError) -> str:
    return str(error).partition("\n")[0]
