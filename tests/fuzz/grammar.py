"""Record batches that lie: built field by field, where any length, count, delta or varint may be another one.

Comes in: a random generator. Goes out: the bytes of one batch with a checksum that is right, so that the fault
is found where it is and not by the checksum. Nothing here mutates finished bytes; see `inputs` for that.
"""

from __future__ import annotations

import struct
from random import Random

import cramjam
import crc32c
import lz4.frame

from ottla.wire.batch import CRC_START, HEADER, HEADER_BYTES, LENGTH_END, Codec

_SMALL = (0, 1, -1, 2, -2, 3, 5, 7, 15, 63, 64, -64, -65, 127, 128, 255, 8191, 8192, 65535)
_LARGE = (2**20, 2**27, 2**31 - 1, -(2**31), 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, -(2**63))
_LATE = (9_223_372_036_854_775, -9_223_372_036_854_776, 18_446_744_073_709_551)  # milliseconds at the edge of 64 bits
EDGES = (*_SMALL, *_LARGE, *_LATE)
_BASE_OFFSETS = (0, 0, 1, 1000, 2**31 - 1, 2**40, 2**62, 2**63 - 2**31, 2**63 - 3, 2**63 - 1)
_TIMES = (0, 1, -1, 1_700_000_000_000, 9_223_372_036_854_775, -9_223_372_036_854_775, 2**63 - 1, -(2**63))
_TEXTS = (b"", b"a", b"id", b"trace", "ž".encode(), b"\xff\xfe", b"content-type")
_XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)


def zigzag(value: int) -> int:
    """The unsigned number that a signed one is written as; 70 bits at most, as ten bytes can hold."""
    return ((value << 1) ^ (value >> 80)) & ((1 << 70) - 1)


def unsigned(raw: int, padding: int = 0) -> bytes:
    """A varint, with `padding` more bytes than it needs."""
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    for _ in range(padding):
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


class Liar:
    """Writes numbers, and now and then another number: `rate` is how often, from 0 to 1."""

    def __init__(self, rng: Random, rate: float) -> None:
        self.rng = rng
        self.rate = rate

    def lies(self) -> bool:
        return self.rate > 0 and self.rng.random() < self.rate

    def twisted(self, value: int) -> int:
        rng = self.rng
        kind = rng.randrange(6)
        if kind < 2:
            return value + rng.choice((-1, 1, -2, 2, 7))
        if kind == 2:
            return -value
        if kind == 3:
            return rng.getrandbits(rng.choice((7, 14, 31, 63)))
        return rng.choice(EDGES)

    def number(self, value: int) -> bytes:
        """A varint as records use it."""
        if not self.lies():
            if -64 <= value < 64:
                return bytes(((value << 1) ^ (value >> 7),))
            return unsigned(zigzag(value))
        if self.rng.random() < 0.2:
            return unsigned(zigzag(value), self.rng.choice((1, 2, 3, 4, 5, 9, 12)))
        if self.rng.random() < 0.1:
            return b"\xff" * self.rng.choice((1, 4, 5, 9, 10, 11, 40))
        return unsigned(zigzag(self.twisted(value)))

    def payload(self, content: bytes | None) -> bytes:
        """A length and what it counts."""
        return self.number(-1) if content is None else self.number(len(content)) + content


def _content(rng: Random) -> bytes | None:
    kind = rng.random()
    if kind < 0.15:
        return None
    if kind < 0.3:
        return b""
    size = rng.randrange(40) if kind < 0.97 else rng.choice((63, 64, 127, 128, 300, 8191, 8192))
    return rng.getrandbits(8 * size).to_bytes(size, "big") if size <= 40 else b"x" * size


def _headers(liar: Liar) -> bytes:
    rng = liar.rng
    if rng.random() < 0.6:
        return liar.number(0)
    count = rng.randrange(1, 5) if rng.random() < 0.95 else rng.randrange(5, 90)
    parts = [liar.number(count)]
    for _ in range(count):
        # Of every length up to two words: the last value is what lies at the end of the input.
        parts.append(liar.payload(rng.choice(_TEXTS)))
        parts.append(liar.payload(None if rng.random() < 0.2 else rng.randbytes(rng.randrange(19))))
    return b"".join(parts)


def _cut(rng: Random, body: bytes) -> bytes:
    """The beginning of a record; half of the time it ends within a number."""
    size = rng.randrange(len(body) + 1)
    return body[:size] if size == 0 or rng.random() < 0.5 else body[: size - 1] + bytes((body[size - 1] | 0x80,))


