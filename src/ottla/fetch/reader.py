"""`Reader`: reads offset ranges as Arrow batches or raw batches, folds over them, or sums up their headers.

Topics with a start and a stop, or ranges, come in. A background thread fetches ahead; records come out in the order of
each partition, complete or with an error. It never commits: a reader has no group.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import pyarrow as pa

from ottla.config import PLAINTEXT, Retry, Security, Timeouts, check_callable, check_kind
from ottla.errors import InputError, OttlaError, WireError
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
from ottla.other_clients import names_checked
from ottla.wire.batch import Batch
from ottla.wire.decode import COLUMNS, Decoded, Decoder

if TYPE_CHECKING:
    from ottla.fetch.deferred_losses import DeferredLosses
    from ottla.fetch.profile import PartitionProfile

T = TypeVar("T")

_FETCHING = Fetching()
_CHUNK_BYTES = 2 << 20
"""The approximate size of the records in one `RecordBatch`. Several are alive at a time, beside what is fetched
ahead."""
_numbers = itertools.count(1)
"""Numbers for channels: readers that share a cluster do not share connections."""
_MOST_BUFFERS = 2
_NAP = 1.0
"""How often, in seconds, a reader that waits checks whether its fetcher is alive."""


class RawBatch(NamedTuple):
    """A batch as the broker stores it, with its partition."""

    topic: str
    partition: int
    batch: Batch


class ReadFailure(NamedTuple):
    """A partition that could not be read from `offset` on."""

    topic: str
    partition: int
    offset: int
    error: OttlaError


class _Watch(NamedTuple):
    """What the caller of a read wants to be called for."""

    check: Callable[[], None] | None = None
    all_fetched: Callable[[], None] | None = None


_NO_WATCH = _Watch()


class _Once:
    """Calls a function, if there is one, the first time that it is called. Threads may share it."""

    def __init__(self, function: Callable[[], None] | None) -> None:
        self._functions = [] if function is None else [function]

    def __call__(self) -> None:
        try:
            function = self._functions.pop()
        except IndexError:
            return  # another call was first
        function()


class Prefetch:
    """A range whose first response is fetched before the range is read.

    `Reader.decoded` takes it over and continues. `close` ends one that is not needed; one that is dropped ends, too.
    """

    __slots__ = ("__weakref__", "_dropped", "_end", "_fetcher", "_losses", "plan")

    def __init__(
        self,
        plan: ReadPlan,
        fetcher: Fetcher,
        losses: DeferredLosses,
        *,
        end: Callable[[Fetcher], None],
        drop: Callable[[Fetcher], None],
    ) -> None:
        self.plan = plan
        self._fetcher: Fetcher | None = fetcher
        self._losses = losses
        self._end = end
        self._dropped = weakref.finalize(self, drop, fetcher)
        self._dropped.atexit = False

    def close(self) -> None:
        """Stop fetching, unless a reader took it over."""
        fetcher, self._fetcher = self._fetcher, None
        if fetcher is not None:
            self._end(fetcher)
            self._dropped.detach()

    def taken(self) -> Fetcher:
        """Hand over the fetcher to its reader. From now on it may use all of its memory.

        Raises `InputError` if it was taken or closed before.
        """
        fetcher, self._fetcher = self._fetcher, None
        if fetcher is None:
            raise InputError("this prefetch was already read or closed; a prefetch can be read only once")
        self._dropped.detach()
        self._losses.release()
        fetcher.buffer.restore()
        return fetcher


class Reader:
    """Reads offset ranges. Constructing it does not connect. Threads may share it. `with` closes it.

    Every method takes `what`: topics, or an `OffsetRange`, or several of different partitions.
    """

    @names_checked
    def __init__(
        self,
        cluster: Addresses | None = None,
        *,
        security: Security = PLAINTEXT,
        client_id: str = "ottla-reader",
        timeouts: Timeouts | None = None,
        retry: Retry | None = None,
        fetching: Fetching = _FETCHING,
        isolation: Isolation | str = Isolation.READ_COMMITTED,
        on_lost: OnLost | str = OnLost.ERROR,
        events: Sinks = (),
    ) -> None:
        """Check the settings. Raises `ConfigError` if one of them is invalid.

        `fetching` limits memory and requests, `on_lost` says what to do if records are gone. By default only committed
        records are read: a partition ends where its oldest open transaction starts. With `isolation="read_uncommitted"`
        records of open and aborted transactions are read, too.
        """
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
        self._channels: list[tuple[str, Buffers | None]] = []
        """The channels of finished reads, to reuse their connections, and a few of their memory pools."""
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
        """Close the reader. Iterators that are still open raise `ConnectionLost` at their next step."""
        self._closed = True
        fetchers = list(self._fetchers)
        for fetcher in fetchers:
            self._stop(fetcher)
        for channel in {*(channel for channel, _ in self._channels), *(fetcher.channel for fetcher in fetchers)}:
            self.cluster.leave(channel)  # the cluster may be shared
        self._context.close()

    def offsets(self, topic: str, at: Bound = "earliest", *, timeout: float | None = None) -> dict[TopicPartition, int]:
        """Return the offset of a bound in each partition. For a time: that of the first record at or after it.

        Raises `InputError` if `at` is invalid, `BrokerError` if the topic does not exist, and `NoBrokerReachable` or
        `DeadlineExceeded` after `timeout` seconds.
        """
        return self._planning.offsets(topic, at, self.cluster.deadline(timeout))

    def ranges(
        self,
        topics: str | Iterable[str],
        start: Bound = "earliest",
        stop: Bound = "latest",
        *,
        partitions: Collection[int] | None = None,
        timeout: float | None = None,
    ) -> list[OffsetRange]:
        """Return the range between two bounds in each partition, as of now, including empty ranges.

        Raises as `offsets` does, and `OffsetsLost` if `start` is behind the end of a log.
        """
        names = [topics] if isinstance(topics, str) else list(topics)
        ranges, _ = self._planning.between(names, start, stop, partitions, self.cluster.deadline(timeout))
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
        """Read the records as Arrow: each `RecordBatch` belongs to one partition and is in order.

        `columns` selects the columns. `"latest"` is the end of the log at the time of the call; `stop=None` follows the
        log forever. `close()` on the iterator ends it early. The call itself raises `InputError` or `ConfigError` if an
        argument is wrong, and as `ranges` does. The iterator raises `OffsetsLost`, `CorruptBatch`, `BrokerError`, and
        `DeadlineExceeded` if a partition makes no progress for `Timeouts.total` seconds.
        """
        decoding = PieceDecoder(self._decoder(columns), self._context.events)
        return self._records(self._plan(what, start, stop, partitions, timeout), decoding)

    def table(
        self,
        what: What,
        start: Bound = "earliest",
        stop: Bound = "latest",
        *,
        columns: Collection[str] = COLUMNS,
        partitions: Collection[int] | None = None,
        timeout: float | None = None,
    ) -> pa.Table:
        """Read the records as one Arrow table, partition by partition, each in order.

        All of them are in memory at once, decompressed, as the table holds them: `columns` saves the rest. Raises as
        `read` does.
        """
        bounds.check(stop, "stop")
        decoding = PieceDecoder(self._decoder(columns), self._context.events)
        by_partition: dict[TopicPartition, list[pa.RecordBatch]] = {}
        for piece in self._pieces(self._plan(what, start, stop, partitions, timeout), decoding=decoding):
            batches = by_partition.setdefault(piece.cursor.tp, [])
            batches += [decoded.records for decoded in decoding.decode(piece)]
        ordered = [batch for tp in sorted(by_partition) for batch in by_partition[tp]]
        return pa.Table.from_batches(ordered, schema=decoding.decoder.schema)

    def stream(
        self,
        what: What,
        start: Bound = "earliest",
        stop: Bound | None = "latest",
        *,
        columns: Collection[str] = COLUMNS,
        partitions: Collection[int] | None = None,
        timeout: float | None = None,
    ) -> pa.RecordBatchReader:
        """Read as `read` does, for a library that takes an Arrow stream: DuckDB, deltalake, pyarrow, a producer.

        It is read once, batch by batch. Raises as `read` does; an error of the stream comes out of the library.
        """
        decoder = self._decoder(columns)
        plan = self._plan(what, start, stop, partitions, timeout)
        records = self._records(plan, PieceDecoder(decoder, self._context.events))
        return pa.RecordBatchReader.from_batches(decoder.schema, records)

    def prefetch(self, what: OffsetRange) -> Prefetch:
        """Start fetching a range that is to be read soon: one response, no more, until `decoded` takes it over.

        Raises `ConnectionLost` if the reader is closed.
        """
        from ottla.fetch.deferred_losses import DeferredLosses

        plan = self._plan(what, "earliest", "latest", None, None)
        losses = DeferredLosses(self._context.events)
        fetcher = self._fetcher(plan.cursors, plan.followed, losses)
        fetcher.buffer.shrink(self._fetching.request_bytes)
        self._fetchers.add(fetcher)
        try:
            self._check_open()  # after the fetcher was added: `close` stops all fetchers that it finds
            fetcher.start()
        except BaseException:
            self._end(fetcher)
            raise
        return Prefetch(plan, fetcher, losses, end=self._end, drop=self._drop)

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
        all_fetched: Callable[[], None] | None = None,
    ) -> Generator[Decoded, None, None]:
        """Read as `read` does, but yield each stretch of records with its count and fingerprint, for receipts.

        `check` is called from time to time while no records come; an error that it raises ends the iterator.
        `all_fetched` is called once, on this thread or the fetching one, when the brokers have sent everything; it must
        not block. Raises as `read` does.
        """
        decoding = PieceDecoder(self._decoder(columns, fingerprint=fingerprint), self._context.events)
        watch = _Watch(check, all_fetched)
        if isinstance(what, Prefetch):
            return self._stretches(what.plan, decoding, watch, what)
        return self._stretches(self._plan(what, start, stop, partitions, timeout), decoding, watch)

    def batches(
        self,
        what: What,
        start: Bound = "earliest",
        stop: Bound | None = "latest",
        *,
        partitions: Collection[int] | None = None,
        timeout: float | None = None,
    ) -> Generator[RawBatch, None, None]:
        """Read the batches as they are stored: compressed, and including control batches.

        The first and last batch of a range may have records outside of it. Raises as `read` does.
        """
        return self._raw(self._plan(what, start, stop, partitions, timeout))

    def pieces(
        self,
        what: What,
        start: Bound = "earliest",
        stop: Bound | None = "latest",
        *,
        partitions: Collection[int] | None = None,
        timeout: float | None = None,
    ) -> Generator[Piece, None, None]:
        """Read the batches as `batches` does, all of a response and partition at once. Raises as `read` does.

        A piece's memory serves the next response: it must not be kept.
        """
        yield from self._pieces(self._plan(what, start, stop, partitions, timeout))

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
        """Call `function(state, records)` for all records, first with `initial`, and return the last state.

        If a partition fails, the function gets a `ReadFailure` instead, and the other partitions are read to their end.
        Raises as `read` does for wrong arguments.
        """
        check_callable("the function of a fold", function, arguments=2)
        decoder = self._decoder(columns)
        bounds.check(stop, "stop")
        state = initial
        for item in self._items(self._plan(what, start, stop, partitions, timeout)):
            if isinstance(item, Failed):
                state = function(state, ReadFailure(*item.cursor.tp, item.cursor.position, item.error))
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
        """Count the records from the headers of their batches, without decompressing them. Raises as `read` does."""
        profiles = self.profile(what, start, stop, partitions=partitions, timeout=timeout)
        return sum(profile.records for profile in profiles)

    def profile(
        self,
        what: What,
        start: Bound = "earliest",
        stop: Bound = "latest",
        *,
        partitions: Collection[int] | None = None,
        timeout: float | None = None,
    ) -> list[PartitionProfile]:
        """Return records, bytes, codecs, times and producers of each partition, from batch headers alone.

        Raises as `read` does.
        """
        from ottla.fetch.profile import ProfileBuilder

        bounds.check(stop, "stop")
        plan = self._plan(what, start, stop, partitions, timeout)
        builders = {
            cursor.tp: ProfileBuilder(OffsetRange(*cursor.tp, cursor.position, cursor.stop)) for cursor in plan.cursors
        }
        for piece in self._pieces(plan):
            builders[piece.cursor.tp].add(piece.batches)
        return [builder.profile() for _, builder in sorted(builders.items())]

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
        """Return the count and an order-independent sum of the records' content.

        It equals the fingerprint of what was written exactly if no record is missing or duplicated. `progress` is
        called with the number of records read so far. Raises as `read` does.
        """
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
        return self._planning.plan(what, start, stop, partitions, self.cluster.deadline(timeout))

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
            del decoded  # frees its memory before waiting for the next one

    def _stretches(
        self,
        plan: ReadPlan,
        decoding: PieceDecoder,
        watch: _Watch = _NO_WATCH,
        prefetch: Prefetch | None = None,
    ) -> Generator[Decoded, None, None]:
        for piece in self._pieces(plan, watch, decoding, prefetch):
            yield from decoding.decode(piece)
            del piece

    def _tried(self, decoder: Decoder, piece: Piece) -> Iterator[pa.RecordBatch | ReadFailure]:
        """Yield the records of a piece. If a batch cannot be decoded, yield a failure and end its partition."""
        try:
            yield from self._decode(decoder, piece)
        except WireError as error:
            piece.cursor.open = False
            damaged = getattr(error, "base_offset", None) or 0
            yield ReadFailure(*piece.cursor.tp, max(piece.start, damaged), error)

    def _decode(self, decoder: Decoder, piece: Piece) -> Iterator[pa.RecordBatch]:
        return (decoded.records for decoded in self._decoded(decoder, piece))

    def _decoded(self, decoder: Decoder, piece: Piece) -> Iterator[Decoded]:
        return decode(decoder, piece, events=self._context.events)

    def _raw(self, plan: ReadPlan) -> Generator[RawBatch, None, None]:
        for piece in self._pieces(plan):
            for batch in piece.batches:
                if batch.header.base_offset < piece.stop and batch.header.next_offset > piece.start:
                    yield RawBatch(*piece.cursor.tp, batch)

    def _pieces(
        self,
        plan: ReadPlan,
        watch: _Watch = _NO_WATCH,
        decoding: PieceDecoder | None = None,
        prefetch: Prefetch | None = None,
    ) -> Iterator[Piece]:
        for item in self._items(plan, watch, decoding, prefetch):
            if isinstance(item, Failed):
                raise item.error
            yield item
            del item

    def _items(
        self,
        plan: ReadPlan,
        watch: _Watch = _NO_WATCH,
        decoding: PieceDecoder | None = None,
        prefetch: Prefetch | None = None,
    ) -> Iterator[Piece | Failed]:
        """Yield pieces and failures of the cursors until all are over. A failure ends its cursor."""
        unfinished = {cursor for cursor in plan.cursors if not cursor.checkpoint.is_over}
        if prefetch is not None:
            fetcher = prefetch.taken()
        elif unfinished:
            fetcher = self._fetcher(unfinished, plan.followed)
        else:
            return
        if decoding is not None:
            decoding.following = fetcher.buffer.following
        tell = _Once(watch.all_fetched)
        try:
            self._fetchers.add(fetcher)
            if prefetch is not None and all(cursor.is_over for cursor in plan.cursors):
                tell()
            else:
                fetcher.tell_when_fetched(tell)
            fetcher.start()
            while unfinished:
                self._check_open()
                fetcher.wait(Deadline.after(_NAP))
                item = fetcher.take()
                if item is None:
                    fetcher.check()
                    if watch.check is not None:
                        watch.check()
                    continue
                yield item
                if isinstance(item, Piece):
                    fetcher.buffer.used_up(item)
                if isinstance(item, Failed) or item.next_offset >= item.cursor.stop or not item.cursor.open:
                    unfinished.discard(item.cursor)
                del item
            tell()  # the loop, in the middle of its last turn, may not have come to it
        finally:
            self._end(fetcher)

    def _drop(self, fetcher: Fetcher) -> None:
        """End the fetcher of a dropped prefetch. It runs in a finalizer, on any thread: it must not wait."""
        if self.cluster.is_inherited:
            return

        def ended() -> None:
            self._fetchers.discard(fetcher)
            self.cluster.leave(fetcher.channel)

        fetcher.stop_soon(ended)

    def _end(self, fetcher: Fetcher) -> None:
        self._stop(fetcher)
        self._fetchers.discard(fetcher)
        # Each pool may hold half of a read's memory: many simultaneous reads must not leave all of that behind.
        is_kept = len(self._channels) < _MOST_BUFFERS
        self._channels.append((fetcher.channel, fetcher.buffers if is_kept else None))

    def _stop(self, fetcher: Fetcher) -> None:
        if not self.cluster.is_inherited:  # the thread that would stop is only in the parent
            fetcher.stop()

    def _check_open(self) -> None:
        if self._closed:
            raise client_closed()
        self.cluster.check_usable()  # raises in a forked child, which must not touch the parent's locks

    def _fetcher(
        self, cursors: Collection[Cursor], followed: Collection[str], losses: DeferredLosses | None = None
    ) -> Fetcher:
        is_endless = all(cursor.stop == END_OF_LOG for cursor in cursors)
        patience = math.inf if is_endless else self.cluster.timeouts.total
        policy = FetchPolicy(self._fetching, self._isolation, self._on_lost, patience)
        try:
            channel, buffers = self._channels.pop()
        except IndexError:
            channel, buffers = f"read-{next(_numbers)}", None
        fetcher = Fetcher(
            self.cluster, policy, channel=channel, events=self._context.events, buffers=buffers, report_loss=losses
        )
        fetcher.add(sorted(cursors, key=lambda cursor: cursor.tp))
        if followed:
            fetcher.follow(followed)
        return fetcher
