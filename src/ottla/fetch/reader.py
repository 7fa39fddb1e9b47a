"""`Reader`: offset ranges in, Arrow out; or raw batches, a fold over them, or what their headers tell.

A topic with a start and a stop, or ranges, come in; they are fetched ahead on a thread of their own and handed out
piece by piece in the order of each partition, complete or with an error. Nothing is committed: a reader has no group.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import pyarrow as pa

from ottla.config import PLAINTEXT, Retry, Security, Timeouts, check_callable, check_kind
from ottla.errors import InputError, OttlaError, WireError
from ottla.events.hub import Events
from ottla.fetch import bounds
from ottla.fetch.bounds import Bound
from ottla.fetch.cursor import END_OF_LOG, Cursor, Failed, Piece
from ottla.fetch.decoding import PieceDecoder, decode
from ottla.fetch.fetcher import Fetcher
from ottla.fetch.options import Fetching, FetchPolicy, OnLost, parse_isolation, parse_on_lost
from ottla.fetch.planning import ReadPlan, ReadPlanner, What
from ottla.model import Fingerprint, Isolation, OffsetRange, TopicPartition
from ottla.net.context import Addresses, ClientContext, Sinks
from ottla.net.deadline import Deadline
from ottla.net.frames import Buffers
from ottla.net.interrupt import client_closed
from ottla.wire.batch import Batch
from ottla.wire.decode import COLUMNS, Decoded, Decoder

if TYPE_CHECKING:
    from ottla.fetch.deferred_losses import DeferredLosses
    from ottla.fetch.profile import PartitionProfile

T = TypeVar("T")

_FETCHING = Fetching()
_CHUNK_BYTES = 2 << 20
"""Of records in one `RecordBatch`, about: several are alive at a time, beside what is fetched ahead."""
_numbers = itertools.count(1)
"""Of lanes: readers that share a cluster share no connection."""
_MOST_BUFFERS = 2
_NAP = 1.0
"""Seconds between two looks of a reader that waits whether its thread is still there."""


class RawBatch(NamedTuple):
    """A batch as the broker stores it, and where it is from."""

    topic: str
    partition: int
    batch: Batch


class ReadFailure(NamedTuple):
    """A partition that could not be read on from `offset`."""

    topic: str
    partition: int
    offset: int
    error: OttlaError


class Prefetch:
    """A range whose first answer is fetched before anybody reads it.

    `Reader.decoded` takes it over and goes on from there; `close` ends one that nobody wants any more.
    """

    __slots__ = ("_end", "_fetcher", "_losses", "plan")

    def __init__(
        self, plan: ReadPlan, fetcher: Fetcher, losses: DeferredLosses, end: Callable[[Fetcher], None]
    ) -> None:
        self.plan = plan
        self._fetcher: Fetcher | None = fetcher
        self._losses = losses
        self._end = end

    def close(self) -> None:
        """Stops fetching, unless a reader took it over."""
        fetcher, self._fetcher = self._fetcher, None
        if fetcher is not None:
            self._end(fetcher)

    def taken(self) -> Fetcher:
        """The fetcher, for the one who reads: from now on it may use all of its memory."""
        fetcher, self._fetcher = self._fetcher, None
        if fetcher is None:
            raise InputError("a prefetch is read once, and not after it was closed")
        self._losses.release()
        fetcher.buffer.widen()
        return fetcher


class Reader:
    """Reads offset ranges. Threads may share one; constructing it connects nothing; `with` closes it."""

    def __init__(
        self,
        cluster: Addresses,
        *,
        security: Security = PLAINTEXT,
        client_id: str = "ottla-reader",
        timeouts: Timeouts | None = None,
        retry: Retry | None = None,
        fetching: Fetching = _FETCHING,
        isolation: Isolation | str = Isolation.READ_UNCOMMITTED,
        on_lost: OnLost | str = OnLost.ERROR,
        events: Sinks = (),
    ) -> None:
        check_kind("fetching", fetching, Fetching)
        self._isolation = parse_isolation(isolation)
        self._context = ClientContext(
            cluster, security=security, client_id=client_id, timeouts=timeouts, retry=retry, events=events
        )
        self.cluster = self._context.cluster
        self._fetching = fetching
        self._on_lost = parse_on_lost(on_lost)
        self._planning = ReadPlanner(
            self.cluster, isolation=self._isolation, on_lost=self._on_lost, events=self._context.events
        )
        self._lanes: list[tuple[str, Buffers | None]] = []
        """Of reads that have ended: their connections, and for a few the memory for answers, to be used again."""
        self._fetchers: set[Fetcher] = set()
        self._closed = False

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Reader {','.join(map(str, self.cluster.bootstrap))}>"

    def close(self) -> None:
        """Ends it. Iterators that are still open raise at their next step."""
        self._closed = True
        reading = list(self._fetchers)
        for fetcher in reading:
            fetcher.stop()
        for lane in {*(lane for lane, _ in self._lanes), *(fetcher.lane for fetcher in reading)}:
            self.cluster.leave(lane)  # others may go on using the cluster
        self._context.close()

    def offsets(self, topic: str, at: Bound = "earliest", *, timeout: float | None = None) -> dict[TopicPartition, int]:
        """Where a place is in each partition: an offset, for a time that of the first record at or after it."""
        return self._planning.offsets(topic, at, self._deadline(timeout))

    def ranges(
        self,
        topics: str | Iterable[str],
        start: Bound = "earliest",
        stop: Bound = "latest",
        *,
        partitions: Collection[int] | None = None,
        timeout: float | None = None,
    ) -> list[OffsetRange]:
        """What lies between two places, as they are now: a range for each partition, empty ones too."""
        names = [topics] if isinstance(topics, str) else list(topics)
        ranges, _ = self._planning.between(names, start, stop, partitions, self._deadline(timeout))
        return ranges

    def read(
        self,
        what: What,
        start: Bound = "earliest",
        stop: Bound | None = "latest",
        *,
        columns: Collection[str] = COLUMNS,
        partitions: Collection[int] | None = None,
        timeout: float | None = None,
    ) -> Generator[pa.RecordBatch, None, None]:
        """The records as Arrow, each `RecordBatch` of one partition and in order; `columns` says which of them.

        `"latest"` is where the log ended when the call was made; `stop=None` reads on for ever. Everything that can be
        wrong with the arguments is told by the call itself; `close()` on the iterator ends it early.
        """
        decoding = PieceDecoder(self._decoder(columns), self._context.events)
        return self._records(self._plan(what, start, stop, partitions, timeout), decoding)

    def prefetch(self, what: OffsetRange) -> Prefetch:
        """Begins to fetch a range that is to be read soon: one answer of it, no more, waits until `decoded` asks."""
        plan = self._plan(what, "earliest", "latest", None, None)
        from ottla.fetch.deferred_losses import DeferredLosses

        losses = DeferredLosses(self._context.events)
        fetcher = self._fetcher(plan.cursors, plan.followed, Events(losses))
        fetcher.buffer.narrow(self._fetching.request_bytes)
        self._fetchers.add(fetcher)
        try:
            self._check_open()  # only now: whoever closes the reader ends all that are there
            fetcher.start()
        except BaseException:
            self._end(fetcher)
            raise
        return Prefetch(plan, fetcher, losses, self._end)

    def decoded(
        self,
        what: What | Prefetch,
        start: Bound = "earliest",
        stop: Bound | None = "latest",
        *,
        columns: Collection[str] = COLUMNS,
        partitions: Collection[int] | None = None,
        timeout: float | None = None,
        fingerprint: bool = True,
        check: Callable[[], None] | None = None,
    ) -> Generator[Decoded, None, None]:
        """As `read`, and with each stretch of records their number and fingerprint: what a receipt is made of.

        `check` is called now and then while nothing comes: what it raises ends the wait.
        """
        decoding = PieceDecoder(self._decoder(columns, fingerprint=fingerprint), self._context.events)
        if isinstance(what, Prefetch):
            return self._stretches(what.plan, decoding, check, what)
        return self._stretches(self._plan(what, start, stop, partitions, timeout), decoding, check)

    def batches(
        self,
        what: What,
        start: Bound = "earliest",
        stop: Bound | None = "latest",
        *,
        partitions: Collection[int] | None = None,
        timeout: float | None = None,
    ) -> Generator[RawBatch, None, None]:
        """The batches as they are stored, still compressed, control batches too; those at the ends may hold more
        than was asked for."""
        return self._raw(self._plan(what, start, stop, partitions, timeout))

    def fold(
        self,
        function: Callable[[T, pa.RecordBatch | ReadFailure], T],
        initial: T,
        what: What,
        start: Bound = "earliest",
        stop: Bound = "latest",
        *,
        columns: Collection[str] = COLUMNS,
        partitions: Collection[int] | None = None,
        timeout: float | None = None,
    ) -> T:
        """Calls `function` with what it returned last and the next records, or with a `ReadFailure`: that partition is
        then given up, and the others are read on."""
        check_callable("the function of a fold", function, arguments=2)
        decoder = self._decoder(columns)
        bounds.check(stop, "stop")
        state = initial
        for item in self._items(self._plan(what, start, stop, partitions, timeout)):
            if isinstance(item, Failed):
                state = function(state, ReadFailure(*item.cursor.at, item.cursor.position, item.error))
                continue
            for result in self._tried(decoder, item):
                state = function(state, result)
        return state

    def count(
        self,
        what: What,
        start: Bound = "earliest",
        stop: Bound = "latest",
        *,
        partitions: Collection[int] | None = None,
        timeout: float | None = None,
    ) -> int:
        """How many records there are, from the headers of their batches; nothing is decompressed."""
        profiles = self.profile(what, start, stop, partitions=partitions, timeout=timeout)
        return sum(one.records for one in profiles)

    def profile(
        self,
        what: What,
        start: Bound = "earliest",
        stop: Bound = "latest",
        *,
        partitions: Collection[int] | None = None,
        timeout: float | None = None,
    ) -> list[PartitionProfile]:
        """Records, bytes, codecs, times and producers of each partition, from the headers of batches alone."""
        from ottla.fetch.profile import ProfileBuilder

        bounds.check(stop, "stop")
        plan = self._plan(what, start, stop, partitions, timeout)
        tallies = {
            cursor.at: ProfileBuilder(OffsetRange(*cursor.at, cursor.position, cursor.stop)) for cursor in plan.cursors
        }
        for piece in self._pieces(plan):
            tallies[piece.cursor.at].add(piece.batches)
        return [tally.profile() for _, tally in sorted(tallies.items())]

    def fingerprint(
        self,
        what: What,
        start: Bound = "earliest",
        stop: Bound = "latest",
        *,
        partitions: Collection[int] | None = None,
        timeout: float | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Fingerprint:
        """How many records there are, and the sum of their content, whatever their order: equal to that of what was
        written exactly if nothing is missing and nothing is there twice. `progress` hears how many were read."""
        bounds.check(stop, "stop")
        if progress is not None:
            check_callable("progress", progress, arguments=1)
        decoder = self._decoder((), fingerprint=True)
        total = Fingerprint()
        for piece in self._pieces(self._plan(what, start, stop, partitions, timeout)):
            for decoded in self._decoded(decoder, piece):
                total += decoded.fingerprint or Fingerprint()
            if progress is not None:
                progress(total.count)
        return total

    # What to read

    def _plan(
        self,
        what: What,
        start: Bound,
        stop: Bound | None,
        partitions: Collection[int] | None,
        timeout: float | None,
    ) -> ReadPlan:
        return self._planning.plan(what, start, stop, partitions, self._deadline(timeout))

    def _deadline(self, timeout: float | None) -> Deadline:
        return Deadline.after(self.cluster.timeouts.total if timeout is None else timeout)

    def _decoder(self, columns: Collection[str], *, fingerprint: bool = False) -> Decoder:
        return Decoder(
            [columns] if isinstance(columns, str) else columns,
            fingerprint=fingerprint,
            max_batch_bytes=self._fetching.max_batch_bytes,
            chunk_bytes=_CHUNK_BYTES,
        )

    # Reading

    def _records(self, plan: ReadPlan, decoding: PieceDecoder) -> Generator[pa.RecordBatch, None, None]:
        for decoded in self._stretches(plan, decoding):
            yield decoded.records
            del decoded  # its memory is free before the next one is waited for

    def _stretches(
        self,
        plan: ReadPlan,
        decoding: PieceDecoder,
        check: Callable[[], None] | None = None,
        begun: Prefetch | None = None,
    ) -> Generator[Decoded, None, None]:
        for piece in self._pieces(plan, check, decoding, begun):
            yield from decoding.decode(piece)
            del piece

    def _tried(self, decoder: Decoder, piece: Piece) -> Iterator[pa.RecordBatch | ReadFailure]:
        """The records of a piece, up to what cannot be decoded; then its partition is given up."""
        try:
            yield from self._decode(decoder, piece)
        except WireError as error:
            piece.cursor.open = False
            damaged = getattr(error, "base_offset", None) or 0
            yield ReadFailure(*piece.cursor.at, max(piece.start, damaged), error)

    def _decode(self, decoder: Decoder, piece: Piece) -> Iterator[pa.RecordBatch]:
        return (decoded.records for decoded in self._decoded(decoder, piece))

    def _decoded(self, decoder: Decoder, piece: Piece) -> Iterator[Decoded]:
        return decode(decoder, piece, events=self._context.events)

    def _raw(self, plan: ReadPlan) -> Generator[RawBatch, None, None]:
        for piece in self._pieces(plan):
            for batch in piece.batches:
                if batch.header.base_offset < piece.stop and batch.header.next_offset > piece.start:
                    yield RawBatch(*piece.cursor.at, batch)

    def _pieces(
        self,
        plan: ReadPlan,
        check: Callable[[], None] | None = None,
        decoding: PieceDecoder | None = None,
        begun: Prefetch | None = None,
    ) -> Iterator[Piece]:
        for item in self._items(plan, check, decoding, begun):
            if isinstance(item, Failed):
                raise item.error
            yield item
            del item

    def _items(
        self,
        plan: ReadPlan,
        check: Callable[[], None] | None = None,
        decoding: PieceDecoder | None = None,
        begun: Prefetch | None = None,
    ) -> Iterator[Piece | Failed]:
        """What comes of the cursors, until all are over; a failure ends its cursor."""
        ahead = {cursor for cursor in plan.cursors if not cursor.fact.is_over}
        if begun is not None:
            fetcher = begun.taken()
        elif ahead:
            fetcher = self._fetcher(ahead, plan.followed)
        else:
            return
        if decoding is not None:
            decoding.following = fetcher.buffer.following
        try:
            self._fetchers.add(fetcher)
            fetcher.start()
            while ahead:
                self._check_open()
                fetcher.wait(Deadline.after(_NAP))
                item = fetcher.take()
                if item is None:
                    fetcher.check()
                    if check is not None:
                        check()
                    continue
                yield item
                if isinstance(item, Piece):
                    fetcher.buffer.used_up(item)
                if isinstance(item, Failed) or item.next_offset >= item.cursor.stop or not item.cursor.open:
                    ahead.discard(item.cursor)
                del item
        finally:
            self._end(fetcher)

    def _end(self, fetcher: Fetcher) -> None:
        fetcher.stop()
        self._fetchers.discard(fetcher)
        # Each may have half of what a read is allowed: many reads at a time must not leave all of that behind.
        is_kept = len(self._lanes) < _MOST_BUFFERS
        self._lanes.append((fetcher.lane, fetcher.buffers if is_kept else None))

    def _check_open(self) -> None:
        if self._closed:
            raise client_closed()
        self.cluster.effort("reading")  # raises in a forked child, which must not touch locks of the parent

    def _fetcher(self, cursors: Collection[Cursor], followed: Collection[str], events: Events | None = None) -> Fetcher:
        endless = all(cursor.stop == END_OF_LOG for cursor in cursors)
        patience = math.inf if endless else self.cluster.timeouts.total
        policy = FetchPolicy(self._fetching, self._isolation, self._on_lost, patience)
        try:
            lane, buffers = self._lanes.pop()
        except IndexError:
            lane, buffers = f"read-{next(_numbers)}", None
        fetcher = Fetcher(self.cluster, policy, lane=lane, events=events or self._context.events, buffers=buffers)
        fetcher.add(sorted(cursors, key=lambda cursor: cursor.at))
        if followed:
            fetcher.follow(followed)
        return fetcher
