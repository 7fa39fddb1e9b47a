"""Kafka on Spark without a jar: the data source `ottla`, sessions, pipelines.

What needs pyspark is imported when it is first used, so that options can be looked at without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.spark.lag import LagListener
    from ottla.spark.rollups import Rollup, rollup
    from ottla.spark.session import session
    from ottla.spark.source import OttlaSource, register

_HOMES = {
    "LagListener": "ottla.spark.lag",
    "OttlaSource": "ottla.spark.source",
    "Rollup": "ottla.spark.rollups",
    "register": "ottla.spark.source",
    "rollup": "ottla.spark.rollups",
    "session": "ottla.spark.session",
}

__all__ = ["LagListener", "OttlaSource", "Rollup", "register", "rollup", "session"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ottla.spark' has no attribute {name!r}")
    try:
        module = importlib.import_module(home)
    except ModuleNotFoundError as exc:
        if exc.name is not None and exc.name.partition(".")[0] == "pyspark":
            raise ModuleNotFoundError("ottla.spark needs pyspark: install ottla[spark]", name="pyspark") from exc
        raise
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
