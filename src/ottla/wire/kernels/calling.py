"""What a kernel is to its callers: a function of arrays and numbers, whose machine code is loaded at the first call.

A loop is a plain function that declares its parameters (`kernel`) and may use others (`inlined`). Both stay Python
until they are called: this module must not import numba or llvmlite. `loading` finds the machine code, and has
`compiling` make it if there is none yet.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

F = TypeVar("F", bound=Callable[..., Any])


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").strip() not in ("", "0")


INTERPRETED = _is_set("NUMBA_DISABLE_JIT")
"""Whether kernels run as Python."""
CHECKED = not INTERPRETED and _is_set("NUMBA_BOUNDSCHECK")
"""Whether kernels check bounds. Stored machine code cannot raise, so numba itself runs them then."""


def sources() -> str:
    """Return a digest of this folder, because a kernel spans several files; "" if they are in an archive."""
    digest = hashlib.sha256()
    folder = os.path.dirname(__file__)
    names = sorted(name for name in os.listdir(folder) if name.endswith(".py")) if os.path.isdir(folder) else []
    for name in names:
        with open(os.path.join(folder, name), "rb") as file:
            digest.update(name.encode() + file.read())
    return digest.hexdigest() if names else ""


SOURCES = sources()
"""The sources at import: they may be replaced while the process runs."""


class Array(NamedTuple):
    """A contiguous array. `least` is its minimum number of entries, or for two dimensions its number of columns."""

    dtype: str
    written: bool
    least: int = 0
    dimensions: int = 1


NUMBER = "a number of 64 bits"
BYTES = "bytes"
ITEMS = "a list"
"""The kernel sees the addresses of the items, as an array of 64-bit numbers."""


def reads(dtype: str) -> Array:
    """An array that a kernel reads."""
    return Array(dtype, written=False)


def writes(dtype: str, least: int = 0) -> Array:
    """An array that a kernel writes, with at least `least` entries."""
    return Array(dtype, written=True, least=least)


def table(dtype: str, columns: int, *, written: bool = False) -> Array:
    """An array of rows with this number of columns."""
    return Array(dtype, written, columns, dimensions=2)


PARTS: list[Callable[..., Any]] = []
"""The functions that kernels are made of."""


class Kernel:
    """A compiled loop, called like its function.

    `kinds` declares its parameters: an `Array`, `NUMBER`, `BYTES`, `ITEMS`, or a named tuple of these.
    """

    def __init__(self, function: Callable[..., Any], kinds: dict[str, Any], *, keeps_gil: bool = False) -> None:
        if tuple(kinds) != function.__code__.co_varnames[: function.__code__.co_argcount]:
            raise TypeError(f"the parameters of {function.__name__} do not match its declaration")
        functools.update_wrapper(self, function)
        self.function = function
        self.name = function.__name__
        self.kinds = kinds
        self.keeps_gil = keeps_gil
        self._enter: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        result = (self._enter or self._load())(*arguments)
        return self._retry(arguments) if result is None else result

    def _load(self) -> Callable[..., Any]:
        # Several threads may get here first and each load it: the functions are the same.
        from ottla.wire.kernels.loading import entry

        self._enter = enter = entry(self)
        return enter

    def _retry(self, arguments: tuple[Any, ...]) -> Any:
        """Call it again with the same content in a form that the machine code accepts, or raise `TypeError`."""
        if len(arguments) != len(self.kinds):
            raise TypeError(f"{self.name} takes {len(self.kinds)} arguments, not {len(arguments)}")
        usable = [_usable(name, *pair) for name, *pair in zip(self.kinds, self.kinds.values(), arguments, strict=True)]
        assert self._enter is not None
        result = self._enter(*usable)
        if result is None:
            raise TypeError(f"{self.name} does not take these arguments")
        return result


KERNELS: list[Kernel] = []
"""All kernels of the modules imported so far."""


def _usable(name: str, kind: Any, argument: Any) -> Any:
    """Return an argument in a form that the machine code accepts, or raise `TypeError`."""
    if kind is NUMBER:
        return argument
    if kind is BYTES:
        if not isinstance(argument, bytes):
            raise TypeError(f"{name} is {_named(argument)}, expected bytes")
        return bytes(argument)
    if kind is ITEMS:
        if not isinstance(argument, list):
            raise TypeError(f"{name} is {_named(argument)}, expected a list")
        return list(argument)
    if isinstance(kind, Array):
        return _usable_array(name, kind, argument)
    if type(argument) is not type(kind):
        raise TypeError(f"{name} is {_named(argument)}, expected {type(kind).__name__}")
    fields = zip(kind._fields, kind, argument, strict=True)
    return kind._make(_usable(f"{name}.{field}", inner, value) for field, inner, value in fields)


def _usable_array(name: str, kind: Array, argument: Any) -> Any:
    """Return the array in a form that the machine code accepts.

    Machine code compares types by identity, so an equal dtype object or a subclass needs a view. An unaligned array
    that is only read is copied.
    """
    if not isinstance(argument, np.ndarray):
        raise TypeError(f"{name} is {_named(argument)}, expected an array")
    if argument.dtype != kind.dtype or argument.ndim != kind.dimensions:
        has = f"{argument.ndim} dimensions of {argument.dtype}"
        raise TypeError(f"{name} has {has}, expected {kind.dimensions} of {kind.dtype}")
    if not argument.flags.c_contiguous:
        raise TypeError(f"{name} is not in one piece")
    if kind.written and not argument.flags.writeable:
        raise TypeError(f"{name} is read-only, and would be written to")
    if argument.shape[-1] < kind.least or (kind.dimensions > 1 and argument.shape[-1] != kind.least):
        raise TypeError(f"{name} has {argument.shape[-1]} entries, expected {kind.least}")
    plain = argument.view(np.ndarray).view(np.dtype(kind.dtype))
    if plain.flags.aligned:
        return plain
    if kind.written:
        raise TypeError(f"{name} does not lie where {kind.dtype} may")
    return plain.copy()


def _named(argument: Any) -> str:
    return f"of type {type(argument).__name__}"


def kernel(*, keeps_gil: bool = False, **kinds: Any) -> Callable[[F], F]:
    """Make a kernel of a function. `kinds` declares its parameters."""

    def make(function: F) -> F:
        if INTERPRETED:
            return function
        KERNELS.append(Kernel(function, kinds, keeps_gil=keeps_gil))
        return KERNELS[-1]  # type: ignore[return-value]

    return make


def inlined(function: F) -> F:
    """Register a function that is compiled into the kernels that call it."""
    PARTS.append(function)
    return function
