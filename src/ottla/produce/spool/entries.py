"""Converts entries to frames and back: the bytes to write for an entry, and the verified batch from bytes read.

Pure. Entries are checked when they come in, so that nothing is stored that could not be read back.
"""

from __future__ import annotations

import struct
from uuid import UUID

from ottla.errors import CorruptBatch, InputError
from ottla.produce.spool.layout import frame_bytes, pack_frame, parse_frame, trusted_batch_header
from ottla.produce.spool.values import Entry, Ticket
from ottla.wire.batch import HEADER_BYTES, Batch, check_header, check_prefix, pack_header


def size_on_disk(entry: Entry) -> int:
    """How many bytes the entry takes. Raises `InputError` or `CorruptBatch` if it is not a whole batch."""
    header = entry.header
    actual_bytes = HEADER_BYTES + memoryview(entry.records).nbytes
    if header.size_bytes != actual_bytes:
        raise InputError(
            f"a batch for {entry.topic}-{entry.partition} has {actual_bytes} bytes, its header says {header.size_bytes}"
        )
    check_prefix(header.base_offset, header.length, header.leader_epoch, header.magic)
    check_header(header)
    return frame_bytes(entry)


def head_of(entry: Entry, entry_id: int, *, spool: UUID, position: int) -> bytes:
    """Everything before the records: the frame's header and the batch's. Raises `InputError`."""
    batch_header = pack_header(entry.header)
    try:
        frame = pack_frame(entry, batch_header, entry_id=entry_id, spool=spool.bytes, position=position)
    except (struct.error, ValueError, OverflowError) as exc:
        raise InputError(f"an entry for {entry.topic}-{entry.partition} cannot be stored: {exc}") from exc
    return frame + batch_header


def batch_in(data: bytes, ticket: Ticket) -> Batch:
    """The batch of an entry that was read. Raises `CorruptBatch` unless it is exactly what was put."""
    frame = parse_frame(data, position=ticket.position, spool=None)
    if frame is None or frame.id != ticket.id or frame.total_bytes != ticket.size_bytes:
        raise CorruptBatch(f"entry {ticket.id} of the spool is damaged", base_offset=None, position=0)
    view = memoryview(data)[frame.header_bytes :]
    batch_header = trusted_batch_header(view, frame=frame)
    try:
        if batch_header is None:
            raise CorruptBatch("its header in the spool is damaged", base_offset=None, position=0)
        batch = Batch.parse(view)
        batch.verify()
    except CorruptBatch as exc:
        exc.topic, exc.partition = frame.topic, frame.partition
        raise
    return batch
