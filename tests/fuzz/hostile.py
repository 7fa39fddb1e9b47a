"""Hand-made hostile batches: each is small and requests something that no reader should do.

Comes in: nothing. Goes out: named byte strings for the tests, and as a list the first inputs of every run.
"""

from __future__ import annotations

import gzip
import struct
from functools import cache

import cramjam
import lz4.frame

from ottla.wire.batch import Codec

from .grammar import sealed, unsigned, xerial, zigzag

BOMB_BYTES = 24 << 20
_NOW = 1_700_000_000_000
_MANY = 60_000


def _number(value: int) -> bytes:
    return unsigned(zigzag(value))


def _record(body: bytes) -> bytes:
    return _number(len(body)) + body


def _plain(delta: int, value: bytes = b"value", headers: bytes = b"\x00") -> bytes:
    return _record(b"\x00\x00" + _number(delta) + b"\x01" + _number(len(value)) + value + headers)


def _batch(
    records: bytes,
    *,
    count: int = 1,
    last_delta: int | None = None,
    codec: Codec = Codec.NONE,
    base_offset: int = 0,
    magic: int = 2,
    attributes: int = 0,
) -> bytes:
    last = count - 1 if last_delta is None else last_delta
    fields = [base_offset, 0, 63, magic, 0, codec | attributes, last, _NOW, _NOW, -1, -1, -1, count]
    return sealed(fields, records)


@cache
def hostile() -> dict[str, bytes]:
    """Name and bytes of each."""
    return {**_lying_headers(), **_lying_records(), **_many_headers(), **_bombs(), **_frames()}


@cache
def hostile_batches() -> list[bytes]:
    """The bytes alone, in the order of their names."""
    return [data for _, data in sorted(hostile().items())]


def _lying_headers() -> dict[str, bytes]:
    record = _plain(0)
    long = struct.pack(">qiib", 0, 2**31 - 1, 0, 2) + b"\x00" * 60
    return {
        "nothing": b"",
        "a-byte": b"\x00",
        "length-beyond-the-end": long,
        "length-negative": struct.pack(">qiib", 0, -1, 0, 2) + b"\x00" * 60,
        "length-of-no-header": struct.pack(">qiib", 0, 5, 0, 2) + b"\x00" * 60,
        "format-0": _batch(record, magic=0),
        "format-1": _batch(record, magic=1),
        "format-3": _batch(record, magic=3),
        "codec-7": _batch(record, attributes=7),
        "count-2147483647": _batch(record, count=2**31 - 1),
        "count-negative": _batch(record, count=-1, last_delta=0),
        "count-too-small": _batch(record + _plain(1), count=1, last_delta=1),
        "count-too-large": _batch(record, count=2, last_delta=1),
        "count-of-zero-with-records": _batch(record, count=0, last_delta=0),
        "last-delta-negative": _batch(record, last_delta=-1),
        "base-offset-negative": _batch(record, base_offset=-1),
        "offsets-beyond-64-bits": _batch(record + _plain(5), count=2, last_delta=5, base_offset=2**63 - 3),
        "control": _batch(record, attributes=0x20),
    }


def _lying_records() -> dict[str, bytes]:
    endless = b"\xff" * 64
    cases = {
        "records-missing": b"\x00" * 7,
        "record-length-negative": _number(-1) + b"\x00" * 10,
        "record-length-huge": _number(2**31 - 1) + b"\x00" * 10,
        "record-length-endless": endless,
        "time-delta-endless": _record(b"\x00" + endless),
        "time-delta-extreme": _record(b"\x00" + _number(2**63 - 1) + b"\x00\x01\x01\x00"),
        "offset-delta-endless": _record(b"\x00\x00" + endless),
        "offset-delta-negative": _record(b"\x00\x00" + _number(-1) + b"\x01\x01\x00"),
        "key-length-huge": _record(b"\x00\x00\x00" + _number(2**31 - 1) + b"\x01\x00\x00"),
        "key-length-very-negative": _record(b"\x00\x00\x00" + _number(-(2**31)) + b"\x01\x00\x00"),
        "value-length-huge": _record(b"\x00\x00\x00\x01" + _number(2**31 - 1) + b"\x00\x00"),
        "value-length-of-one-too-many": _record(b"\x00\x00\x00\x01" + _number(3) + b"ab"),
        "header-count-huge": _record(b"\x00\x00\x00\x01\x01" + _number(2**31 - 1)),
        "header-count-negative": _record(b"\x00\x00\x00\x01\x01" + _number(-1)),
        "header-key-null": _record(b"\x00\x00\x00\x01\x01" + _number(1) + _number(-1) + b"\x00"),
        "header-value-beyond": _record(b"\x00\x00\x00\x01\x01" + _number(1) + b"\x02k" + _number(9) + b"v"),
        "bytes-after-the-headers": _record(b"\x00\x00\x00\x01\x01\x00\x00\x00"),
        "bytes-after-the-records": _plain(0) + b"\x00" * 5,
        "cut-in-a-value": _plain(0, b"v" * 100)[:-50],
    }
    named = {name: _batch(records) for name, records in cases.items()}
    backwards = _plain(1) + _plain(0)
    named["offsets-backwards"] = _batch(backwards, count=2)
    named["offsets-repeated"] = _batch(_plain(0) + _plain(0), count=2)
    named["offset-beyond-the-batch"] = _batch(_plain(0) + _plain(7), count=2)
    return named


