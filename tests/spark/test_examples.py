"""The example of a Delta table that follows a topic: each order is in it once, also if Spark repeats a batch."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.examples.comments import EXAMPLES, ROOT, command

import ottla
from ottla.cluster import LocalCluster

pytestmark = pytest.mark.broker
TOPIC = "examples-orders"
ORDERS = pd.read_csv(EXAMPLES / "data" / "orders.csv", dtype={"quantity": "Int64"})


@pytest.fixture
def example(
    spark: SparkSession, kafka: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], None]:
    """Runs the program by the command in its comment, in the session of all tests, on a topic of its own."""
    line = command("stream_to_delta.py", "stream_to_delta.py").replace("--topic orders", f"--topic {TOPIC}")
    # The session runs in another folder.
    words = line.replace(" orders-", f" {tmp_path}/orders-").split()
    monkeypatch.setenv("OTTLA_BOOTSTRAP", kafka.bootstrap)
    monkeypatch.setattr(sys, "argv", words[1:])

    def run() -> None:
        program = (ROOT / words[1]).read_text(encoding="utf-8")
        exec(compile(program, words[1], "exec"), {"__name__": "__main__"})

    return run


def _send(kafka: LocalCluster, *values: bytes) -> None:
    with ottla.Producer(kafka.bootstrap) as producer:
        producer.send_many(TOPIC, values)


def _rows(folder: Path) -> pd.DataFrame:
    return DeltaTable(folder / "orders-table").to_pandas()


def test_a_table_follows_a_topic_and_a_repeated_batch_is_not_in_it_twice(
    example: Callable[[], None], kafka: LocalCluster, tmp_path: Path
) -> None:
    with ottla.Admin(kafka.bootstrap) as admin:
        admin.create_topic(TOPIC, partitions=3)
    lines = [line.encode() for line in ORDERS.to_json(orient="records", lines=True).splitlines()]
    _send(kafka, *lines, b"no order")
    example()
    rows = _rows(tmp_path)
    unread = rows[rows["order"].isna()]
    assert unread["unread"].tolist() == [b"no order"]
    orders = rows.drop(unread.index).sort_values("order")
    assert (orders["order"].tolist(), orders["placed"].dt.strftime("%Y-%m-%dT%H:%M:%SZ").tolist()) == (
        ORDERS["order"].tolist(),
        ORDERS["placed"].tolist(),
    )
    assert orders["quantity"].sum() == ORDERS["quantity"].sum()

    _send(kafka, json.dumps({"order": 5000, "customer": "ann"}).encode())
    before_the_batch = shutil.copytree(tmp_path / "orders-checkpoint", tmp_path / "kept")
    example()
    assert len(_rows(tmp_path)) == len(lines) + 2
    # As after a kill between the commit of the table and that of Spark.
    (before_the_batch / "commits" / "0").unlink()
    shutil.rmtree(tmp_path / "orders-checkpoint")
    before_the_batch.rename(tmp_path / "orders-checkpoint")
    versions = DeltaTable(tmp_path / "orders-table").version()
    example()
    assert (len(_rows(tmp_path)), DeltaTable(tmp_path / "orders-table").version()) == (len(lines) + 2, versions)
    with ottla.Reader(kafka.bootstrap) as reader:
        log = reader.table(TOPIC, columns=["partition", "offset"])
    order = [("partition", "ascending"), ("offset", "ascending")]
    stored = pa.Table.from_pandas(_rows(tmp_path)[["partition", "offset"]], preserve_index=False)
    assert stored.sort_by(order).cast(log.schema).equals(log.sort_by(order))
