"""The compiled loops: record walking, record writing, hashing, checksum arithmetic.

Numba compiles them on first use and keeps the result on disk. They take arrays and numbers, allocate nothing, raise
nothing, release the GIL, and never trust a length they read: a bad one ends the loop with a code and a position.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])


# `_nrt` off: no reference counting inside. Kernels allocate nothing and keep nothing, and counting every array passed
# to an inner function cost more than reading the record did (120 against 15 ns).
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}


def kernel(function: F) -> F:
    """Compile without the GIL and keep the machine code in the on-disk cache."""
    return numba.njit(cache=True, **_OPTIONS)(function)  # type: ignore[no-any-return]


def inlined(function: F) -> F:
    """A part of kernels: compiled into its callers."""
    return numba.njit(**_OPTIONS)(function)  # type: ignore[no-any-return]
