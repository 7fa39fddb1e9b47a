"""Runs Kafka's own command-line tools (console clients, perf tools, DumpLogSegments) from the same pinned jars.

A Java class and its arguments come in; its output goes out. For comparisons in tests and benchmarks.
"""

from __future__ import annotations

import os
import subprocess
from os import PathLike
from pathlib import Path

from ottla.cluster.jars import ensure_jars
from ottla.cluster.java import find_java
from ottla.cluster.local import default_cache_dir
from ottla.cluster.nodes import Java
from ottla.cluster.pinned import DEFAULT_VERSION
from ottla.errors import LocalClusterError

_QUIET = ("-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")


def run_tool(
    main: str,
    *arguments: str,
    stdin: bytes = b"",
    version: str = DEFAULT_VERSION,
    cache_dir: str | PathLike[str] | None = None,
    timeout: float = 60.0,
) -> bytes:
    """Return what the class printed, as for `run_tool("org.apache.kafka.tools.DumpLogSegments", "--files", path)`.

    Raises `LocalClusterError` if it fails or takes longer than `timeout` seconds.
    """
    jars = ensure_jars(version, Path(cache_dir) if cache_dir is not None else default_cache_dir())
    java = Java(find_java(os.environ), jars, os.environ)
    try:
        result = subprocess.run(  # noqa: S603
            java.command(main, *arguments, options=_QUIET),
            env=java.variables(),
            input=stdin,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise LocalClusterError(f"{main} failed: {exc}") from exc
    if result.returncode != 0:
        output = (result.stderr or result.stdout).decode(errors="replace")[-4000:]
        raise LocalClusterError(f"{main} exited with {result.returncode}:\n{output}")
    return result.stdout
