"""Real record batches for spool tests: small, all different, each identifiable."""

from __future__ import annotations

import random

import crc32c

from ottla.produce.spool import Entry, Store
from ottla.wire.batch import CRC_START, HEADER_BYTES, LENGTH_END, MAGIC, Batch, BatchHeader, Codec, pack_header


def entry(
    number: int, *, size_bytes: int = 40, supersedes: int = 0, place: int = 0, records: bytes | None = None
) -> Entry:
    """A batch of one record that is never decoded. `number` and size determine every byte of it."""
    records = random.Random(number).randbytes(size_bytes) if records is None else records
    length = HEADER_BYTES - LENGTH_END + len(records)
    header = BatchHeader(
        base_offset=0,
        length=length,
        leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=Codec.ZSTD,
        last_offset_delta=0,
        base_timestamp=1_700_000_000_000 + number,
        max_timestamp=1_700_000_000_000 + number,
        producer_id=4711,
        producer_epoch=0,
        base_sequence=number,
        count=1,
    )
    crc = crc32c.crc32c(records, crc32c.crc32c(pack_header(header)[CRC_START:]))
    return Entry(
        "clicks",
        number % 3,
        header._replace(crc=crc),
        memoryview(records),
        floor_offset=number - 1,
        created=1_700_000_000.25 + number,
        supersedes=supersedes,
        place=place,
    )


def whole(batch: Entry | Batch) -> bytes:
    """All bytes of a batch."""
    return bytes(batch.data) if isinstance(batch, Batch) else pack_header(batch.header) + bytes(batch.records)


def contents(store: Store) -> dict[int, bytes]:
    """Everything inherited, read back, by id."""
    return {stored.ticket.id: whole(store.read(stored.ticket)) for stored in store.inherited}


def numbers(store: Store) -> list[int]:
    """The numbers of the inherited batches, in order, each verified to be the batch of that number."""
    for stored in store.inherited:
        expected = entry(stored.header.base_sequence, size_bytes=len(store.read(stored.ticket).records))
        assert whole(store.read(stored.ticket)) == whole(expected)
    return [stored.header.base_sequence for stored in store.inherited]
