"""The compiled loops: record walking, record writing, hashing, checksum arithmetic.

Numba compiles them on first use and keeps the result on disk. They take arrays and numbers, allocate nothing, raise
nothing, release the GIL, and never trust a length they read: a bad one ends the loop with a code and a position.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import config as numba_config
from numba.core.caching import FunctionCache

F = TypeVar("F", bound=Callable[..., Any])

CHECKED = bool(getattr(numba_config, "BOUNDSCHECK", 0))
"""Whether NUMBA_BOUNDSCHECK asks for bounds checks."""

# `_nrt` off: no reference counting inside. Kernels allocate nothing and keep nothing, and counting every array passed
# to an inner function made a record with headers cost 73 instead of 42 ns.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}


def _sources() -> str:
    """A digest of this folder: a kernel is made of several files, and numba's cache looks at one of them."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


_SOURCES = _sources()


class _KernelCache(FunctionCache):
    """Numba's on-disk cache, with a key that changes whenever any part of the kernels does, and for checked ones."""

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return (*super()._index_key(sig, codegen), _SOURCES, CHECKED)  # type: ignore[no-untyped-call]


def kernel(function: F) -> F:
    """Compile without the GIL and keep the machine code in the on-disk cache."""
    compiled = numba.njit(**_OPTIONS)(function)
    if hasattr(compiled, "enable_caching"):  # not when numba is told not to compile at all
        try:
            compiled._cache = _KernelCache(function)  # type: ignore[no-untyped-call]
        except RuntimeError:  # no folder to write to, as in a read-only container: every process compiles for itself
            pass
    return compiled  # type: ignore[no-any-return]


def inlined(function: F) -> F:
    """A part of kernels: compiled into its callers."""
    return numba.njit(**_OPTIONS)(function)  # type: ignore[no-any-return]
