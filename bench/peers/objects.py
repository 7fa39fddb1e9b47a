"""The loops that the two object-based clients share: their record classes have the same methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.records import NOW, Case, headers, keys, values

_CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def decode_all(batches: Any) -> int:
    """Walk all batches and make every record; nothing is kept, which is the cheapest way to use them."""
    count = 0
    while batches.has_next():
        batch = batches.next_batch()
        if not batch.validate_crc():
            raise AssertionError("a checksum is wrong")
        for _ in batch:
            count += 1
    return count


def encode_all(case: Case, builder_type: Any) -> Callable[[], list[Any]]:
    """Append every record to builders of `batch_bytes`, as the clients' accumulators do."""
    records = list(zip(keys(case), values(case), strict=True))
    listed = headers(case)

    def new_builder() -> Any:
        return builder_type(
            magic=2,
            compression_type=_CODECS[case.codec],
            is_transactional=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=case.batch_bytes,
        )

    def encode() -> list[Any]:
        built = []
        builder = new_builder()
        append = builder.append
        offset = 0
        for key, value in records:
            if append(offset, NOW, key, value, listed) is None:
                built.append(builder.build())
                builder = new_builder()
                append = builder.append
                offset = 0
                append(offset, NOW, key, value, listed)
            offset += 1
        built.append(builder.build())
        return built

    return encode
