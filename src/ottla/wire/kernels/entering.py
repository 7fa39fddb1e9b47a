"""The entry of a kernel: a function that CPython calls like a builtin, with the arguments as objects.

Comes in: a `Kernel` and numba's dispatcher for it. Goes out: an intrinsic for `compiling`. It is called with an object
that holds the addresses of the known objects (`layout.known`), the address of the arguments, and their number. It
returns a new number; None, having touched nothing, if an argument does not match its declaration; and NULL if CPython
has an error to raise, for something that is not a 64-bit number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types as untyped_types
from numba.core import cgutils as untyped_cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array as untyped_populate_array

from ottla.wire.kernels import layout
from ottla.wire.kernels.calling import BYTES, ITEMS, NUMBER, Array, Kernel

types: Any = untyped_types
cgutils: Any = untyped_cgutils
populate_array: Any = untyped_populate_array
_intrinsic: Any = intrinsic

_WORD, _HALF = ir.IntType(64), ir.IntType(32)
_WORD_BYTES = 8


def entering(kernel: Kernel, dispatcher: Any) -> Any:
    """Return the entry of a kernel, to be called in compiled code."""
    kinds = tuple(kernel.kinds.values())

    @_intrinsic  # type: ignore[untyped-decorator]
    def enter(typing_context: Any, known: Any, arguments: Any, count: Any) -> Any:
        callee = types.Dispatcher(dispatcher)
        signature: Any = callee.get_call_type(typing_context, tuple(map(_numba_type, kinds)), {})

        def generate(context: Any, builder: Any, _: Any, given: Any) -> Any:
            reading = _Reading(context, builder, layout.known(kinds), given[0])
            values = reading.values(kinds, given[1], given[2])
            thread = None if kernel.keeps_gil else reading.call("PyEval_SaveThread")
            result = context.get_function(callee, signature)(builder, values)
            if thread is not None:
                reading.call("PyEval_RestoreThread", thread)
            number = context.cast(builder, result, signature.return_type, types.int64)
            return reading.end(reading.call("PyLong_FromLongLong", number))

        return types.int64(types.int64, types.int64, types.int64), generate

    return enter


def _numba_type(kind: Any) -> Any:
    """Return numba's type of a declared parameter. Lists are seen as arrays of addresses."""
    if kind is NUMBER:
        return types.int64
    if kind is BYTES:
        return types.Array(types.uint8, 1, "C", readonly=True)
    if kind is ITEMS:
        return types.Array(types.int64, 1, "C", readonly=True)
    if isinstance(kind, Array):
        return types.Array(getattr(types, kind.dtype), kind.dimensions, "C", readonly=not kind.written)
    return types.NamedTuple([_numba_type(inner) for inner in kind], type(kind))


