"""One Spark session for all tests of a process that do not kill Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.lean import lean_children
from tests.spark.connector import connector_jars

import ottla.spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session of two threads that has the source `ottla`, and the JVM's connector to compare it with."""
    folder = tmp_path_factory.mktemp("spark")
    conf = {
        "spark.jars": ",".join(map(str, connector_jars())),
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        # Queries of a few rows: compiling Java for each of them takes longer than they do.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder}",
    }
    with lean_children(tmp_path_factory.mktemp("lean")):  # for its workers: it begins before any module does
        session = ottla.spark.session("tests", master="local[2]", conf=conf)
    yield session
    session.stop()
