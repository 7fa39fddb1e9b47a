"""The compression codecs, framed as Kafka expects them.

Comes in: the records of a batch. Goes out: the same, compressed or decompressed. cramjam handles gzip, snappy and zstd.
The `lz4` package writes lz4 frames, with independent blocks, because Kafka rejects the linked blocks that cramjam
writes. Snappy is written as one raw block. It is read both raw and in the framing of the Java library (xerial), which
the Java client writes.
"""

from __future__ import annotations

import struct
from typing import Any

import cramjam
import lz4.frame

from ottla.wire.batch import Buffer, Codec
from ottla.wire.codecs import DecompressionFailed

_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_SIZE = struct.Struct(">i")
_NO_ROOM = "failed to write whole buffer"


class NoRoom(Exception):
    """The output is larger than the memory offered for it."""


def compress(codec: Codec, records: Buffer, level: int | None = None) -> Any:
    """Compress the records of a batch as Kafka expects them. Returns a bytes-like object."""
    if codec is Codec.GZIP:
        return cramjam.gzip.compress(records, level=level)
    if codec is Codec.SNAPPY:
        return cramjam.snappy.compress_raw(records)
    if codec is Codec.LZ4:
        # Content checksums cost time, and Kafka has its own. Kafka requires independent blocks.
        return lz4.frame.compress(records, compression_level=level or 0, block_linked=False, store_size=False)
    if codec is Codec.ZSTD:
        return cramjam.zstd.compress(records, level=level)
    return records


def decompress_into(codec: Codec, records: Buffer, out: memoryview) -> int:
    """Decompress into `out` and return the number of bytes. Raises `NoRoom` if `out` is too small."""
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
            raise NoRoom from None
        raise DecompressionFailed(f"{codec.name.lower()} data is damaged: {error}") from error


def _unsnap(records: Buffer, out: memoryview) -> int:
    """Decompress snappy, raw or in xerial's framing: a header, then blocks with their lengths."""
    if bytes(records[: len(_XERIAL)]) != _XERIAL:
        return _unsnap_block(records, out)
    position, written = _XERIAL_HEADER_BYTES, 0
    while position < len(records):
        if position + _SIZE.size > len(records):
            raise DecompressionFailed("snappy framing is cut short")
        (size,) = _SIZE.unpack_from(records, position)
        position += _SIZE.size
        if size <= 0 or size > len(records) - position:
            raise DecompressionFailed(
                f"snappy framing has a block of {size} bytes where {len(records) - position} are left"
            )
        written += _unsnap_block(records[position : position + size], out[written:])
        position += size
    return written


def _unsnap_block(block: Buffer, out: memoryview) -> int:
    if cramjam.snappy.decompress_raw_len(block) > len(out):
        raise NoRoom
    return cramjam.snappy.decompress_raw_into(block, out)
