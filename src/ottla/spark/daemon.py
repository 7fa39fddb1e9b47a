"""Spark's Python daemon, silent about workers that Spark has let go.

Spark ends workers that had nothing to do for a minute by closing their sockets. They notice when they are about to wait
for the next task, try to say so, and with Unix sockets, which `ottla.spark.session` turns on, that is a broken pipe at
once: a traceback for each of them in the middle of a good run. Spark runs this module in the place of its own
(`spark.python.daemon.module`); it changes nothing but that.
"""

from __future__ import annotations

from typing import Any

from pyspark import daemon

_serve = daemon.worker


def _worker(sock: Any, authenticated: Any) -> int:
    """The exit code of a worker, as Spark's; one whose socket was closed is over."""
    try:
        return int(_serve(sock, authenticated))
    except BrokenPipeError:
        return 1


if __name__ == "__main__":
    daemon.worker = _worker
    daemon.manager()
