"""Spark Connect: reads, writes, streaming writes and archives through a server in another process."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from tests.waiting import eventually

import ottla
import ottla.spark
from ottla.cluster import LocalCluster
from ottla.cluster.ports import free_ports
from ottla.jobs import archive

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(600)]
_HOME = Path(pyspark.__file__).parent
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """The address of a server that runs for the block."""
    (port,) = free_ports(1, random.Random())
    settings = {"spark.connect.grpc.binding.port": port, "spark.ui.enabled": "false", "spark.local.dir": folder}
    options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command = [f"{_HOME}/bin/spark-submit", "--class", _SERVER, "--master", "local[2]", *options, "spark-internal"]
    environment = {**os.environ, "SPARK_HOME": str(_HOME), "PYSPARK_PYTHON": sys.executable}
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)

    def answers() -> bool:
        assert server.poll() is None, (folder / "server.log").read_text()[-3000:]
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
        except OSError:
            return False
        return True

    try:
        eventually(answers, "the server listens", seconds=120)
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(60)


def test_everything_works_through_a_connect_server(kafka: LocalCluster, tmp_path: Path) -> None:
    source, target = "spark-connect", "spark-connect-copy"
    with ottla.Admin(kafka.bootstrap) as admin, ottla.Producer(kafka.bootstrap) as producer:
        for name in (source, target):
            admin.create_topic(name, partitions=2)
        producer.send_table(source, pa.table({"value": [f"value {number}" for number in range(1_000)]}))
    with connect_server(tmp_path) as address, ottla.Reader(kafka.bootstrap, isolation="read_committed") as reader:
        spark = ottla.spark.session("connect", master=address)
        try:
            reading = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": source}
            rows = spark.read.format("ottla").options(**reading).load()
            assert rows.count() == 1_000

            writing = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": target}
            rows.select("value").write.format("ottla").mode("append").options(**writing).save()
            assert reader.fingerprint(target) == reader.fingerprint(source)

            stream = spark.readStream.format("ottla").options(**reading, startingOffsets="earliest").load()
            sink = stream.select("value").writeStream.format("ottla").options(**writing)
            query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
            assert query.awaitTermination(120)
            assert reader.count(target) == 2_000

            assert archive(source, tmp_path / "lake", brokers=kafka.bootstrap, spark=spark).records == 1_000
        finally:
            spark.stop()
