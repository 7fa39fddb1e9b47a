"""`ottla.spark.session`: its settings in a new session, in an existing one, and under spark-submit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
from tests.spark.reading import new_topic, write

import ottla.spark
from ottla.cluster import LocalCluster
from ottla.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROGRAM = """
import sys
import ottla.spark

spark = ottla.spark.session("submitted")
read = spark.read.format("ottla").option("kafka.bootstrap.servers", sys.argv[1]).option("subscribe", sys.argv[2])
print("found", spark.sparkContext.master, spark.sparkContext.appName, read.load().count())
spark.stop()
"""


def test_the_settings_that_matter_are_set(spark: SparkSession) -> None:
    assert spark.conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "false"  # filters of one use would reach others
    assert "FileSystemBased" in str(spark.conf.get("spark.sql.streaming.checkpointFileManagerClass"))
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_a_session_that_is_there_is_taken_and_what_cannot_be_set_is_reported(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    again = ottla.spark.session("another", conf={"spark.driver.memory": "7g", "spark.sql.shuffle.partitions": "2"})
    assert again.sparkContext is spark.sparkContext
    assert "these can only be set before it starts: spark.driver.memory=7g" in caplog.text


def test_what_is_no_setting_of_spark_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"driver_memory is not a Spark setting: their names begin with spark\."):
        ottla.spark.session(conf={"driver_memory": "1g"})


def test_registering_by_hand_works_as_well(spark: SparkSession) -> None:
    ottla.spark.register(spark)
    with pytest.raises(Exception, match="exactly one of the options subscribe, subscribePattern and assign"):
        spark.read.format("ottla").option("kafka.bootstrap.servers", "127.0.0.1:1").load()


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.long
def test_spark_submit_runs_a_program_with_its_master(kafka: LocalCluster, tmp_path: Path) -> None:
    topic = new_topic(kafka.bootstrap, 2)
    write(kafka.bootstrap, topic, range(40))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    home = Path(pyspark.__file__).parent
    command = [home / "bin" / "spark-submit", "--master", "local[1]", "--conf", "spark.ui.enabled=false"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    done = subprocess.run(
        [*map(str, command), str(program), kafka.bootstrap, topic],
        cwd=tmp_path,
        env={**kept, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert "found local[1] submitted 40" in done.stdout, done.stderr[-3000:]


def test_workers_use_the_package_and_not_the_archive_in_it(spark: SparkSession) -> None:
    where = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("pyspark").__file__).collect()
    assert where == [sys.modules["pyspark"].__file__]
