"""Compiles kernels to machine code with numba. Only this module needs numba; it is imported if the cache has no code.

Comes in: a `Kernel`. Goes out: an `Image` whose entry CPython calls like a builtin function, or numba's dispatcher if
bounds are checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numba
from numba import types
from numba.core import config as untyped_config
from numba.core.caching import FunctionCache
from numba.core.codegen import get_host_cpu_features as untyped_host_features
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import register_jitable

from ottla.wire.kernels import twins  # noqa: F401  # registers them with numba
from ottla.wire.kernels.calling import CHECKED, PARTS, SOURCES, Kernel
from ottla.wire.kernels.entering import entering
from ottla.wire.kernels.linking import Image, link

_config: Any = untyped_config
_host_features: Any = untyped_host_features
_lock: Any = global_compiler_lock

# `_nrt` off: no reference counting inside. Kernels allocate nothing and keep nothing, and counting every array passed
# to an inner function made a record with headers cost 73 ns instead of 42.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
_INSIDE = _OPTIONS | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""For functions that only compiled code calls."""

_prepared: set[Callable[..., Any]] = set()
_images: dict[str, Image] = {}


def compiled(kernel: Kernel) -> Image:
    """Return the machine code of a kernel."""
    with _lock:  # only one of two threads compiles
        if kernel.name not in _images:
            _prepare()
            _images[kernel.name] = _image(kernel)
        return _images[kernel.name]


class _KernelCache(FunctionCache):
    """Numba's own cache, with a key that also covers the sources of all kernels and whether bounds are checked."""

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return (*super()._index_key(sig, codegen), SOURCES, CHECKED)  # type: ignore[no-untyped-call]


def dispatcher(kernel: Kernel) -> Callable[..., Any]:
    """Return the kernel as numba runs it, stored in numba's own cache."""
    with _lock:
        _prepare()
        dispatch: Any = numba.njit(**_OPTIONS | {"nogil": not kernel.keeps_gil})(kernel.function)
        try:
            dispatch._cache = _KernelCache(kernel.function)  # type: ignore[no-untyped-call]
        except RuntimeError:  # no writable folder, as in a read-only container: every process compiles for itself
            pass
    return dispatch  # type: ignore[no-any-return]


def _prepare() -> None:
    """Register the functions that kernels are made of with numba."""
    for part in PARTS:
        if part not in _prepared:
            register_jitable(**_INSIDE)(part)
            _prepared.add(part)


def _image(kernel: Kernel) -> Image:
    """Compile a kernel with its entry to one object file, and link it."""
    enter = entering(kernel, numba.njit(**_INSIDE)(kernel.function))

    @numba.cfunc(types.int64(types.int64, types.int64, types.int64), **_OPTIONS)
    def entry(known: Any, arguments: Any, count: Any) -> Any:
        return enter(known, arguments, count)

    module = llvm.parse_assembly(entry.inspect_llvm())
    # As internal symbols, the optimizer removes what numba adds for errors and its own caches.
    for defined in (*module.functions, *module.global_variables):
        if not defined.is_declaration and defined.name != entry.native_name:
            defined.linkage = "internal"
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=_config.CPU_NAME or llvm.get_host_cpu_name(),
        features=_host_features() if _config.CPU_FEATURES is None else _config.CPU_FEATURES,
        opt=3,
        reloc="pic",
        codemodel="small",
    )
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(module, passes)
    return link(machine.emit_object(module), entry.native_name)
