"""aiokafka's record classes (compiled with Cython): batches to Python objects and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder, _DefaultRecordBatchBuilderPy
from aiokafka.record.memory_records import MemoryRecords

from bench.peers.objects import decode_all, encode_all
from bench.records import Case

if DefaultRecordBatchBuilder is _DefaultRecordBatchBuilderPy:
    raise ImportError("aiokafka runs without its compiled part, which would not be a fair comparison")

VERSION = f"aiokafka {metadata.version('aiokafka')}, compiled"


def decoding(case: Case, data: bytes) -> Mapping[str, Callable[[], int]]:
    """One object for each record, with checksums compared; less than its consumer does."""
    return {"objects": lambda: decode_all(MemoryRecords(data))}


def encoding(case: Case) -> Mapping[str, Callable[[], list[Any]]]:
    """One `append` for each record and one `build` for each batch; less than its producer does."""
    return {"objects": encode_all(case, DefaultRecordBatchBuilder)}
