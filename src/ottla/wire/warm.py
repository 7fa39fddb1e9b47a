"""Compile every kernel into numba's on-disk cache: `python -m ottla.wire.warm`.

A cold compile takes a few seconds; run once after installing, it is out of everybody's way.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ottla.wire.batch import Codec, split
from ottla.wire.columns import from_arrow
from ottla.wire.decode import Decoder
from ottla.wire.encode import encode
from ottla.wire.partitioning import OPEN, hash_partitions, murmur2
from ottla.wire.restamp import restamp


def warm() -> None:
    """Route, encode, re-stamp and decode one record of every kind."""
    entries = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns = from_arrow(
        pa.array([b"value", None]),
        key=pa.array([None, b"key"]),
        headers=pa.array([[{"key": "name", "value": b"content"}], None], entries),
        timestamp=pa.array([1, 2], pa.int64()),
    )
    hash_partitions(columns.key, 1, out=np.full(columns.count, OPEN, np.int32))
    murmur2(b"key")
    for codec in (Codec.NONE, Codec.ZSTD):
        for batch in encode(columns, now_ms=0, codec=codec, fingerprint=True):
            restamp(batch.header, producer_id=1, producer_epoch=0, base_sequence=0)
            for _ in Decoder(fingerprint=True).decode(split(bytes(batch))):
                pass


if __name__ == "__main__":
    warm()
