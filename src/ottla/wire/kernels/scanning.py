"""Finds the batches of many partitions in one response, in one pass over their headers.

Comes in: bytes, and a table of spans, one per partition, with batches one after another. Goes out: a row for each whole
batch with a sound header, and for each span their number and whether it holds nothing else. `wire/batch.py` knows the
same rules and reports what is wrong.
"""

from __future__ import annotations

from typing import Any

from ottla.wire.kernels.calling import inlined, kernel, reads, table, writes
from ottla.wire.kernels.decoding import SEGMENT_FIELDS

# Columns of the batch table: those of the decoder's segments come first.
AT = SEGMENT_FIELDS
ATTRIBUTES, CRC, LEADER_EPOCH = AT + 1, AT + 2, AT + 3
BATCH_FIELDS = AT + 4

# Columns of the spans.
SPAN_FIELDS = 2

# Columns of the verdict on a span: the number of batches, whether nothing is wrong, the first offset, the offset after
# the last, the last leader epoch, the attributes set in any batch, and those set in all.
COUNT, IS_SOUND, FIRST, NEXT, EPOCH, ANY, ALL = range(7)
VERDICT_FIELDS = 7

# Fields of `state`: the position.
SPAN, POSITION, ROW = range(3)
STATE_FIELDS = 3

# Return codes.
DONE = 0
FULL = 1

_HEADER_BYTES, _LENGTH_END, _MAGIC_AT, _MAGIC = 61, 12, 16, 2
_SMALLEST_RECORD = 7
_CODEC_MASK, _HIGHEST_CODEC, _IS_LOG_APPEND = 0x07, 4, 0x08
_END_OF_LOG = 2**63 - 1


@inlined
def _big(data: Any, at: Any, size: Any) -> Any:
    """Read a signed big-endian number of `size` bytes."""
    value = int(data[at])
    if value >= 0x80:
        value -= 0x100
    for i in range(1, size):
        value = value * 256 + int(data[at + i])
    return value


@kernel(
    data=reads("uint8"),
    spans=table("int64", SPAN_FIELDS),
    batches=table("int64", BATCH_FIELDS, written=True),
    verdicts=table("int64", VERDICT_FIELDS, written=True),
    state=writes("int64", STATE_FIELDS),
)
def scan_batches(data: Any, spans: Any, batches: Any, verdicts: Any, state: Any) -> Any:
    """Fill the verdict of each span, from the position in `state` until the last span ends or `batches` is full.

    Verdicts must be zero at first.
    """
    while state[SPAN] < len(spans) and state[SPAN] < len(verdicts):
        number = state[SPAN]
        span = spans[number]
        span_start = span[0]
        span_end = span[1]
        verdict = verdicts[number]
        is_sound = 0 <= span_start <= span_end <= len(data)
        at = span_start
        if state[POSITION] > span_start:
            at = state[POSITION]  # continues in a span that was sound so far
        while is_sound:
            available = span_end - at
            if available <= _MAGIC_AT:
                break
            length = _big(data, at + 8, 4)
            if int(data[at + _MAGIC_AT]) != _MAGIC or length < _HEADER_BYTES - _LENGTH_END:
                is_sound = False
                break
            if available < _HEADER_BYTES or available < _LENGTH_END + length:
                break  # a partial batch at the end
            base_offset = _big(data, at, 8)
            attributes = _big(data, at + 21, 2)
            last_delta = _big(data, at + 23, 4)
            count = _big(data, at + 57, 4)
            codec = attributes & _CODEC_MASK
            if (
                base_offset < verdict[NEXT]
                or last_delta < 0
                or base_offset >= _END_OF_LOG - last_delta
                or count < 0
                or count > last_delta + 1
                or codec > _HIGHEST_CODEC
                or (codec == 0 and count * _SMALLEST_RECORD > length - (_HEADER_BYTES - _LENGTH_END))
            ):
                is_sound = False
                break
            row = state[ROW]
            if row >= len(batches):
                state[POSITION] = at
                return FULL
            batch = batches[row]
            batch[0] = at + _HEADER_BYTES
            batch[1] = at + _LENGTH_END + length
            batch[2] = base_offset
            batch[3] = last_delta
            batch[4] = count
            batch[5] = _big(data, at + 27, 8)
            batch[6] = _big(data, at + 35, 8)
            batch[7] = attributes & _IS_LOG_APPEND
            batch[AT] = at
            batch[ATTRIBUTES] = attributes
            batch[CRC] = _big(data, at + 17, 4) & 0xFFFFFFFF
            batch[LEADER_EPOCH] = _big(data, at + 12, 4)
            if verdict[COUNT] == 0:
                verdict[FIRST] = base_offset
                verdict[ALL] = attributes
            verdict[COUNT] += 1
            verdict[NEXT] = base_offset + last_delta + 1
            verdict[EPOCH] = batch[LEADER_EPOCH]
            verdict[ANY] |= attributes
            verdict[ALL] &= attributes
            state[ROW] = row + 1
            at += _LENGTH_END + length
        verdict[IS_SOUND] = 1 if is_sound else 0
        state[SPAN] = number + 1
        state[POSITION] = 0
    return DONE
