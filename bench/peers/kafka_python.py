"""kafka-python's record classes (pure Python): batches to Python objects and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

from kafka import codec as codecs
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from bench.peers import Unavailable
from bench.peers.objects import decode_all, encode_all
from bench.records import Case

VERSION = f"kafka-python {metadata.version('kafka-python')}"

_CODECS = {"none": lambda: True, "lz4": codecs.has_lz4, "zstd": codecs.has_zstd}


def decoding(case: Case, data: bytes) -> Mapping[str, Callable[[], int]]:
    """One object for each record, with checksums compared; less than its consumer does."""
    _require(case)
    return {"objects": lambda: decode_all(MemoryRecords(data))}


def encoding(case: Case) -> Mapping[str, Callable[[], list[Any]]]:
    """One `append` for each record and one `build` for each batch; less than its producer does."""
    _require(case)
    return {"objects": encode_all(case, DefaultRecordBatchBuilder)}


def _require(case: Case) -> None:
    if not _CODECS[case.codec]():
        raise Unavailable(f"kafka-python needs another package for {case.codec}")
