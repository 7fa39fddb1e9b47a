"""Find the batches of many partitions in one answer, in one pass over their headers.

Comes in: bytes, and a table of spans, one for each partition, in which batches lie one after another. Goes out: a row
for each whole batch whose header is sound, and for each span how many those are and whether it holds nothing else. What
is wrong with one that does is for `wire/batch.py` to say, which knows the same rules.
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

# Columns of what is said of a span: how many batches, whether nothing is wrong, the first offset, the one after the
# last, the last leader epoch, and the attributes that any and that all of them have.
COUNT, IS_SOUND, FIRST, NEXT, EPOCH, ANY, ALL = range(7)
VERDICT_FIELDS = 7

# Places in `state`: where the walk is.
SPAN, POSITION, ROW = range(3)
STATE_FIELDS = 3

# Answers.
DONE = 0
FULL = 1

_HEADER_BYTES, _LENGTH_END, _MAGIC_AT, _MAGIC = 61, 12, 16, 2
_SMALLEST_RECORD = 7
_CODEC_MASK, _HIGHEST_CODEC, _IS_LOG_APPEND = 0x07, 4, 0x08
_END_OF_LOG = 2**63 - 1


@inlined
def _big(data: Any, at: Any, size: Any) -> Any:
    """A signed number of so many bytes, the highest first."""
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
    """A verdict for each span, which must all be zero at first, from where `state` says until the last one ends, or
    there is no room for another batch."""
    while state[SPAN] < len(spans) and state[SPAN] < len(verdicts):
        number = state[SPAN]
        span = spans[number]
        span_start = span[0]
        span_end = span[1]
        verdict = verdicts[number]
        is_sound = 0 <= span_start <= span_end <= len(data)
        at = span_start
        if state[POSITION] > span_start:
            at = state[POSITION]  # where it went on is in a span that was found sound
        while is_sound:
            available = span_end - at
            if available <= _MAGIC_AT:
                break
            length = _big(data, at + 8, 4)
            if int(data[at + _MAGIC_AT]) != _MAGIC or length < _HEADER_BYTES - _LENGTH_END:
                is_sound = False
                break
            if available < _HEADER_BYTES or available < _LENGTH_END + length:
                break  # a partial one at the end
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
