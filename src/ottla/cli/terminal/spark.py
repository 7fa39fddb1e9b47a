"""A Spark session for a command: quiet on the terminal, and stopped at the end. pyspark is imported here only."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING

from ottla._lazy import EXTRAS
from ottla.cli.errors import CommandFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NOTHING: Mapping[str, str] = MappingProxyType({})
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def spark_session(app: str, master: str | None, conf: Mapping[str, str] = _NOTHING) -> Iterator[SparkSession]:
    """Run a session while the block runs. The command keeps its signal handlers: Spark would replace that of Ctrl-C."""
    try:
        from ottla.spark.sessions import session
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRAS["spark"]:
            raise
        raise CommandFailed("this command needs Spark: pip install 'ottla[spark]'") from error
    logs = resources.files(__package__) / "log4j2.properties"
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    with resources.as_file(logs) as file:
        spark = session(app, master=master, conf={**_quiet(f"-Dlog4j2.configurationFile={file}"), **conf})
        for number, handler in before.items():
            signal.signal(number, handler)
        try:
            yield spark
        finally:
            _end_workers(spark)
            spark.stop()


def _end_workers(spark: SparkSession) -> None:
    """End Spark's idle Python workers: when Spark closes their sockets, some print a traceback."""
    if importlib.util.find_spec("psutil") is None:
        return
    import psutil  # type: ignore[import-untyped]

    gateway = getattr(getattr(spark, "sparkContext", None), "_gateway", None)
    java = getattr(gateway, "proc", None)
    try:
        for child in psutil.Process(java.pid).children() if java is not None else ():
            if "pyspark.daemon" in child.cmdline():
                child.terminate()
    except psutil.Error:
        pass  # the process has ended


def _quiet(options: str) -> dict[str, str]:
    """Return settings for a quiet session; a user with a Spark configuration of his own keeps its logging."""
    bar = {"spark.ui.showConsoleProgress": "false", "spark.ui.enabled": "false"}
    return bar if "SPARK_CONF_DIR" in os.environ else {**bar, "spark.driver.extraJavaOptions": options}