def record(liar: Liar, delta: int) -> bytes:
    """One record at `delta` from the base offset."""
    rng = liar.rng
    time_delta = rng.randrange(-3, 2000) if rng.random() < 0.9 else rng.choice(EDGES)
    body = (
        bytes((0 if rng.random() < 0.9 else rng.randrange(256),))
        + liar.number(time_delta)
        + liar.number(delta)
        + liar.payload(_content(rng))
        + liar.payload(_content(rng))
        + _headers(liar)
    )
    if liar.lies():
        body = _cut(rng, body) if rng.random() < 0.7 else body + b"\x00" * rng.randrange(1, 4)
    return liar.number(len(body)) + body


def compressed(rng: Random, codec: Codec, records: bytes) -> bytes:
    """Records as a producer of any make would compress them."""
    if codec is Codec.GZIP:
        return bytes(cramjam.gzip.compress(records, level=1))
    if codec is Codec.ZSTD:
        return bytes(cramjam.zstd.compress(records, level=1))
    if codec is Codec.LZ4:
        linked = rng.random() < 0.3
        return bytes(lz4.frame.compress(records, block_linked=linked, content_checksum=rng.random() < 0.3))
    if codec is Codec.SNAPPY:
        if rng.random() < 0.5:
            return bytes(cramjam.snappy.compress_raw(records))
        return xerial(records, rng.choice((5, 100, 32768)))
    return records


def xerial(records: bytes, block_bytes: int) -> bytes:
    """Snappy in the framing of the Java library."""
    out = bytearray(_XERIAL_HEADER)
    for start in range(0, len(records), block_bytes):
        block = bytes(cramjam.snappy.compress_raw(records[start : start + block_bytes]))
        out += struct.pack(">i", len(block)) + block
    return bytes(out)


def sealed(fields: list[int], records: bytes) -> bytes:
    """A batch from the fields of its header (length and checksum are put right) and its records."""
    fields[1] = HEADER_BYTES - LENGTH_END + len(records)
    fields[4] = 0
    head = HEADER.pack(*fields)
    fields[4] = crc32c.crc32c(records, crc32c.crc32c(head[CRC_START:]))
    return HEADER.pack(*fields) + records


def resealed(batch: bytes) -> bytes:
    """The same bytes with a length, a magic byte and a checksum that fit; at least a header is needed."""
    fields = list(HEADER.unpack_from(batch))
    fields[3] = 2
    return sealed(fields, batch[HEADER_BYTES:])


def _fits(value: int, bits: int) -> int:
    half = 1 << (bits - 1)
    return (value + half) % (1 << bits) - half


def selection(rng: Random) -> int:
    """A leader epoch. Decoding ignores it, so the harness takes from it what to ask for: see `drive.Question`."""
    epoch = rng.getrandbits(24)
    if rng.random() < 0.5:
        epoch |= 63
    if rng.random() < 0.6:
        epoch &= ~0xC0
    return epoch


def batch(rng: Random, rate: float, codec: Codec = Codec.NONE) -> bytes:
    """One batch; with a rate of 0 it is valid but for times and offsets that may be extreme."""
    liar = Liar(rng, rate)
    parts, delta = [], -1
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3, 4, 6, 9))):
        delta += 1 if rng.random() < 0.9 else rng.choice((2, 3, 100, 70_000))
        parts.append(record(liar, delta))
    records = b"".join(parts)
    if liar.lies():
        records = records[: -rng.randrange(1, 9)] if rng.random() < 0.5 else records + b"\x00" * rng.randrange(1, 9)
    count, last_delta = len(parts), max(delta, 0)
    if liar.lies():
        count = _fits(liar.twisted(count), 32)
    if liar.lies():
        last_delta = _fits(liar.twisted(last_delta), 32)
    attributes = int(codec) | (rng.choice((0x08, 0x10, 0x18)) if rng.random() < 0.2 else 0)
    if rng.random() < 0.02:
        attributes = _fits(rng.getrandbits(16), 16)
    fields = [rng.choice(_BASE_OFFSETS[:5] if rng.random() < 0.9 else _BASE_OFFSETS), 0, selection(rng), 2, 0]
    fields += [attributes, last_delta, _time(rng), _time(rng), -1, -1, -1, count]
    return sealed(fields, compressed(rng, codec, records))


def _time(rng: Random) -> int:
    return 1_700_000_000_000 if rng.random() < 0.85 else rng.choice(_TIMES)
