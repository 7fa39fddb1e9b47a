"""Makes Arrow columns of pieces of received memory, without an object for each.

Comes in: the memory, and where each piece begins and stops. Goes out: arrays that share nothing with that memory, so
that it can be received into again. Pure.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute  # the producer needs it for headers: not with the first message

from ottla.gateway.receiving.arrivals import readonly
from ottla.wire.kernels.copying import UNFIT, copy_pieces

Numbers = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]
NO_BYTES: Octets = readonly(np.zeros(0, np.uint8))


class Pieces(NamedTuple):
    """Where pieces begin, and their sizes. One that begins at -1 - n lies at n of the constants."""

    starts: Numbers
    sizes: Numbers
    """-1 for a piece that is missing."""


def between(starts: Numbers, stops: Numbers) -> Pieces:
    """Return pieces from where they begin and stop; one that begins below 0 is missing."""
    return Pieces(starts, np.where(starts < 0, -1, stops - starts))


class Constants:
    """Texts that are the same for many rows, in one piece of memory."""

    def __init__(self, texts: list[bytes]) -> None:
        self.data: Octets = readonly(np.frombuffer(b"".join(texts), np.uint8)) if any(texts) else NO_BYTES
        self.sizes = np.array([len(text) for text in texts], np.int64)
        self._starts = np.cumsum(self.sizes) - self.sizes

    def starts(self, *, behind: int = 0) -> Numbers:
        """Return where they begin, as `Pieces` says it, if `behind` bytes lie before them."""
        return np.asarray(-1 - behind - self._starts, np.int64)


def binary(pieces: Pieces, data: Octets, constants: Octets = NO_BYTES) -> pa.Array:
    """Return the pieces as a column; missing ones are null."""
    ends, content, nulls = _copied(pieces, data, constants)
    valid = pa.py_buffer(np.packbits(~nulls, bitorder="little")) if nulls.any() else None
    return pa.Array.from_buffers(pa.large_binary(), len(nulls), [valid, pa.py_buffer(ends), content])


def whole_numbers(numbers: Numbers | npt.NDArray[np.int32]) -> pa.Array:
    """Return numbers as a column. `pa.array` would import pandas first, if there is one."""
    kind = pa.int32() if numbers.dtype == np.int32 else pa.int64()
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])


def listed(counts: Numbers, names: pa.Array, values: pa.Array) -> pa.Array:
    """Return a column of headers: of each row the next `counts` entries."""
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    entries = pa.StructArray.from_arrays([names, values], names=["key", "value"])
    kind = pa.large_list(entries.type)
    return pa.Array.from_buffers(kind, len(counts), [None, pa.py_buffer(ends)], children=[entries])


def _copied(pieces: Pieces, data: Octets, constants: Octets) -> tuple[Numbers, pa.Buffer, npt.NDArray[np.bool_]]:
    """Return where each piece ends in the content, the content, and which ones are missing."""
    nulls = pieces.sizes < 0
    ends = np.zeros(len(pieces.sizes) + 1, np.int64)
    np.cumsum(np.maximum(pieces.sizes, 0), out=ends[1:])
    # Arrow's pool keeps freed pages; fresh pages from the system would cost more than the copy.
    content = pa.allocate_buffer(int(ends[-1]))
    out: Any = np.frombuffer(content, np.uint8) if content.size else np.zeros(0, np.uint8)
    if copy_pieces(data, constants, readonly(pieces.starts), readonly(ends), out) == UNFIT:
        raise ValueError("a piece lies outside its memory")
    return ends, content, nulls
