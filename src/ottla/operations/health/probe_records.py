"""The records of a probe: each in a batch of its own, with the run that sent it and its number.

A run and a number come in, a batch goes out; batches come in, numbers go out. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from ottla.errors import CorruptBatch
from ottla.wire.batch import Codec, split
from ottla.wire.encode import NewBatch
from ottla.wire.single import one_record

_VALUE = struct.Struct(">8s16sqq")
_MAGIC = b"ottlapr1"
_HEADER_COUNT = 1
"""The byte after the value: no headers."""


class ProbeRecord(NamedTuple):
    """A record of this run that was read; `number` is None if its checksum does not match."""

    offset: int
    number: int | None


def probe_batch(run: bytes, number: int, *, now_ms: int) -> NewBatch:
    """Return the batch of one record. `run` has 16 bytes."""
    return one_record(_VALUE.pack(_MAGIC, run, number, now_ms), None, now_ms=now_ms)


def probe_records(data: memoryview, run: bytes) -> Iterator[tuple[int, ProbeRecord | None]]:
    """Yield the offset after each batch, and its record if it belongs to this run.

    Other runs, and other programs, may write to the topic, too: their records are passed over.
    """
    for batch in split(data):
        end = batch.header.next_offset
        try:
            batch.verify()
        except CorruptBatch:
            yield end, ProbeRecord(batch.header.base_offset, None)
            continue
        records = bytes(batch.records)
        value = records[-_VALUE.size - _HEADER_COUNT : -_HEADER_COUNT]
        is_plain = batch.header.codec is Codec.NONE and batch.header.count == 1 and len(value) == _VALUE.size
        magic, owner, number, _ = _VALUE.unpack(value) if is_plain else (b"", b"", 0, 0)
        is_ours = magic == _MAGIC and owner == run
        yield end, ProbeRecord(batch.header.base_offset, number) if is_ours else None
