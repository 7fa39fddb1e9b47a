"""One input through the surface that the rest of Ottla uses: the errors promised, nothing else, within bounds.

Comes in: bytes of batches or of a response. Goes out: nothing, or `Broken` with what did not hold. Any other exception
propagates, and the worker reports it.
"""

from __future__ import annotations

import pyarrow as pa

from ottla.errors import CorruptBatch, UnsupportedFormat, WireError
from ottla.wire import messages
from ottla.wire.batch import split
from ottla.wire.decode import COLUMNS, Decoder
from ottla.wire.fetch import fetch_response
from ottla.wire.produce import produce_response

from . import answers
from .drive import END_OF_LOG, LIMIT_BYTES, Broken, Question
from .inputs import ENCODE

# Four byte columns and the rows of one chunk of at most two limits, the headers four times over, and some air.
POOL_LIMIT_BYTES = 128 << 20
_CHUNKS = (100, 1000, LIMIT_BYTES)


def decode(data: bytes) -> int:
    """Decode a run of batches as a reader does; returns how many records came out."""
    if data.startswith(ENCODE):
        return 0
    choice = data[15] if len(data) > 15 else 0
    columns = [name for i, name in enumerate(COLUMNS) if choice & 0xC0 == 0 or choice >> i & 1]
    decoder = Decoder(
        columns,
        fingerprint=bool(choice & 1),
        max_batch_bytes=LIMIT_BYTES,
        chunk_bytes=_CHUNKS[choice % 3],
    )
    rows = 0
    try:
        batches = list(split(data))
        start, stop = Question.of(batches[0])[1:] if batches else (0, 1)
        whole = stop == END_OF_LOG and start == 0
        for decoded in decoder.decode(batches, topic="t", partition=1, start=start, stop=stop):
            decoded.records.validate(full=True)
            rows += decoded.records.num_rows
        _check_rows(rows, [b.header.count for b in batches if not b.header.is_control], whole=whole)
    except CorruptBatch as error:
        _check_error(error, len(data))
    except UnsupportedFormat as error:
        _check_text(error)
    _check_memory()
    return rows


def answer(data: bytes) -> bool:
    """Read a response; tells whether it could be read."""
    if not data:
        return False
    body = memoryview(data)[1:]
    try:
        _READERS[data[0] % len(_READERS)](body)
    except WireError as error:
        _check_text(error)
        return False
    return True


def _control(body: memoryview) -> None:
    if len(body) >= 2:
        messages.decode_response(body[0] % 75, body[1] % 14, body[2:])


def _header(body: memoryview) -> None:
    if len(body) >= 2:
        messages.split_response(body[0] % 75, body[1] % 14, body[2:])


def _produce(body: memoryview) -> None:
    produce_response(body)


_READERS = {
    answers.PRODUCE: _produce,
    answers.FETCH_12: lambda body: fetch_response(body, version=12),
    answers.FETCH_13: lambda body: fetch_response(body, version=13),
    answers.CONTROL: _control,
    answers.HEADER: _header,
}


def _check_rows(rows: int, counts: list[int], *, whole: bool) -> None:
    """Nothing is left out silently: without a range, every record that the headers count is there."""
    if rows > sum(counts) or (whole and rows != sum(counts)):
        raise Broken(f"{rows} rows came out, the headers say {sum(counts)}")


def _check_error(error: CorruptBatch, size: int) -> None:
    _check_text(error)
    limit = LIMIT_BYTES if error.in_records else size
    if not 0 <= error.position <= limit:
        raise Broken(f"position {error.position} is outside: {error}")


def _check_text(error: WireError) -> None:
    if len(str(error)) < 10:
        raise Broken(f"an error without an explanation: {error!r}")


def _check_memory() -> None:
    peak = pa.default_memory_pool().max_memory()
    if peak > POOL_LIMIT_BYTES:
        raise Broken(f"{peak} bytes of columns at once, from a batch of at most {LIMIT_BYTES}")
