"""CRC-32C, the checksum of record batches: the compiled function of the package `crc32c`, without the package.

Importing the package looks up its own version and builds a command line, which takes longer than all of `wire`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any

__all__ = ["crc32c"]


def _compiled() -> Callable[..., int]:
    """Return the compiled function, or that of the package where it is built in another way, as in an archive."""
    try:
        return _from_extension()
    except (ImportError, AttributeError):
        from crc32c import crc32c

        return crc32c


def _from_extension() -> Callable[..., int]:
    package = PathFinder.find_spec("crc32c")
    places = None if package is None else package.submodule_search_locations
    extension = PathFinder.find_spec("crc32c._crc32c", places or [])
    if extension is None or extension.loader is None:
        raise ImportError("crc32c has no extension of that name")
    module: Any = module_from_spec(extension)
    extension.loader.exec_module(module)
    function: Callable[..., int] = module.crc32c
    return function


crc32c = _compiled()
"""Return the checksum of some bytes. With the checksum of a first part as second argument, that of both together."""
