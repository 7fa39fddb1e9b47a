"""Copying the same bytes once, into memory that is already there: what nothing that copies can beat."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from bench.records import Case, values

VERSION = f"numpy {np.__version__}"


def decoding(case: Case, data: bytes) -> Mapping[str, Callable[[], int]]:
    """All bytes of the batches."""
    source = np.frombuffer(data, np.uint8)
    target = np.zeros_like(source)

    def copy() -> int:
        np.copyto(target, source)
        return case.records

    return {"copy": copy}


def encoding(case: Case) -> Mapping[str, Callable[[], memoryview]]:
    """All bytes of the values."""
    source = np.frombuffer(b"".join(values(case)), np.uint8)
    target = np.zeros_like(source)

    def copy() -> memoryview:
        np.copyto(target, source)
        return target.data

    return {"copy": copy}
