"""The compiled versions of the functions in `memory`.

They do not check bounds, their callers do. With numba's bounds checks on, they check as well.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils as untyped_cgutils
from numba.extending import intrinsic, overload

from ottla.wire.kernels.calling import CHECKED
from ottla.wire.kernels.memory import copy, copy_from, load, product, word_at

cgutils: Any = untyped_cgutils
_intrinsic: Any = intrinsic  # called inside compiled code without the typing context it is declared with


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, at: Any) -> Any:
    """Return a pointer to an item of an array of bytes."""
    data = context.make_array(array_type)(context, builder, array).data
    return cgutils.pointer_add(builder, data, at)


@_intrinsic  # type: ignore[untyped-decorator]
def _copy(typing_context: Any, out: Any, to: Any, data: Any, start: Any, count: Any) -> Any:
    """Emit a memcpy between two arrays."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = _pointer(context, builder, signature.args[0], args[0], args[1])
        source = _pointer(context, builder, signature.args[2], args[2], args[3])
        cgutils.raw_memcpy(builder, target, source, args[4], 1)
        return context.get_dummy_value()

    return types.void(out, types.intp, data, types.intp, types.intp), generate


@_intrinsic  # type: ignore[untyped-decorator]
def _load(typing_context: Any, data: Any, at: Any) -> Any:
    """Emit an unaligned 64-bit load."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source = _pointer(context, builder, signature.args[0], args[0], args[1])
        word = builder.bitcast(source, ir.IntType(64).as_pointer())
        loaded = builder.load(word, typ=ir.IntType(64)) if _opaque_pointers() else builder.load(word)
        loaded.align = 1
        return loaded

    return types.uint64(data, types.intp), generate


@_intrinsic  # type: ignore[untyped-decorator]
def _copy_from(typing_context: Any, out: Any, to: Any, address: Any, count: Any) -> Any:
    """Emit a memcpy from an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = _pointer(context, builder, signature.args[0], args[0], args[1])
        source = builder.inttoptr(args[2], ir.IntType(8).as_pointer())
        cgutils.raw_memcpy(builder, target, source, args[3], 1)
        return context.get_dummy_value()

    return types.void(out, types.intp, types.intp, types.intp), generate


@_intrinsic  # type: ignore[untyped-decorator]
def _word_at(typing_context: Any, address: Any) -> Any:
    """Emit a 64-bit load from an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load(word, typ=ir.IntType(64)) if _opaque_pointers() else builder.load(word)

    return types.int64(types.intp), generate


def _opaque_pointers() -> bool:
    """Whether llvmlite has opaque pointers, which must be told the type to load."""
    return not hasattr(ir.IntType(8).as_pointer(), "pointee")


@_intrinsic  # type: ignore[untyped-decorator]
def _product(typing_context: Any, a: Any, b: Any) -> Any:
    """Emit a 128-bit multiplication, folded to 64 bits."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        full = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        high = builder.trunc(builder.lshr(full, ir.Constant(wide, 64)), ir.IntType(64))
        folded = builder.xor(builder.trunc(full, ir.IntType(64)), high)
        return builder.xor(folded, builder.xor(args[0], args[1]))

    return types.uint64(types.uint64, types.uint64), generate


@overload(copy, inline="always")
def _compiled_copy(out: Any, to: Any, data: Any, start: Any, count: Any) -> Any:
    if CHECKED:

        def checked(out: Any, to: Any, data: Any, start: Any, count: Any) -> Any:
            if to < 0 or start < 0 or count < 0 or to + count > out.size or start + count > data.size:
                raise IndexError("copy outside its buffers")
            _copy(out, np.intp(to), data, np.intp(start), np.intp(count))

        return checked

    def plain(out: Any, to: Any, data: Any, start: Any, count: Any) -> Any:
        _copy(out, np.intp(to), data, np.intp(start), np.intp(count))

    return plain


@overload(load, inline="always")
def _compiled_load(data: Any, at: Any) -> Any:
    if CHECKED:

        def checked(data: Any, at: Any) -> Any:
            if at < 0 or at + 8 > data.size:
                raise IndexError("load outside its buffer")
            return _load(data, np.intp(at))

        return checked

    def plain(data: Any, at: Any) -> Any:
        return _load(data, np.intp(at))

    return plain


@overload(copy_from, inline="always")
def _compiled_copy_from(out: Any, to: Any, address: Any, count: Any) -> Any:
    if CHECKED:

        def checked(out: Any, to: Any, address: Any, count: Any) -> Any:
            if to < 0 or count < 0 or to + count > out.size:
                raise IndexError("copy outside its buffer")
            _copy_from(out, np.intp(to), np.intp(address), np.intp(count))

        return checked

    def plain(out: Any, to: Any, address: Any, count: Any) -> Any:
        _copy_from(out, np.intp(to), np.intp(address), np.intp(count))

    return plain


@overload(word_at, inline="always")
def _compiled_word_at(address: Any) -> Any:
    def plain(address: Any) -> Any:
        return _word_at(np.intp(address))

    return plain


@overload(product, inline="always")
def _compiled_product(a: Any, b: Any) -> Any:
    def plain(a: Any, b: Any) -> Any:
        return _product(np.uint64(a), np.uint64(b))

    return plain
