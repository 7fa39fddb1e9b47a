"""Keeps Spark's Python workers from printing a traceback when Spark ends them.

Spark ends workers that were idle for a minute by closing their sockets. A worker notices this when it is about to wait
for the next task and tries to write. With Unix sockets, which `ottla.spark.session` turns on, that is a broken pipe at
once: a traceback for each worker in the middle of a good run.

Workers for tasks come from `ottla.spark.daemon`. Workers that plan queries always come from Spark's own daemon,
whatever the settings say, so source and sink silence the worker that imports them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def silent(serve: Callable[[Any, Any], Any]) -> Callable[[Any, Any], int]:
    """Wrap Spark's `serve`: a worker whose socket was closed exits with code 1 instead of a traceback."""

    def worker(sock: Any, authenticated: Any) -> int:
        try:
            return int(serve(sock, authenticated))
        except BrokenPipeError:
            return 1

    return worker


def silence_this_worker() -> None:
    """Silence the worker that runs this code if Spark's own daemon started it; elsewhere do nothing."""
    main: Any = sys.modules.get("__main__")
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name == "pyspark.daemon" and hasattr(main, "worker"):
        main.worker = silent(main.worker)
