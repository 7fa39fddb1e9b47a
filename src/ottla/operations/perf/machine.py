"""What a performance test ran on: processor, cores, memory, system, how busy it was, and versions of the clients."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("ottla", "numpy", "pyarrow", "cramjam")


def machine() -> dict[str, Any]:
    """Return a description of this machine. What is not known here is left out."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    described: dict[str, Any] = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "usable_cores": usable,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
    try:
        described["memory_bytes"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        described["load_before"] = [round(value, 2) for value in os.getloadavg()]
    except (ValueError, OSError, AttributeError):
        pass
    return described


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or "unknown"


def versions(*others: str) -> dict[str, str]:
    """Return the versions of Python and of what took part."""
    found = {"python": platform.python_version()}
    for package in (*_PACKAGES, *others):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
