"""Bodies of responses, valid before anything is done to them.

Comes in: a random generator. Goes out: a byte that says which message it is (see `KINDS`) and the message's body;
for control messages, two more bytes name the API and the version.
"""

from __future__ import annotations

import struct
from random import Random

from ottla.wire.primitives import compact_length, compact_string

PRODUCE, FETCH_12, FETCH_13, CONTROL, HEADER = KINDS = range(5)
_TAGS = (b"\x00", b"\x00", b"\x01\x07\x02ab")


def answer(rng: Random) -> bytes:
    """One response."""
    kind = rng.choice(KINDS)
    body = _MAKERS[kind](rng)
    return bytes((kind,)) + body


def _text(rng: Random) -> bytes:
    return compact_string(rng.choice((None, "", "clicks", "ž" * 20, "t" * 130)))


def _array(rng: Random, entries: list[bytes]) -> bytes:
    if not entries and rng.random() < 0.3:
        return b"\x00"
    return compact_length(len(entries)) + b"".join(entries)


def _int64s(rng: Random, count: int) -> bytes:
    return b"".join(struct.pack(">q", rng.choice((-1, 0, 5, 2**40, 2**63 - 1))) for _ in range(count))


def _ends(rng: Random, leader_tag: int) -> bytes:
    """Tagged fields after a partition; the leader's is two int32 and tags."""
    if rng.random() < 0.3:
        return b"\x01" + bytes((leader_tag, 9)) + struct.pack(">iib", 3, 17, 0)
    return rng.choice(_TAGS)


def _produce(rng: Random) -> bytes:
    topics = []
    for _ in range(rng.randrange(3)):
        partitions = []
        for _ in range(rng.randrange(6)):
            errors = [struct.pack(">i", i) + _text(rng) + b"\x00" for i in range(rng.randrange(3))]
            fixed = struct.pack(">ih", rng.randrange(9), rng.choice((0, 6, -1))) + _int64s(rng, 3)
            partitions.append(fixed + _array(rng, errors) + _text(rng) + _ends(rng, 0))
        topics.append(_text(rng) + _array(rng, partitions) + rng.choice(_TAGS))
    return _array(rng, topics) + struct.pack(">i", 0) + rng.choice(_TAGS)


def _fetch(rng: Random, by_id: bool) -> bytes:
    quiet = rng.random() < 0.3  # nothing new anywhere, as in most answers for an idle topic: the smallest there are
    topics = []
    for _ in range(rng.randrange(3)):
        partitions = []
        for _ in range(rng.randrange(6)):
            fixed = struct.pack(">ih", rng.randrange(9), rng.choice((0, 1, -1))) + _int64s(rng, 3)
            if quiet:
                partitions.append(fixed + b"\x00" + struct.pack(">i", -1) + compact_length(0) + b"\x00")
                continue
            aborted = [_int64s(rng, 2) + rng.choice(_TAGS) for _ in range(rng.randrange(3))]
            records = rng.choice((b"\x00", compact_length(0), compact_length(200) + rng.randbytes(200)))
            partitions.append(fixed + _array(rng, aborted) + struct.pack(">i", -1) + records + _ends(rng, 1))
        identity = rng.randbytes(16) if by_id else _text(rng)
        topics.append(identity + _array(rng, partitions) + rng.choice(_TAGS))
    return struct.pack(">ihi", 0, 0, 0) + _array(rng, topics) + rng.choice(_TAGS)


def _control(rng: Random) -> bytes:
    """Mostly small numbers, which are plausible lengths, counts and codes in any message."""
    size = rng.choice((0, 4, 30, 120))
    return rng.randbytes(2) + bytes(rng.choice((0, 0, 0, 1, 2, 3, 5, 65, 255)) for _ in range(size))


_MAKERS = {
    PRODUCE: _produce,
    FETCH_12: lambda rng: _fetch(rng, by_id=False),
    FETCH_13: lambda rng: _fetch(rng, by_id=True),
    CONTROL: _control,
    HEADER: _control,
}
