"""A Spark session with the settings that matter for Ottla, and the data source registered.

A name, a master and Spark settings come in; a session goes out: a new one, or the existing one (in a notebook, under
`spark-submit`), with a warning for settings that can no longer be set. The caller stops it. This module reads Spark's
environment variables and sets PYSPARK_PYTHON if it is not set.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from types import MappingProxyType

from pyspark.sql import SparkSession

from ottla.errors import ConfigError
from ottla.events import Events, Sink
from ottla.spark.lag import LagListener
from ottla.spark.source import register

_log = logging.getLogger(__name__)

_ANY_TIME = {"spark.sql.execution.arrow.pyspark.enabled": "true"}
"""Settings that an existing session accepts."""
_AT_START = {
    # Unix sockets instead of TCP to Python workers: halves the fixed cost of a task.
    "spark.python.unix.domain.socket.enabled": "true",
}
_ON_LOCAL_DISKS = {
    # Saves 50 ms per micro-batch compared with the default (FileContext). Safe if only one machine writes.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
_ON_THIS_MACHINE = {
    # Without it, each worker that was idle for a minute prints a traceback to the program's terminal.
    "spark.python.daemon.module": "ottla.spark.daemon",
}
_NO_SETTINGS: Mapping[str, str | float] = MappingProxyType({})
_INHERITED = ("NUMBA_CACHE_DIR",)
"""Environment variables that executors need from the driver: without the cache they compile every kernel again."""


def session(
    app: str = "ottla",
    *,
    master: str | None = None,
    conf: Mapping[str, str | float] = _NO_SETTINGS,
    events: Events | Sink | None = None,
) -> SparkSession:
    """Get or create a session with the source `ottla`. Raises `ConfigError` if a name in `conf` is not Spark's.

    `app` is the name of a new session. `events` receives an event for every batch of a streaming query and for its lag
    (`LagListener`). `master` defaults to that of `spark-submit` or of the environment, otherwise `local[*]`;
    `sc://host` connects to a Spark Connect server. `conf` has Spark settings, for example `{"spark.driver.memory":
    "4g"}`; they win over those set here.
    """
    given = _checked(conf)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise workers use the first python3 in PATH
    master = master or given.pop("spark.master", None)
    remote = _remote(master)
    local = None if remote else _master(master)
    settings = {**_ANY_TIME, **({} if remote else _at_start(local)), **given}
    existed = remote is not None or SparkSession.getActiveSession() is not None
    spark = _build(app, settings, master=local, remote=remote)
    if existed:
        _warn_unset(spark, settings, remote)
    if remote is not None or not _is_installed():
        register(spark)  # otherwise Spark finds it, and would warn about a second registration
    if events is not None:
        spark.streams.addListener(LagListener(events))
    return spark


def _is_installed() -> bool:
    """Whether workers have Ottla: they run the same interpreter, and Spark finds the source there."""
    return os.environ["PYSPARK_PYTHON"] == sys.executable and find_spec("pyspark_ottla") is not None


def _build(app: str, settings: Mapping[str, str], *, master: str | None, remote: str | None) -> SparkSession:
    builder = SparkSession.builder.appName(app)
    if remote is not None:
        builder = builder.remote(remote)
    elif master is not None:
        builder = builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _checked(conf: Mapping[str, str | float]) -> dict[str, str]:
    for name in conf:
        if not name.startswith("spark."):
            raise ConfigError(
                f"{name} is not a Spark setting: their names begin with spark., as in spark.driver.memory"
            )
    return {name: _text(value) for name, value in conf.items()}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _remote(master: str | None) -> str | None:
    if master is not None:
        return master if master.startswith("sc://") else None
    return os.environ.get("SPARK_REMOTE")


def _master(master: str | None) -> str | None:
    """The master to set; None if it is decided already, by `spark-submit`, the environment or an existing session."""
    if master is not None:
        return master
    # spark-submit has started the JVM by now, and PYSPARK_GATEWAY_PORT is how it says so.
    from_environment = "PYSPARK_GATEWAY_PORT" in os.environ or "MASTER" in os.environ
    return None if from_environment or SparkSession.getActiveSession() is not None else "local[*]"


def _at_start(master: str | None) -> dict[str, str]:
    local: dict[str, str] = {}
    if master is not None and master.startswith("local"):
        local = {**_ON_LOCAL_DISKS, **(_ON_THIS_MACHINE if _is_installed() else {})}
    inherited = {f"spark.executorEnv.{name}": os.environ[name] for name in _INHERITED if name in os.environ}
    return {**_AT_START, **local, **inherited}


def _warn_unset(spark: SparkSession, settings: Mapping[str, str], remote: str | None) -> None:
    """Warn about settings that an existing session did not take, because they are fixed when it starts."""
    core = {} if remote else dict(spark.sparkContext.getConf().getAll())

    def effective(name: str) -> str | None:
        # For settings of the core, the session returns what it was just given, even if that has no effect any more.
        return spark.conf.get(name, None) if remote or name.startswith("spark.sql.") else core.get(name)

    unset = {name: value for name, value in settings.items() if effective(name) != value}
    if unset:
        listed = ", ".join(f"{name}={value}" for name, value in sorted(unset.items()))
        _log.warning("the Spark session runs already, and these can only be set before it starts: %s", listed)
