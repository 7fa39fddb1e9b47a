"""Stores the machine code of kernels on disk, and loads it without numba.

Comes in: a `Kernel`. Goes out: a function. The name of its file covers everything the code depends on: the source of
the kernels, the versions of the compiler, the processor. A damaged file, or one that someone other than this user or
root could have written, is ignored. Then, or without a file, the kernel is compiled.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import mmap
import os
import stat
import struct
from collections.abc import Callable
from importlib.util import find_spec
from itertools import takewhile
from typing import Any

from ottla.wire.kernels import layout, notices
from ottla.wire.kernels.calling import CHECKED, INTERPRETED, SOURCES, Kernel, sources
from ottla.wire.kernels.linking import Image, NotLinkable

_MAGIC = b"ottla kernel\n"
_MOST_BYTES = 1 << 24
_READABLE = 0o644
_ARGUMENTS_AS_ARRAY = 0x80  # METH_FASTCALL
_SETTINGS = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_ENABLE_AVX", "NUMBA_OPT")
"""Environment variables that change what numba makes."""


def entry(kernel: Kernel) -> Callable[..., Any]:
    """Return the compiled kernel: from the cache, or compiled now and stored if possible."""
    if is_possible():
        image = stored(kernel)
        if image is not None:
            return _function(kernel, image)
        notices.compiling(kernel.function.__module__)
        from ottla.wire.kernels.compiling import compiled

        try:
            image = compiled(kernel)
        except NotLinkable:
            pass  # an unknown compiler version that generates something else
        else:
            _store(kernel, image)
            return _function(kernel, image)
    from ottla.wire.kernels.compiling import dispatcher

    return dispatcher(kernel)


def is_possible() -> bool:
    """Whether kernels can run without numba: not with bounds checks, and not on other systems."""
    return not CHECKED and not INTERPRETED and layout.is_known()


def stored(kernel: Kernel) -> Image | None:
    """Return the kernel from a cache folder, if one has it."""
    key = _key(kernel)
    for folder in folders() if key else ():
        content = _trusted_content(folder, _file_name(kernel, key))
        image = None if content is None else _unpacked(content, key)
        if image is not None:
            return image
    return None


def _store(kernel: Kernel, image: Image) -> None:
    """Store it in the first folder that accepts it. Without one, every process compiles for itself."""
    key = _key(kernel)
    for folder in folders() if key else ():
        try:
            os.makedirs(folder, exist_ok=True)
            if not _is_safe(os.stat(folder), folder=True):
                continue
            _write(folder, _file_name(kernel, key), _packed(image, key))
        except OSError:
            continue
        return


def folders() -> list[str]:
    """Return numba's cache folders: the configured one, or next to the source, or the user's own."""
    configured = os.environ.get("NUMBA_CACHE_DIR")
    if configured:
        return [configured]
    user_cache = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    beside = os.path.join(os.path.dirname(__file__), "__pycache__")
    return [beside, *([os.path.join(user_cache, "ottla")] if os.path.isabs(user_cache) else [])]


def _file_name(kernel: Kernel, key: str) -> str:
    return f"{kernel.name}-{key}.kernel"


def _key(kernel: Kernel) -> str:
    """Identify this kernel on this processor; "" if not everything that matters is known."""
    compiler = _compiler()
    # The sources changed: what is on disk is not, or not all of it, what was imported.
    if not compiler or not SOURCES or sources() != SOURCES:
        return ""
    return hashlib.sha256(f"{kernel.name} {SOURCES} {compiler}".encode()).hexdigest()[:32]


@functools.cache
def _compiler() -> str:
    """Return a digest of what machine code depends on besides its source."""
    try:
        parts = [*map(_version, ("numba", "llvmlite")), _processor(), str(layout.TUPLE_ITEMS)]
    except OSError:
        return ""
    return hashlib.sha256("\0".join([*parts, *(os.environ.get(name, "") for name in _SETTINGS)]).encode()).hexdigest()


def _version(package: str) -> str:
    """Return what identifies a version, without importing the package."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"the package {package} is not installed")
    with open(os.path.join(os.path.dirname(spec.origin), "_version.py"), encoding="utf-8") as file:
        return file.read()


