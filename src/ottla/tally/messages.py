"""The form of tallies in the audit topic: a key that compaction goes by, and a JSON value that any tool can read.

Values come in, pairs of bytes go out, and back. What is in an audit topic was written by others: anything that is not a
tally raises `InputError`, and readers count it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from ottla.errors import InputError
from ottla.tally.values import AuditMessage, RangeTally, SessionPage, Slice

MOST_BUCKETS = 2_000
"""How many buckets one message has at most: about 300 kB, below what brokers accept."""
_decoder: msgspec.json.Decoder[AuditMessage] = msgspec.json.Decoder(AuditMessage)
_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class Message:
    """A record of the audit topic."""

    key: bytes
    value: bytes


def to_messages(tally: AuditMessage) -> Iterator[Message]:
    """Return a tally as records. A range with many buckets takes several."""
    if isinstance(tally, SessionPage):
        yield Message(key_of(tally), _encoder.encode(tally))
        return
    chunks = [tally.buckets[i : i + MOST_BUCKETS] for i in range(0, len(tally.buckets), MOST_BUCKETS)] or [()]
    for number, chunk in enumerate(chunks):
        part = msgspec.structs.replace(tally, part=number, parts=len(chunks), buckets=chunk)
        yield Message(key_of(part), _encoder.encode(part))


def from_message(value: bytes) -> AuditMessage:
    """Return the tally of a record's value. Raises `InputError` if it is none."""
    try:
        tally = _decoder.decode(value)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: not UTF-8
        raise InputError(f"not a tally: {error}") from error
    if isinstance(tally, RangeTally) and not (tally.start <= tally.stop and tally.part < tally.parts):
        raise InputError(f"not a tally: offsets {tally.start} to {tally.stop}, part {tally.part} of {tally.parts}")
    if any(not _is_sound(piece, tally.bucket_seconds) for piece in tally.buckets):
        raise InputError("not a tally: a bucket does not begin at a multiple of its length, or has no finite times")
    return tally


def key_of(tally: AuditMessage) -> bytes:
    """Return the key of a tally: what replaces it has the same one."""
    if isinstance(tally, SessionPage):
        fields: list[str | int] = ["session", tally.session, tally.topic, tally.page]
    else:
        fields = ["range", tally.tier, tally.topic, tally.topic_id, tally.partition, tally.start, tally.part]
    return json.dumps(fields, separators=(",", ":")).encode()


def _is_sound(piece: Slice, seconds: int) -> bool:
    return piece.start % seconds == 0 and abs(piece.first) < 1e16 and abs(piece.last) < 1e16  # False for NaN, too
