"""Compiles every kernel and stores it on disk: `python -m ottla.wire.warm`.

This takes several seconds and needs numba. Run it once after installing.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ottla.wire.batch import Codec, split
from ottla.wire.columns import from_arrow, from_list
from ottla.wire.decode import Decoder
from ottla.wire.draft import Draft
from ottla.wire.encode import BatchLimits, encode
from ottla.wire.kernels import datagrams, framing, loading, syslog
from ottla.wire.kernels.calling import KERNELS
from ottla.wire.kernels.copying import copy_pieces
from ottla.wire.measure import Measurer
from ottla.wire.partitioning import OPEN, hash_partitions, murmur2
from ottla.wire.restamp import restamp
from ottla.wire.scan import scan
from ottla.wire.slots import Slots


def warm() -> None:
    """Route, encode, restamp and decode one record of every kind."""
    entries = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns = from_arrow(
        pa.array([b"value", None]),
        key=pa.array([None, b"key"]),
        headers=pa.array([[{"key": "name", "value": b"content"}], None], entries),
        timestamp=pa.array([1, 2], pa.int64()),
    )
    from_list([b"value", None])
    Draft(BatchLimits(), bucket_ms=1).append(columns, start=0, stop=columns.count, now_ms=0)
    numbers = np.zeros(1, np.int64)
    # Kernels are compiled for read-only input.
    numbers.flags.writeable = False
    Slots(1).append(columns, limits=BatchLimits(), rows=numbers, edges=numbers, partitions=numbers[:0], now_ms=0)
    hash_partitions(columns.key, 1, out=np.full(columns.count, OPEN, np.int32))
    murmur2(b"key")
    for codec in (Codec.NONE, Codec.ZSTD):
        for batch in encode(columns, now_ms=0, codec=codec, fingerprint=True):
            restamp(batch.header, producer_id=1, producer_epoch=0, base_sequence=0)
            data = bytes(batch)
            scan(memoryview(data), [(0, len(data))])
            for _ in Decoder(fingerprint=True).decode(split(data)):
                pass
            Measurer(1).measure(split(data))
    _warm_gateway()


def _warm_gateway() -> None:
    """Cut, read and copy nothing at all."""
    data, numbers = np.zeros(0, np.uint8), np.zeros(1, np.int64)
    spans, clock = np.zeros((0, framing.SPAN_FIELDS), np.int64), np.zeros(syslog.CLOCK_FIELDS, np.int64)
    messages = np.zeros((0, datagrams.ROW_FIELDS), np.int64)
    for array in (data, numbers, clock):
        array.flags.writeable = False
    state = np.zeros(framing.STATE_FIELDS, np.int64)
    framing.frame_syslog(data, framing.DETECT, 1, spans, state)
    framing.frame_sized(data, 1, 1, spans, state)
    syslog.parse_syslog(data, spans, clock, np.zeros((0, syslog.ROW_FIELDS), np.int64))
    datagrams.read_datagrams(data, spans, messages, np.zeros((0, datagrams.TOPIC_FIELDS), np.int64), state)
    datagrams.find_headers(data, messages, np.zeros((0, 4), np.int64))
    copy_pieces(data, data, numbers[:0], numbers, np.zeros(0, np.uint8))


def main() -> None:
    """Fill the cache. Exits with an error if a kernel is missing afterwards."""
    warm()
    lost = [kernel.name for kernel in KERNELS if loading.is_possible() and loading.stored(kernel) is None]
    if lost:
        folders = " or ".join(map(str, loading.folders()))
        raise SystemExit(
            f"error: {', '.join(lost)} could not be stored in {folders}: every process will compile them again. "
            "Set NUMBA_CACHE_DIR to a folder that only you can write to"
        )


if __name__ == "__main__":
    main()
