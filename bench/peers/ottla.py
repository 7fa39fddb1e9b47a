"""Ottla's wire room: batches to Arrow columns; Arrow columns and lists to batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import metadata

import pyarrow as pa

from bench.records import NOW, Case, headers, keys, values
from ottla.wire.batch import split
from ottla.wire.codecs import parse_codec
from ottla.wire.columns import Columns, from_arrow, from_list
from ottla.wire.decode import COLUMNS, Decoder
from ottla.wire.encode import BatchLimits, NewBatch, encode

VERSION = f"ottla {metadata.version('ottla')}"

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def decoding(case: Case, data: bytes) -> Mapping[str, Callable[[], int]]:
    """All eight columns of Spark's Kafka source, and key and value alone; checksums compared, one thread."""
    return {
        "all columns": _decoding(COLUMNS, data),
        "key and value": _decoding(("key", "value"), data),
        "all columns and fingerprint": _decoding(COLUMNS, data, fingerprint=True),
    }


def _decoding(columns: Sequence[str], data: bytes, **settings: bool) -> Callable[[], int]:
    decoder = Decoder(columns, **settings)
    return lambda: sum(chunk.rows for chunk in decoder.decode(split(data), topic="bench"))


def encoding(case: Case) -> Mapping[str, Callable[[], list[NewBatch]]]:
    """From Arrow columns, and from a Python list of bytes (or pairs); headers only come in Arrow."""
    arrow = _arrow(case)
    calls = {
        "arrow": lambda: _batches(case, from_arrow(**arrow)),
        "arrow and fingerprint": lambda: _batches(case, from_arrow(**arrow), fingerprint=True),
    }
    if case.shape == "value":
        listed = values(case)
        calls["list"] = lambda: _batches(case, from_list(listed))
    if case.codec == "lz4":  # aiokafka always compresses at this level, we at 0 unless told otherwise
        calls["arrow, level 9"] = lambda: _batches(case, from_arrow(**arrow), level=9)
    return calls


def batches(case: Case) -> bytes:
    """All records of a case in batches, for everybody to decode."""
    return b"".join(bytes(batch) for batch in _batches(case, from_arrow(**_arrow(case))))


def _batches(case: Case, columns: Columns, *, fingerprint: bool = False, level: int | None = None) -> list[NewBatch]:
    limits = BatchLimits(max_bytes=case.batch_bytes)
    codec = parse_codec(case.codec)
    return list(encode(columns, now_ms=NOW, codec=codec, level=level, limits=limits, fingerprint=fingerprint))


def _arrow(case: Case) -> dict[str, pa.Array]:
    columns = {"value": pa.array(values(case), pa.binary())}
    if case.shape == "full":
        entries = [{"key": key, "value": value} for key, value in headers(case)]
        columns["key"] = pa.array(keys(case), pa.binary())
        columns["headers"] = pa.array([entries] * case.records, _HEADERS)
    return columns
