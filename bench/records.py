"""The records that the wire benchmark encodes and decodes: the same bytes for every peer.

A case says what they look like; its values are made from a fixed seed, so that each process can make them again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

NOW = 1_700_000_000_000
_WORDS = [b"click", b"view", b"order", b"refund", b"login", b"logout", b"search", b"scroll", b"share", b"error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One workload. `shape` is `value` (nothing but a value) or `full` (also a key of 8 bytes and two headers)."""

    record_bytes: int
    codec: str
    batch_bytes: int
    shape: str
    records: int

    @property
    def name(self) -> str:
        """In words, for the table."""
        extra = "" if self.shape == "value" else ", key and 2 headers"
        return f"{self.record_bytes:,} B, {self.codec}, batches of {self.batch_bytes // 1000:,} kB{extra}"


def values(case: Case) -> list[bytes]:
    """Values of exactly `record_bytes`: text with some structure, which compresses about as events do."""
    chance = random.Random(case.record_bytes)
    texts = []
    for i in range(case.records):
        text = b'{"id":%d,"user":%d,"at":%d' % (i, chance.randrange(10**6), NOW + i)
        while len(text) < case.record_bytes - 1:
            text += b',"%b":%d' % (_WORDS[chance.randrange(10)], chance.randrange(10**5))
        texts.append(text[: case.record_bytes - 1] + b"}")
    return texts


def keys(case: Case) -> list[bytes | None]:
    """A key for each record, or None."""
    if case.shape == "value":
        return [None] * case.records
    return [b"%08d" % (i * 7919 % 10**8) for i in range(case.records)]


def headers(case: Case) -> list[tuple[str, bytes]]:
    """The headers of each record."""
    return [] if case.shape == "value" else [("trace", b"0123456789abcdef"), ("source", b"edge-7")]
