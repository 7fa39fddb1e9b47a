"""The environment of a page: that of a user whose home is empty.

Folders for home, for the state of clusters and of the programs come in, variables go out.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests import quick_java

from ottla.cluster.local import default_cache_dir

_KEPT = ("JAVA_HOME", "LD_LIBRARY_PATH", "PYTHONPATH", "SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS", "TMPDIR")


def environment(home: Path, state: Path, programs: Path = Path(sys.executable).parent) -> dict[str, str]:
    """Return the variables. The home has Kafka's jars, which are not downloaded for each page, and nothing else."""
    caches = home / ".cache"
    caches.mkdir(parents=True)
    jars = Path(os.environ.get("OTTLA_CACHE") or default_cache_dir())
    jars.mkdir(parents=True, exist_ok=True)
    (caches / "ottla").symlink_to(jars)
    return {
        **{name: os.environ[name] for name in _KEPT if name in os.environ},
        **quick_java.variables(),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(home),
        "XDG_CACHE_HOME": str(caches),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local/share"),
        "XDG_STATE_HOME": str(state),
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        # Where programs begin sooner without hypothesis (tests/lean.py), a page's pytest must do without it, too.
        "PYTEST_ADDOPTS": "-p no:hypothesispytest",
        "USER": "reader",
    }
