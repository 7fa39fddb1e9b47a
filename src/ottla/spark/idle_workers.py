"""Spark's Python workers, silent when Spark lets them go.

Spark ends workers that had nothing to do for a minute by closing their sockets. They notice when they are about to wait
for the next task, try to say so, and with Unix sockets, which `ottla.spark.session` turns on, that is a broken pipe at
once: a traceback for each of them in the middle of a good run.

Workers of tasks come from `ottla.spark.daemon`. Those that plan queries come from Spark's own daemon whatever its
settings say, so the source and the sink silence the worker that they are loaded in.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def silent(serve: Callable[[Any, Any], Any]) -> Callable[[Any, Any], int]:
    """The exit code of a worker, as Spark's `serve` has it; one whose socket was closed is over."""

    def worker(sock: Any, authenticated: Any) -> int:
        try:
            return int(serve(sock, authenticated))
        except BrokenPipeError:
            return 1

    return worker


def silence_this() -> None:
    """In a worker of Spark's own daemon, lets it end in silence; elsewhere nothing."""
    main: Any = sys.modules.get("__main__")
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name == "pyspark.daemon" and hasattr(main, "worker"):
        main.worker = silent(main.worker)
