"""Chooses the engine of a job that runs with one call: threads of this process, tasks of Spark, or any other engine.

The name of an engine or an engine itself comes in, an engine goes out. pyspark is imported only for Spark.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from ottla.engines import local
from ottla.engines.contract import Engine
from ottla.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    EngineChoice: TypeAlias = str | Engine
    """`"local"`, `"spark"`, or an engine."""

_SOME_TASKS = 8
"""Assumed parallelism where it is unknown."""


def choose_engine(
    engine: EngineChoice | None, *, spark: SparkSession | None = None, workers: int | None = None
) -> Engine:
    """Return the engine: `"local"`, `"spark"` with a session, or the given one. None: Spark if a session is given.

    `workers` is the number of threads of the local engine. Raises `ConfigError` for an unknown name, and if a session
    is missing or given to another engine.
    """
    name = engine_name(engine, spark)
    if name == "spark":
        if spark is None:
            raise ConfigError("engine='spark' needs a session: pass spark=...")
        from ottla.engines import spark as on_spark

        return partial(on_spark.run, spark=spark)
    if spark is not None:
        raise ConfigError("spark=... is for engine='spark'")
    if name == "local":
        return partial(local.run, workers=workers)
    if engine is not None and not isinstance(engine, str):
        return engine
    raise ConfigError(f"engine is {engine!r}; accepted are 'local', 'spark' and a function that runs a job over ranges")


def engine_name(engine: EngineChoice | None, spark: SparkSession | None = None) -> str:
    """Return the name of the engine for receipts and reports: `custom` for one that has no name."""
    if engine is None:
        return "local" if spark is None else "spark"
    return engine if isinstance(engine, str) else "custom"


def parallelism(spark: SparkSession | None, workers: int | None = None) -> int:
    """Return how many tasks can run at the same time."""
    if workers is not None:
        return workers
    if spark is None:
        return local.default_workers()
    try:
        return spark.sparkContext.defaultParallelism
    except AttributeError:  # Spark Connect has no SparkContext
        return _SOME_TASKS
