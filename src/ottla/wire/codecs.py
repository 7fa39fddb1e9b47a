"""Compression of whole batches: the five codecs as Kafka frames them, with a bound on what comes out.

Comes in: the records of one batch. Goes out: the same, compressed or not. Decompression writes only into memory that
was sized beforehand, so a batch that would grow without end stops at the limit instead of filling the machine.

cramjam does gzip, snappy and zstd; lz4 frames are written by the `lz4` package with independent blocks, since Kafka
refuses the linked blocks that cramjam writes. Snappy is written as one raw block, and read both raw and in the
framing of the Java library (xerial), which is what the Java client writes.
"""

from __future__ import annotations

import struct
from typing import Any

import cramjam
import lz4.frame
import numpy as np
import numpy.typing as npt

from ottla.errors import Advice, ConfigError
from ottla.wire.batch import Buffer, Codec

Bytes = npt.NDArray[np.uint8]

DEFAULT_LEVELS = {Codec.GZIP: 6, Codec.LZ4: 0, Codec.ZSTD: 3}
_LEVELS = {Codec.GZIP: (1, 9), Codec.LZ4: (0, 16), Codec.ZSTD: (-22, 22)}

_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_SIZE = struct.Struct(">i")
_NO_ROOM = "failed to write whole buffer"
_FIRST_ROOM = 1 << 16


class DecompressionFailed(Exception):
    """Why a batch could not be decompressed. Internal: callers say which batch it was."""


class _NoRoom(Exception):
    """The output is larger than the memory offered for it."""


def parse_codec(name: str | Codec) -> Codec:
    """A codec by its name, as in `compression="zstd"`."""
    if isinstance(name, Codec):
        return name
    try:
        return Codec[name.upper()]
    except (KeyError, AttributeError):
        known = ", ".join(codec.name.lower() for codec in Codec)
        raise ConfigError(f"compression {name!r} is not one of {known}") from None


def check_level(codec: Codec, level: int | None) -> int | None:
    """The level to use, or a `ConfigError` when the codec does not have it."""
    if level is None:
        return DEFAULT_LEVELS.get(codec)
    if codec not in _LEVELS:
        raise ConfigError(f"compression {codec.name.lower()} has no levels, got level {level}")
    lowest, highest = _LEVELS[codec]
    if not lowest <= level <= highest:
        raise ConfigError(f"compression {codec.name.lower()} has levels {lowest} to {highest}, got {level}")
    return level


def compress(codec: Codec, records: Buffer, level: int | None = None) -> Any:
    """The records of a batch, compressed as Kafka expects it; a bytes-like object."""
    if codec is Codec.GZIP:
        return cramjam.gzip.compress(records, level=level)
    if codec is Codec.SNAPPY:
        return cramjam.snappy.compress_raw(records)
    if codec is Codec.LZ4:
        # Content checksums cost time and Kafka has its own; independent blocks are a must.
        return lz4.frame.compress(records, compression_level=level or 0, block_linked=False, store_size=False)
    if codec is Codec.ZSTD:
        return cramjam.zstd.compress(records, level=level)
    return records


class Scratch:
    """A byte area, kept and grown, into which batches are decompressed one after another."""

    __slots__ = ("data", "used")

    def __init__(self) -> None:
        self.data: Bytes = np.empty(0, np.uint8)
        self.used = 0

    def clear(self) -> None:
        """Forget what is in it; the memory stays."""
        self.used = 0

    def view(self) -> Bytes:
        """What was decompressed since `clear`, read-only."""
        data = self.data[: self.used]
        data.flags.writeable = False
        return data

    def append(self, codec: Codec, records: Buffer, limit: int) -> tuple[int, int]:
        """Decompress `records` behind what is there and tell from where to where.

        Raises `DecompressionFailed` when they are damaged or come out larger than `limit` bytes.
        """
        room = min(limit, max(_FIRST_ROOM, 4 * len(records), len(self.data) - self.used))
        while True:
            self._ensure(room)
            try:
                out = self.data[self.used : self.used + room].data
                written = _decompress_into(codec, records, out)
            except _NoRoom:
                if room >= limit:
                    reason = f"decompresses to more than the limit of {limit:,} bytes ({Advice.BATCH_SIZE})"
                    raise DecompressionFailed(reason) from None
                room = min(limit, room * 4)
                continue
            start, self.used = self.used, self.used + written
            return start, self.used

    def _ensure(self, room: int) -> None:
        if self.used + room > len(self.data):
            # At least twice what must be copied, or many small batches would copy it again and again.
            grown = np.empty(max(self.used + room, 2 * self.used), np.uint8)
            grown[: self.used] = self.data[: self.used]
            self.data = grown


def _decompress_into(codec: Codec, records: Buffer, out: memoryview) -> int:
    try:
        if codec is Codec.ZSTD:
            return cramjam.zstd.decompress_into(records, out)
        if codec is Codec.LZ4:
            return cramjam.lz4.decompress_into(records, out)
        if codec is Codec.GZIP:
            return cramjam.gzip.decompress_into(records, out)
        return _unsnap(records, out)
    except cramjam.DecompressionError as error:
        if _NO_ROOM in str(error):
            raise _NoRoom from None
        raise DecompressionFailed(f"{codec.name.lower()} data is damaged: {error}") from error


def _unsnap(records: Buffer, out: memoryview) -> int:
    if bytes(records[: len(_XERIAL)]) != _XERIAL:
        return _unsnap_block(records, out)
    at, written = _XERIAL_HEADER_BYTES, 0
    while at < len(records):
        if at + _SIZE.size > len(records):
            raise DecompressionFailed("snappy framing is cut short")
        (size,) = _SIZE.unpack_from(records, at)
        at += _SIZE.size
        if size <= 0 or size > len(records) - at:
            raise DecompressionFailed(f"snappy framing has a block of {size} bytes where {len(records) - at} are left")
        written += _unsnap_block(records[at : at + size], out[written:])
        at += size
    return written


def _unsnap_block(block: Buffer, out: memoryview) -> int:
    if cramjam.snappy.decompress_raw_len(block) > len(out):
        raise _NoRoom
    return cramjam.snappy.decompress_raw_into(block, out)
