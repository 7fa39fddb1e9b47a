"""The spool: encoded batches on disk until they are acknowledged, for one thread of one process at a time.

`Entry` values come in, and the tickets of those that are done. Out go tickets, batches read back, and when it is
opened, what an earlier owner left and what of that is damaged. It sends nothing and knows no broker.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from ottla.config import Path as AnyPath
from ottla.errors import ConfigError, SpoolFailed, SpoolFull, UsedAfterFork
from ottla.produce.spool import compaction, directories, inspection
from ottla.produce.spool.contents import Contents, survey
from ottla.produce.spool.durability import Durability
from ottla.produce.spool.entries import batch_in, head_of, size_on_disk
from ottla.produce.spool.layout import CONSECUTIVE, VERSION, SegmentHeader, frame_crc
from ottla.produce.spool.ownership import Ownership
from ottla.produce.spool.reserve import Reserve, is_full
from ottla.produce.spool.segment import LiveEntry, Segment
from ottla.produce.spool.segments import Segments
from ottla.produce.spool.values import Damage, Entry, Owner, Stored, Ticket
from ottla.wire.batch import Batch

logger = logging.getLogger(__name__)
T = TypeVar("T")

SEGMENT_BYTES = 32 << 20
"""Large enough that creating and removing files costs nothing, small enough that space is freed soon."""


class Store:
    """An open spool, created by `Store.open` and ended by `close` or `with`.

    `inherited` are the entries that an earlier owner left to be sent, oldest first; `damage` is what of them is lost.
    """

    def __init__(
        self, ownership: Ownership, contents: Contents, *, fsync: bool, max_bytes: int | None, segment_bytes: int
    ) -> None:
        self.path = ownership.directory
        self.inherited: list[Stored] = contents.live
        self.damage: list[Damage] = contents.damage
        self._ownership = ownership
        self._spool = contents.spool
        self._segments = Segments(
            self.path, (Segment.inherited(self.path, surveyed) for surveyed in contents.segments.values())
        )
        self._active: Segment | None = None
        self._next_id = contents.next_id
        self._next_segment = contents.next_segment
        self._compacted_at = 0
        self._durability = Durability(self.path) if fsync else None
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        self._reserve = Reserve(self.path, most_bytes=None if max_bytes is None else max_bytes // directories.SHARES)
        self._is_short = False
        """Whether the disk had no room for the last new entry."""
        self._pid = os.getpid()
        self._is_closed = False

    @classmethod
    def open(
        cls, path: AnyPath, *, fsync: bool = False, max_bytes: int | None = None, segment_bytes: int = SEGMENT_BYTES
    ) -> Store:
        """Take ownership of the directory, creating it if needed, and read what is there.

        Raises `SpoolInUse` if another process owns it, `SpoolFailed` if it cannot be used, and `ConfigError` for
        invalid sizes.
        """
        if segment_bytes < directories.SMALLEST_SEGMENT or (max_bytes is not None and max_bytes <= 0):
            raise ConfigError(
                f"a spool needs segment_bytes >= {directories.SMALLEST_SEGMENT} and max_bytes > 0, or None,"
                f" got {segment_bytes} and {max_bytes}"
            )
        directory = Path(os.path.abspath(path))
        directories.create(directory)
        directories.restrict_access(directory)
        ownership = Ownership.take(directory)
        try:
            if fsync:
                directories.sync_names(directory)
            contents = survey(directory, ownership.before)
            directories.tidy(directory, contents)
            segment_bytes = directories.segment_size(segment_bytes, contents, directory, max_bytes)
            store = cls(ownership, contents, fsync=fsync, max_bytes=max_bytes, segment_bytes=segment_bytes)
            ownership.write(contents.spool, next_id=contents.next_id, tail=store._segments.tail())
        except OSError as exc:
            ownership.close()
            raise SpoolFailed(directory, f"cannot be used: {exc.strerror}") from exc
        except BaseException:
            ownership.close()
            raise
        store.settle()
        for damage in store.damage:
            logger.warning("%s", damage)
        return store

    @classmethod
    def inspect(cls, path: AnyPath) -> tuple[list[Stored], list[Damage], Owner | None]:
        """What a spool holds, what of it is lost, and its current owner or None.

        Changes nothing; raises `SpoolFailed`.
        """
        return inspection.inspect(path)

    @property
    def used_bytes(self) -> int:
        """Bytes on disk. Entries that are done count until `settle` removes their segment; the reserve counts too."""
        return self._segments.used_bytes + self._reserve.size_bytes

    @property
    def live_bytes(self) -> int:
        """Bytes on disk of entries that are not done."""
        return self._segments.live_bytes

    @property
    def count(self) -> int:
        """Entries that are not done."""
        return self._segments.count

    def put(self, entry: Entry) -> Ticket:
        """Write the entry, whole or not at all. Raises `SpoolFull` or `SpoolFailed`; a later `put` may succeed.

        After it returns, the death of this process cannot lose the entry; a power loss can until `durable`. An entry
        that supersedes another is accepted beyond the limit, and written into the reserve of a full disk: otherwise the
        entries of a full spool could not be numbered, sent, and so removed.
        """
        self._check_usable()
        size = size_on_disk(entry)
        if entry.supersedes:
            return self._write_replacement(lambda: self._write(entry, size), size)
        self._make_room(size)
        ticket = self._write_or_free(lambda: self._write_new(entry, size), size)
        self._is_short = False
        return ticket

    def put_parts(self, whole: Ticket, parts: Sequence[Entry]) -> list[Ticket]:
        """Write the parts of `whole`, an entry that is then done: all of them, or none and the entry stays.

        They get a file of their own, which gets its name when it is complete: a kill at any moment leaves either the
        entry or all parts. With fsync they are durable when this returns. Raises `SpoolFull` or `SpoolFailed`.
        """
        self._check_usable()
        held = self._segments.find(whole.id)
        if held is None:
            raise SpoolFailed(self.path, f"entry {whole.id} is not in the spool, or done")
        parts = [replace(part, supersedes=whole.id, place=held.ticket.place) for part in parts]
        size = sum(map(size_on_disk, parts))
        return self._write_replacement(lambda: self._write_parts(whole.id, parts), size)

    def _write(self, entry: Entry, size: int) -> Ticket:
        """Append an entry to the active segment. Raises `SpoolFailed`, or `OSError` if the disk is full."""
        segment = self._writable(size)
        head = head_of(entry, self._next_id, spool=self._spool, position=segment.size_bytes)
        try:
            position = segment.append([head, entry.records])
        except OSError as exc:
            if not segment.is_open:
                self._seal()
            if is_full(exc):
                raise
            raise SpoolFailed(segment.path, f"cannot be written: {exc.strerror}") from exc
        ticket = Ticket(self._next_id, segment.number, position, size, entry.place or self._next_id)
        self._next_id += 1
        segment.end_id = self._next_id
        self._segments.hold(segment, LiveEntry(ticket, frame_crc(head)))
        self._mark_superseded(ticket, entry.supersedes)
        return ticket

    def _write_parts(self, whole_id: int, parts: Sequence[Entry]) -> list[Ticket]:
        """Write the parts of an entry as one segment and finish the entry. Raises `OSError`."""
        self._seal()  # ids in a segment must be consecutive, and those of the parts are in another file
        number, self._next_segment = self._next_segment, self._next_segment + 1
        ids = range(self._next_id, self._next_id + len(parts))
        self._next_id = ids.stop
        segment, entries = compaction.write_together(
            self.path, number, zip(ids, parts, strict=True), spool=self._spool, fsync=self._durability is not None
        )
        self._segments.add(segment)
        for entry in entries:
            self._segments.hold(segment, entry)
        if self._durability is not None:
            self._finish(self._durability.released_by(whole_id))
        self._segments.finish(whole_id)
        return [entry.ticket for entry in entries]

    def _mark_superseded(self, ticket: Ticket, old_id: int) -> None:
        """Finish the superseded entry as soon as the new one is durable, or at once without fsync."""
        if old_id:
            self._segments.by_number[ticket.segment].replaces.add(old_id)
        if self._durability is not None:
            self._durability.put(ticket, old_id)
        elif old_id:
            self._segments.finish(old_id)

    def durable(self) -> None:
        """With fsync, sync everything that was put to the disk. Without, return at once.

        Raises `SpoolFailed` if that fails; its `doubtful` has the tickets put since the last success. The system may
        have dropped these pages, and another fsync would prove nothing: put the entries again, each superseding its
        ticket's id, in its ticket's place.
        """
        self._check_usable()
        if self._durability is None or not self._durability.recent:
            return
        try:
            self._finish(self._durability.sync())
        except OSError as exc:
            doubtful = tuple(ticket for ticket in self._durability.recent if self._segments.find(ticket.id) is not None)
            self._seal()
            raise SpoolFailed(self.path, f"fsync failed: {exc.strerror}", doubtful=doubtful) from exc
        finally:
            self._durability.forget(self._active)

    def read(self, ticket: Ticket) -> Batch:
        """The batch of `ticket` as it was put.

        Raises `CorruptBatch` if the disk returns other bytes, `SpoolFailed` if none.
        """
        self._check_usable()
        held = self._segments.find(ticket.id)
        if held is None:
            raise SpoolFailed(self.path, f"entry {ticket.id} is not in the spool, or done")
        return batch_in(self._segments.read(held), held.ticket)

    def done(self, tickets: Iterable[Ticket]) -> None:
        """Mark entries as done; the next `settle` writes it down. Tickets that are done already are no error."""
        self._check_usable()
        for ticket in tickets:
            if self._durability is not None:
                self._finish(self._durability.released_by(ticket.id))
            self._segments.finish(ticket.id)

    def _finish(self, ids: Iterable[int]) -> None:
        """Finish entries by id."""
        for entry_id in ids:
            self._segments.finish(entry_id)

    def settle(self) -> None:
        """Write down what is done, one write per segment, and delete the segments that are finished.

        Never raises if the disk fails: what is not written down is only looked up again at the next start.
        """
        self._check_usable()
        active = self._active
        if active is not None and not active.live and (self._is_short or active.size_bytes >= self._segment_bytes // 4):
            self._seal()
        self._write_marks()
        if self._compacted_at != self._next_segment:  # files only pile up when new ones are created
            self._compacted_at = self._next_segment
            sparse = compaction.worthwhile(self._segments, self._active, spare_bytes=4 * self._segment_bytes)
            if sparse is not None:
                self._compact(sparse)

    def _write_marks(self) -> None:
        """Write pending marks and delete finished segments, with the room of the reserve if the disk is full."""
        self._segments.settle(self._active)
        if self._segments.lacks_space and self._reserve.release():
            self._segments.settle(self._active)

    def _compact(self, sparse: Segment) -> bool:
        """Copy the live entries of a sparse segment elsewhere, so that it can be deleted.

        Returns whether that worked.
        """
        if sparse is self._active:
            self._seal()
        number, self._next_segment = self._next_segment, self._next_segment + 1
        fsync = self._durability is not None
        is_moved = compaction.compact(self._segments, sparse, number=number, spool=self._spool, fsync=fsync)
        self._segments.settle(self._active)
        return is_moved

    def _make_room(self, size: int) -> None:
        """Remove finished and compact sparse segments near the limit. Raises `SpoolFull` if that is not enough."""
        limit = self._max_bytes
        needed = size + self._reserve.missing(size)
        if limit is None or self.used_bytes + needed <= limit:
            return
        self._remove_finished()
        while (used := self.used_bytes) + needed > limit:
            live = self._segments.live_bytes + self._reserve.size_bytes
            sparse = compaction.sparsest(self._segments) if live + needed <= limit else None
            if sparse is None or not self._compact(sparse):
                raise SpoolFull(self.path, used_bytes=used, max_bytes=limit, needed_bytes=size)

    def _remove_finished(self) -> None:
        """Delete every finished segment, the active one too if nothing in it is live."""
        if self._active is not None and not self._active.live:
            self._seal()
        self._segments.settle(self._active)

    # A full disk

    def _write_new(self, entry: Entry, size: int) -> Ticket:
        """Write a new entry, but only if the reserve can be kept beside it."""
        self._hold_reserve(size)
        return self._write(entry, size)

    def _write_replacement(self, write: Callable[[], T], size: int) -> T:
        """Write something that lets other entries go: into the reserve, if there is no other room."""
        try:
            return self._write_or_free(write, size)
        except SpoolFull:
            if not self._reserve.release():
                raise
        self._seal()  # a new segment, so that the reserve's room is freed without waiting for older entries
        return self._write_or_free(write, size)

    def _write_or_free(self, write: Callable[[], T], size: int) -> T:
        """Write. If the disk is full, free space and try again, as long as there is some to free."""
        while True:
            used = self._segments.used_bytes  # before the attempt, which may leave an empty segment: that is no gain
            try:
                return write()
            except OSError as exc:
                if not is_full(exc):
                    raise SpoolFailed(self.path, f"cannot be written: {exc.strerror}") from exc
                reason = exc.strerror or str(exc)
            self._is_short = True
            self._free_space(used)
            if self._segments.used_bytes >= used:
                raise SpoolFull(self.path, used_bytes=self.used_bytes, needed_bytes=size, reason=reason)

    def _free_space(self, used: int) -> None:
        """Get below `used` bytes.

        Deletes finished segments, else compacts a sparse one, for which the reserve may be needed.
        """
        self._remove_finished()
        if self._segments.used_bytes < used:
            return
        sparse = compaction.cheapest(self._segments)
        if sparse is not None:
            self._reserve.release()
            self._compact(sparse)

    def _hold_reserve(self, size: int) -> None:
        """Keep the reserve as large as needed. Raises `OSError` if the disk is full."""
        try:
            self._reserve.hold(size)
        except OSError as exc:
            if is_full(exc):
                raise
            logger.debug(
                "spool %s has no reserve: %s", self.path, exc
            )  # writing the entry itself will raise the same error

    def _writable(self, size: int) -> Segment:
        """The segment that the next entry goes into. Raises `SpoolFailed`."""
        active = self._active
        if active is not None and (active.is_empty or active.size_bytes + size <= self._segment_bytes):
            return active
        self._seal()
        if not self._ownership.is_still_there():
            raise SpoolFailed(self.path, "its file 'owner' was deleted or replaced: it may have another owner now")
        last, end_id = self._segments.tail()
        follows = last if end_id == self._next_id else 0
        header = SegmentHeader(VERSION, CONSECUTIVE, follows, self._next_id, self._spool)
        number, self._next_segment = self._next_segment, self._next_segment + 1
        try:
            self._active = Segment.create(self.path, number, header)
        except OSError as exc:
            if is_full(exc):
                raise
            raise SpoolFailed(self.path, f"no new segment can be created: {exc.strerror}") from exc
        self._segments.add(self._active)
        if self._durability is not None:
            self._durability.add_segment(self._active)
        return self._active

    def _seal(self) -> None:
        """Stop appending to the active segment."""
        if self._active is not None:
            self._active.is_open = False
            if self._durability is None:
                self._active.close()
            self._active = None

    def close(self) -> None:
        """Settle, sync if `fsync` is set, and release the directory. Of an empty spool only the file `owner` stays."""
        if self._is_closed or os.getpid() != self._pid:
            self._segments.close()
            if self._is_closed:
                self._ownership.close()  # Ctrl-C may have interrupted the first call
            return
        try:
            self.durable()
        finally:
            self._active = None
            self._write_marks()
            self._is_closed = True
            self._segments.close()
            if not self._segments.by_number:
                self._reserve.release()
            self._release_ownership()

    def _release_ownership(self) -> None:
        """Write down where the spool ends, and release the lock."""
        try:
            self._ownership.write(self._spool, next_id=self._next_id, tail=self._segments.tail())
        except SpoolFailed as exc:
            logger.warning("%s", exc)  # only the next owner's check for a truncated end is lost
        self._ownership.close()

    def _check_usable(self) -> None:
        """Raises `UsedAfterFork` in a forked child, and `SpoolFailed` if the store is closed."""
        if os.getpid() != self._pid:
            raise UsedAfterFork(f"spool {self.path} belongs to process {self._pid}, which forked this one")
        if self._is_closed:
            raise SpoolFailed(self.path, "was closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
