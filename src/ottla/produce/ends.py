"""How a batch ends when it is not simply acknowledged: given up, dropped, failed with all others, or left on disk.

Time, a full buffer, a full disk or the end of the producer come in; batches leave their lanes, and what is on disk of
them is kept or let go. Used by the sender's thread.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.errors import Fenced, KeptInSpool, NotDelivered, OttlaError
from ottla.events import Dropped, Events
from ottla.net.links import Links
from ottla.produce.keeper import Keeper
from ottla.produce.lane import Lane
from ottla.produce.lanes import Lanes
from ottla.produce.outcomes import Outcomes
from ottla.produce.outgoing import Outgoing
from ottla.produce.packing import Topic, seal

_OPEN_SECONDS = 1.0
"""How long a batch that cannot be sent stays open: all its records have the deadline of the first one."""


class Ends:
    """The other ways out."""

    def __init__(
        self, lanes: Lanes, *, links: Links, keeper: Keeper | None, outcomes: Outcomes, events: Events
    ) -> None:
        self._lanes = lanes
        self._links = links
        self._keeper = keeper
        self._outcomes = outcomes
        self._events = events

    def succeed(self, batch: Outgoing, base_offset: int, append_time: int, now: float) -> None:
        """A batch is in the log."""
        self._outcomes.acknowledged(batch, base_offset, append_time, now)
        self._done(batch, delivered=True)

    def fail(self, batch: Outgoing, error: OttlaError) -> None:
        """A batch will not be delivered."""
        self._outcomes.failed(batch, error)
        self._done(batch, delivered=False)

    def _done(self, batch: Outgoing, *, delivered: bool) -> None:
        if self._keeper is not None:
            decided = [batch]
            while decided[-1].parent is not None and decided[-1].parent[0].decided:
                decided.append(decided[-1].parent[0])
            self._keeper.done(decided, delivered=delivered)

    # Given up

    def give_up(self, topic: Topic, lane: Lane, batch: Outgoing, reason: str) -> None:
        """Nobody waits for this batch any longer."""
        link = self._links.get(topic.leaders.get(lane.at.partition, -1))
        cause = batch.error or (None if link is None else link.error)
        last = f"; last error: {cause}" if cause is not None else ""
        where = "no leader is known" if link is None else str(link)
        lane.given_up(batch)
        self.fail(
            batch,
            NotDelivered(
                f"{reason}, {batch.attempts} attempts; {where}{last}",
                topic=topic.name,
                partition=lane.at.partition,
                records=batch.count,
                maybe_written=batch.attempts > 0 or batch.inherited,
                cause=cause,
            ),
        )

    def expire(self, now: float) -> None:
        """Gives up batches whose time is over."""
        for topic, lane in self._lanes:
            limit = topic.settings.delivery_timeout
            if lane.open is not None and now >= min(lane.open.deadline, lane.open.due + min(_OPEN_SECONDS, limit / 10)):
                seal(topic, lane, self._outcomes.hold)
            for batch in [batch for batch in lane.line if batch.deadline <= now]:
                self.give_up(topic, lane, batch, f"not acknowledged within {limit:g} s")

    def fail_all(self, error: OttlaError) -> None:
        """Nothing that is not under way will be delivered."""
        reason = getattr(error, "reason", str(error))
        kind = Fenced if isinstance(error, Fenced) else NotDelivered
        for topic, lane in self._lanes:
            self._seal(topic, lane)
            for batch in [batch for batch in lane.line if not batch.flying]:
                lane.given_up(batch)
                at, count = lane.at, batch.count
                maybe = batch.attempts > 0
                self.fail(
                    batch,
                    kind(
                        reason,
                        topic=at.topic,
                        partition=at.partition,
                        records=count,
                        maybe_written=maybe,
                        cause=error,
                    ),
                )

    def end_all(self, reason: str) -> None:
        """The producer ends: what is on disk stays there for the next one, the rest is given up."""
        for topic, lane in self._lanes:
            self._seal(topic, lane)
            for batch in list(lane.line):
                if not self._leave_behind(lane, batch):
                    self.give_up(topic, lane, batch, reason)

    def _leave_behind(self, lane: Lane, batch: Outgoing) -> bool:
        keeper = self._keeper
        if keeper is None or not (batch.ticket or keeper.keep(batch, lane) or keeper.keeps_whole(batch)):
            return False
        reason = f"kept in the spool {keeper.path}, from which the next producer delivers them"
        at, maybe = lane.at, batch.attempts > 0 or batch.inherited
        lane.given_up(batch)
        kept = KeptInSpool(reason, topic=at.topic, partition=at.partition, records=batch.count, maybe_written=maybe)
        self._outcomes.left(batch, kept)
        return True

    def _seal(self, topic: Topic, lane: Lane) -> None:
        if lane.open is not None:
            seal(topic, lane, self._outcomes.hold)

    # Dropped

    def drop_unsent(self, size_bytes: int) -> None:
        """Gives up the oldest batches that were never sent, until so many bytes of memory are free."""
        self._drop(size_bytes, lambda batch: batch.held_bytes if not batch.attempts and not batch.inherited else 0)

    def drop_stored(self, size_bytes: int) -> None:
        """Gives up the oldest batches on disk that are not under way, until so many bytes of disk are free."""
        self._drop(size_bytes, lambda batch: batch.size_bytes if batch.ticket and not batch.flying else 0)

    def _drop(self, size_bytes: int, freed_by: Callable[[Outgoing], int]) -> None:
        """Oldest first; `freed_by` says what giving a batch up would free, 0 when it must stay."""
        candidates = [
            (batch.created, number, topic, lane, batch)
            for number, (topic, lane) in enumerate(self._lanes)
            for batch in lane.line
            if freed_by(batch)
        ]
        for _, _, topic, lane, batch in sorted(candidates, key=lambda entry: entry[:2]):
            if size_bytes <= 0:
                return
            size_bytes -= freed_by(batch)
            self._report_drop(lane, batch)
            self.give_up(topic, lane, batch, "dropped to make room: they were the oldest")

    def _report_drop(self, lane: Lane, batch: Outgoing) -> None:
        assert batch.header is not None
        times = batch.header.base_timestamp / 1000, batch.header.max_timestamp / 1000
        self._events.emit(Dropped(*lane.at, batch.count, batch.size_bytes, *times, "dropped to make room"))

    # The disk

    def keep(self, *, older_than: float, now: float) -> None:
        """Puts lanes on disk whose oldest batch has waited since before `older_than`."""
        for topic, lane in self._lanes:
            if lane.open is not None and lane.open.opened <= older_than and lane.open.due <= now:
                seal(topic, lane, self._outcomes.hold)
            if lane.line and lane.line[0].opened <= older_than:
                self._keep_lane(lane)

    def keep_all(self) -> OttlaError | None:
        """Puts everything on disk that is not acknowledged; why not, when that is refused."""
        assert self._keeper is not None
        for topic, lane in self._lanes:
            self._seal(topic, lane)
            if not self._keep_lane(lane):
                return self._keeper.error
        return None if self._keeper.make_durable() else self._keeper.error

    def _keep_lane(self, lane: Lane) -> bool:
        assert self._keeper is not None
        numbered = self._lanes.identify(lane)
        for batch in list(lane.line):
            # Numbered now, so that the disk says under which identity it may be sent; if not, it is written again.
            if numbered:
                lane.number(batch, transactional=self._lanes.transactional)
            try:
                if not self._keeper.keep(batch, lane):
                    return False
            except NotDelivered as error:
                lane.given_up(batch)
                self.fail(batch, error)
        return True

    def unload(self) -> None:
        """Forgets in memory what is on disk and not under way."""
        assert self._keeper is not None
        self._keeper.make_durable()
        for _, lane in self._lanes:
            for batch in lane.line:
                if batch.ticket is not None and batch.stored_identity == batch.identity:
                    self._keeper.unload(batch)
