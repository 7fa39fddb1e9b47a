"""The records of these tests: everything that clients are known to disagree about, and text for the console tools."""

from __future__ import annotations

from typing import NamedTuple

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TIME = 1_700_000_000_123


class Sent(NamedTuple):
    """A record that every client can represent; the time is in milliseconds."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    time: int


RECORDS = (
    Sent(b"user-1", b"hello", (("trace", b"\x00\xff"), ("trace", b"again")), TIME),
    Sent(None, b"no key", (), TIME + 333),
    Sent(b"tombstone", None, (), TIME + 1000),
    Sent(b"", b"", (("empty", b""),), TIME + 1001),
    Sent(b"\xff\xfe\x00", bytes(range(256)), (("schlüssel", "schön".encode()), ("鍵", b"\xe9")), TIME - 5),
    Sent(b"large", b"0123456789abcdef" * 5000, (), TIME + 2000),
    *(Sent(b"%d" % i, b"record %d of many" % i, (("n", b"%d" % i),), TIME + 3000 + i) for i in range(300)),
)

# Not every client writes a header without a value, or a record with neither key nor value; all must read them.
UNUSUAL = (
    *RECORDS,
    Sent(None, None, (), TIME + 3999),
    Sent(b"k", b"v", (("null", None), ("null", b""), ("last", b"x")), TIME + 4000),
)

TEXTS = (
    Sent(b"user-1", b"hello", (("trace", b"a"), ("trace", b"b")), TIME),
    Sent(b"user-2", "schöne Grüße".encode(), (("schlüssel", "鍵".encode()),), TIME + 1),
    Sent(None, b"no key", (("only", b"header"),), TIME + 2),
    Sent(b"tombstone", None, (("why", b"gone"),), TIME + 3),
    *(Sent(b"key-%d" % i, b"value-%d" % i, (("n", b"%d" % i),), TIME + 10 + i) for i in range(100)),
)