class _Reading:
    """Generates the code that reads the arguments in order and stops at the first that does not match."""

    def __init__(self, context: Any, builder: Any, known: list[Any], holder: Any) -> None:
        self._context = context
        self._builder = builder
        self._known = known
        self._holder = holder
        self._answer = cgutils.alloca_once(builder, _WORD)
        self._refused = builder.append_basic_block("refused")
        self._failed = builder.append_basic_block("failed")
        self._done = builder.append_basic_block("done")

    def values(self, kinds: tuple[Any, ...], arguments: Any, count: Any) -> list[Any]:
        """Return the values to call the kernel with."""
        self._require(self._same(count, _WORD(len(kinds))))
        objects = [self._word(arguments, i * _WORD_BYTES) for i in range(len(kinds))]
        # Numbers first: reading one may run Python code, which must not change an array that was already read.
        numbers = {i: self._number(objects[i]) for i, kind in enumerate(kinds) if kind is NUMBER}
        return [numbers[i] if i in numbers else self._value(kind, objects[i]) for i, kind in enumerate(kinds)]

    def end(self, answer: Any) -> Any:
        """Return the result of the entry: the answer, None if refused, or NULL if CPython has an error."""
        builder = self._builder
        self._end_with(answer)
        builder.position_at_end(self._refused)
        none = self._identity(None)
        self.call("Py_IncRef", none)
        self._end_with(none)
        builder.position_at_end(self._failed)
        self._end_with(_WORD(0))
        builder.position_at_end(self._done)
        return builder.load(self._answer)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of CPython. All its arguments and its result are words."""
        kind = ir.FunctionType(_WORD, [_WORD] * len(arguments))
        return self._builder.call(cgutils.get_or_insert_function(self._builder.module, kind, name), arguments)

    def _end_with(self, answer: Any) -> None:
        """Store the result and jump to the end."""
        self._builder.store(answer, self._answer)
        self._builder.branch(self._done)

    def _value(self, kind: Any, owner: Any) -> Any:
        """Read an argument that is not a number. Named tuples are read field by field."""
        if kind is BYTES:
            self._require(self._same(self._word(owner, layout.TYPE), self._identity(bytes)))
            start = self._builder.add(owner, _WORD(layout.CONTENT))
            return self._array(kind, start, [self._word(owner, layout.SIZE)])
        if kind is ITEMS:
            self._require(self._same(self._word(owner, layout.TYPE), self._identity(list)))
            return self._array(kind, self._word(owner, layout.LIST_ITEMS), [self._word(owner, layout.SIZE)])
        if isinstance(kind, Array):
            return self._checked_array(kind, owner)
        self._require(self._same(self._word(owner, layout.TYPE), self._identity(type(kind))))
        self._require(self._same(self._word(owner, layout.SIZE), _WORD(len(kind))))
        items = [self._word(owner, layout.TUPLE_ITEMS + i * _WORD_BYTES) for i in range(len(kind))]
        inner = [self._value(field, item) for field, item in zip(kind, items, strict=True)]
        return self._context.make_tuple(self._builder, _numba_type(kind), inner)

    def _checked_array(self, kind: Array, owner: Any) -> Any:
        """Read a numpy array after comparing its type, dtype, dimensions, flags and size."""
        flags = layout.IN_ONE_PIECE | layout.ALIGNED | (layout.WRITEABLE if kind.written else 0)
        self._require(self._same(self._word(owner, layout.TYPE), self._identity(np.ndarray)))
        self._require(self._same(self._word(owner, layout.DTYPE), self._identity(np.dtype(kind.dtype))))
        self._require(self._same(self._half(owner, layout.DIMENSIONS), _HALF(kind.dimensions)))
        self._require(self._same(self._builder.and_(self._half(owner, layout.FLAGS), _HALF(flags)), _HALF(flags)))
        dimensions = self._word(owner, layout.SHAPE)
        shape = [self._word(dimensions, i * _WORD_BYTES) for i in range(kind.dimensions)]
        relation = ">=" if kind.dimensions == 1 else "=="
        self._require(self._builder.icmp_signed(relation, shape[-1], _WORD(kind.least)))
        return self._array(kind, self._word(owner, layout.DATA), shape)

    def _array(self, kind: Any, start: Any, shape: list[Any]) -> Any:
        """Build numba's view of an array from its address and shape."""
        builder = self._builder
        array_type = _numba_type(kind)
        item_size = _WORD(array_type.dtype.bitwidth // 8)
        strides = [item_size]
        for length in reversed(shape[1:]):
            strides.insert(0, builder.mul(length, strides[0]))
        array = self._context.make_array(array_type)(self._context, builder)
        populate_array(
            array,
            data=builder.inttoptr(start, array.data.type),
            shape=cgutils.pack_array(builder, shape),
            strides=cgutils.pack_array(builder, strides),
            itemsize=item_size,
            meminfo=None,
        )
        return array._getvalue()

    def _number(self, owner: Any) -> Any:
        """Read a Python int. -1 may be a value or an error, so CPython is asked which."""
        builder = self._builder
        number = self.call("PyLong_AsLongLong", owner)
        with builder.if_then(self._same(number, _WORD(-1)), likely=False):
            self._go_on_if(self._same(self.call("PyErr_Occurred"), _WORD(0)), self._failed)
        return number

    def _identity(self, known: Any) -> Any:
        """Return the address of a known object, from the holder."""
        index = next(i for i, candidate in enumerate(self._known) if candidate is known)
        return self._word(self._holder, layout.CONTENT + index * _WORD_BYTES)

    def _require(self, condition: Any) -> None:
        """Continue only if the condition holds; otherwise the caller gets None and tries `Kernel._retry`."""
        self._go_on_if(condition, self._refused)

    def _go_on_if(self, condition: Any, otherwise: Any) -> None:
        following = self._builder.append_basic_block()
        self._builder.cbranch(condition, following, otherwise)
        self._builder.position_at_end(following)

    def _same(self, a: Any, b: Any) -> Any:
        return self._builder.icmp_signed("==", a, b)

    def _word(self, address: Any, place: int) -> Any:
        """Load 64 bits at a distance from an address."""
        return self._read(address, place, _WORD)

    def _half(self, address: Any, place: int) -> Any:
        """Load 32 bits at a distance from an address."""
        return self._read(address, place, _HALF)

    def _read(self, address: Any, place: int, kind: Any) -> Any:
        pointer = self._builder.inttoptr(self._builder.add(address, _WORD(place)), kind.as_pointer())
        return self._builder.load(pointer, typ=kind)
