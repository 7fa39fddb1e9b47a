"""A Spark session with the settings that matter for Ottla, and the data source registered.

A name, a master and Spark's own settings come in; a session goes out: a new one, or the one there is already (in a
notebook, under `spark-submit`), with a warning for what can no longer be set. Whoever asks for it stops it.
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
"""Can be changed in a session that exists."""
_AT_START = {
    # Data to and from Python workers without TCP: half of the fixed cost of a task.
    "spark.python.unix.domain.socket.enabled": "true",
}
_ON_LOCAL_DISKS = {
    # 50 ms less for each micro-batch than the default, which asks FileContext; safe where one machine writes.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
_ON_THIS_MACHINE = {
    # Without it workers that were idle for a minute each print a traceback to the program's terminal.
    "spark.python.daemon.module": "ottla.spark.daemon",
}
_NOTHING: Mapping[str, str | float] = MappingProxyType({})
_INHERITED = ("NUMBA_CACHE_DIR",)
"""Variables that executors must share with the driver: without the cache they compile every kernel again."""


def session(
    app: str = "ottla",
    *,
    master: str | None = None,
    conf: Mapping[str, str | float] = _NOTHING,
    events: Events | Sink | None = None,
) -> SparkSession:
    """A session with the source `ottla`.

    `events` hears of every batch of a streaming query and of its lag (`LagListener`). `master` is that of
    `spark-submit` or of the environment if there is one, else `local[*]`; `sc://host` connects to a Spark Connect
    server. `conf` are Spark's settings, for example `{"spark.driver.memory": "4g"}`; they win over those set here.
    """
    given = _checked(conf)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers use whatever python3 is first in PATH
    master = master or given.pop("spark.master", None)
    remote = _remote(master)
    local = None if remote else _master(master)
    wanted = {**_ANY_TIME, **({} if remote else _at_start(local)), **given}
    was_there = remote is not None or SparkSession.getActiveSession() is not None
    spark = _built(app, wanted, master=local, remote=remote)
    if was_there:
        _tell_unset(spark, wanted, remote)
    if remote is not None or not _is_installed():
        register(spark)  # else Spark finds it by itself, and would warn that it knows it already
    if events is not None:
        spark.streams.addListener(LagListener(events))
    return spark


def _is_installed() -> bool:
    """Whether workers have Ottla: they run this very interpreter."""
    return os.environ["PYSPARK_PYTHON"] == sys.executable and find_spec("pyspark_ottla") is not None


def _built(app: str, wanted: Mapping[str, str], *, master: str | None, remote: str | None) -> SparkSession:
    builder = SparkSession.builder.appName(app)
    if remote is not None:
        builder = builder.remote(remote)
    elif master is not None:
        builder = builder.master(master)
    for name, value in wanted.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _checked(conf: Mapping[str, str | float]) -> dict[str, str]:
    for name in conf:
        if not name.startswith("spark."):
            raise ConfigError(
                f"{name} is no setting of Spark: their names begin with spark., as in spark.driver.memory"
            )
    return {name: _text(value) for name, value in conf.items()}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _remote(master: str | None) -> str | None:
    if master is not None:
        return master if master.startswith("sc://") else None
    return os.environ.get("SPARK_REMOTE")


def _master(master: str | None) -> str | None:
    """None where somebody else has said it: `spark-submit` has started the JVM by then, or a session is there."""
    if master is not None:
        return master
    said = "PYSPARK_GATEWAY_PORT" in os.environ or "MASTER" in os.environ or SparkSession.getActiveSession() is not None
    return None if said else "local[*]"


def _at_start(master: str | None) -> dict[str, str]:
    local: dict[str, str] = {}
    if master is not None and master.startswith("local"):
        local = {**_ON_LOCAL_DISKS, **(_ON_THIS_MACHINE if _is_installed() else {})}
    inherited = {f"spark.executorEnv.{name}": os.environ[name] for name in _INHERITED if name in os.environ}
    return {**_AT_START, **local, **inherited}


def _tell_unset(spark: SparkSession, wanted: Mapping[str, str], remote: str | None) -> None:
    """A session that was there before keeps what is fixed at its start."""
    core = {} if remote else dict(spark.sparkContext.getConf().getAll())

    def found(name: str) -> str | None:
        # The session would tell what it was just given, also where it has no effect any more.
        return spark.conf.get(name, None) if remote or name.startswith("spark.sql.") else core.get(name)

    unset = {name: value for name, value in wanted.items() if found(name) != value}
    if unset:
        told = ", ".join(f"{name}={value}" for name, value in sorted(unset.items()))
        _log.warning("the Spark session runs already, and these can only be set before it starts: %s", told)