def _many_headers() -> dict[str, bytes]:
    """Two bytes each, in a batch below the limit, so that growing for them is exercised, and with text that is none."""
    bad = _plain(0, headers=_number(_MANY) + b"\x02\xff\x01" * _MANY)
    return {"headers-many": record_with_headers(_MANY), "headers-many-not-text": _batch(bad)}


def record_with_headers(count: int) -> bytes:
    """A valid batch of one record with `count` headers, each an empty key and null."""
    return _batch(_plain(0, headers=_number(count) + b"\x00\x01" * count))


def _bombs() -> dict[str, bytes]:
    zeros = bytes(BOMB_BYTES)
    snappy = bytes(cramjam.snappy.compress_raw(zeros))
    packed = {
        "bomb-gzip": (Codec.GZIP, gzip.compress(zeros, 9, mtime=0)),
        "bomb-gzip-members": (Codec.GZIP, gzip.compress(zeros[: 1 << 16], 9, mtime=0) * 300),
        "bomb-zstd": (Codec.ZSTD, bytes(cramjam.zstd.compress(zeros, level=3))),
        "bomb-lz4": (Codec.LZ4, bytes(lz4.frame.compress(zeros))),
        "bomb-snappy": (Codec.SNAPPY, snappy),
        "bomb-snappy-xerial": (Codec.SNAPPY, xerial(zeros, 1 << 16)),
        "snappy-claims-4-gib": (Codec.SNAPPY, unsigned(2**32 - 1) + snappy[4:2000]),
        "snappy-claims-too-much": (Codec.SNAPPY, unsigned(900_000) + b"\x00a"),
        "zstd-window-of-128-mib": (Codec.ZSTD, b"\x28\xb5\x2f\xfd\x00" + bytes([17 << 3]) + b"\x01\x00\x00"),
        "zstd-claims-1-eib": (Codec.ZSTD, b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 60) + b"\x01\x00\x00"),
    }
    return {name: _batch(records, codec=codec) for name, (codec, records) in packed.items()}


def _frames() -> dict[str, bytes]:
    head = xerial(b"", 1)
    many = xerial(b"a" * 30_000, 1)
    named = {
        "xerial-empty": head,
        "xerial-cut-header": head[:9],
        "xerial-block-negative": head + struct.pack(">i", -5) + b"abcde",
        "xerial-block-beyond": head + struct.pack(">i", 2**31 - 1) + b"abcde",
        "xerial-cut-size": head + b"\x00\x00",
        "xerial-30000-blocks": many,
    }
    batches = {name: _batch(records, codec=Codec.SNAPPY) for name, records in named.items()}
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        batches[f"{codec.name.lower()}-of-nothing"] = _batch(b"", codec=codec)
        batches[f"{codec.name.lower()}-of-noise"] = _batch(bytes(range(256)) * 3, codec=codec)
        batches[f"{codec.name.lower()}-count-2147483647"] = _batch(_squeezed(codec), count=2**31 - 1, codec=codec)
    return batches


def _squeezed(codec: Codec) -> bytes:
    records = _plain(0)
    if codec is Codec.GZIP:
        return gzip.compress(records, mtime=0)
    if codec is Codec.LZ4:
        return bytes(lz4.frame.compress(records))
    if codec is Codec.ZSTD:
        return bytes(cramjam.zstd.compress(records, level=1))
    return bytes(cramjam.snappy.compress_raw(records))