def _processor() -> str:
    """Return the instructions that exist, of the first processor: the others have the same."""
    fields = ("vendor_id", "cpu family", "model", "flags")
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        first = takewhile(str.strip, lines)  # an empty line ends it
        return "".join(line for line in first if line.partition(":")[0].strip() in fields)


def _is_safe(status: os.stat_result, *, folder: bool = False) -> bool:
    """Whether only this user and root can have put something there."""
    if status.st_uid not in (os.geteuid(), 0):
        return False
    if folder:  # files in it have their own owners and modes
        return not status.st_mode & stat.S_IWOTH or bool(status.st_mode & stat.S_ISVTX)
    return stat.S_ISREG(status.st_mode) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _trusted_content(folder: str, name: str) -> bytes | None:
    try:
        if not _is_safe(os.stat(folder), folder=True):
            return None
        path = os.path.join(folder, name)
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe in its place must not block
        with os.fdopen(handle, "rb") as file:
            return file.read(_MOST_BYTES) if _is_safe(os.fstat(handle)) else None
    except OSError:
        return None


def _write(folder: str, name: str, content: bytes) -> None:
    """Write a file whole or not at all, even if other processes do the same."""
    import tempfile  # only needed to compile a kernel, which takes far longer

    handle, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), _READABLE)  # every user may read what root compiled
        os.replace(temporary, os.path.join(folder, name))
    except BaseException:
        os.unlink(temporary)
        raise


def _packed(image: Image, key: str) -> bytes:
    """Return the content of a cache file: magic, digest, the places as text, the code."""
    places = " ".join(f"{name}={place}" for name, place in image.places.items())
    content = places.encode() + b"\n" + image.code
    return _MAGIC + _seal(content, key) + content


def _unpacked(stored_content: bytes, key: str) -> Image | None:
    """Parse a cache file; None if it is damaged or belongs to another key."""
    magic, seal = stored_content[: len(_MAGIC)], stored_content[len(_MAGIC) :][:32]
    content = stored_content[len(_MAGIC) + len(seal) :]
    if magic != _MAGIC or seal != _seal(content, key):
        return None
    places, _, code = content.partition(b"\n")
    pairs = (pair.split("=") for pair in places.decode().split())
    return Image(code, {name: int(place) for name, place in pairs})


def _seal(content: bytes, key: str) -> bytes:
    """Return the digest that ties the content to its key."""
    return hashlib.sha256(key.encode() + content).digest()


class _Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_kept: list[Any] = []
"""What functions refer to, never freed."""
# The interpreter looks at functions until its very end, after it has cleared all modules.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))


def _function(kernel: Kernel, image: Image) -> Callable[..., Any]:
    """Return a builtin function whose code is the image."""
    known = layout.known(kernel.kinds.values())
    holder = struct.pack(f"{len(known)}P", *map(id, known))
    method = _Method(kernel.name.encode(), _mapped(image) + image.places["entry"], _ARGUMENTS_AS_ARRAY, None)
    _kept.append((known, method))
    prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    function: Callable[..., Any] = prototype(_address_of("PyCFunction_NewEx"))(ctypes.addressof(method), holder, None)
    return function


def _mapped(image: Image) -> int:
    """Map the image and return its address. It stays mapped: a thread may be in it until the process ends."""
    # The code calls external functions through slots that hold their addresses.
    code = bytearray(image.code)
    for name, place in image.places.items():
        if name != "entry":
            struct.pack_into("P", code, place, _address_of(name))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    size, writing = ctypes.c_size_t(len(code)), mmap.PROT_READ | mmap.PROT_WRITE
    start = libc.mmap(None, size, writing, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, ctypes.c_long(0))
    if start in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "no memory for machine code")
    ctypes.memmove(start, bytes(code), len(code))
    # Never writable and executable at the same time: hardened systems forbid it.
    if libc.mprotect(ctypes.c_void_p(start), size, mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "the system does not allow machine code that is not from a file")
    return int(start)


def _address_of(symbol: str) -> int:
    return ctypes.cast(getattr(ctypes.pythonapi, symbol), ctypes.c_void_p).value or 0
