"""Keep a Delta table of orders up to date with a topic, by Spark Structured Streaming: each order once.

Ottla reads the topic and `deltalake` writes the table, both without a jar. The driver writes one batch at a time, of at
most 64 MB. With the rows it writes the number of the batch into the table's log, so a batch that Spark repeats after a
crash is left out. Values that are no orders become rows without an order, with the value as it was.

    pip install 'ottla[cluster,spark,delta]' pandas
    ottla cluster up --port 9092 --topic orders:3
    python examples/produce_from_pandas.py examples/data/orders.csv --topic orders --key customer
    python examples/stream_to_delta.py --topic orders --table orders-table --checkpoint orders-checkpoint --once

Without `--once` it goes on, with a batch each minute. A table of many small files is compacted by
`DeltaTable(table).optimize.compact()`, at any time. Records as they are go into Delta without a driver in between, in
any amount, by `ottla archive --format delta`.
"""

from __future__ import annotations

import argparse
import os

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery

import ottla.spark

ORDER = "order BIGINT, customer STRING, product STRING, quantity INT, price DOUBLE, placed TIMESTAMP"


def orders_of(records: DataFrame) -> DataFrame:
    """Return a row for each record: the order, or the value that could not be read, and where it comes from."""
    order = sql.from_json(sql.col("value").cast("string"), ORDER)
    return records.select(order.alias("order"), "value", "partition", "offset").select(
        "order.*", sql.when(sql.col("order.order").isNull(), sql.col("value")).alias("unread"), "partition", "offset"
    )


def append_once(table: str, writer: str, rows: DataFrame, number: int) -> None:
    """Append a batch, unless the table's log has this or a later batch of the same writer."""
    last = DeltaTable(table).transaction_version(writer) if DeltaTable.is_deltatable(table) else None
    if last is not None and last >= number:
        return
    write_deltalake(
        table,
        rows.toArrow(),
        mode="append",
        commit_properties=CommitProperties(app_transactions=[Transaction(writer, number)]),
    )


def start(topic: str, table: str, checkpoint: str, *, bootstrap: str, once: bool) -> StreamingQuery:
    """Start the query, or continue it from its checkpoint."""
    spark = ottla.spark.session("orders")
    records = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxBytesPerTrigger", "64m")
        .load()
    )

    def append(rows: DataFrame, number: int) -> None:
        # The query's id is in its checkpoint: the numbers of a new checkpoint are not taken for those of an old one.
        writer = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert writer is not None
        append_once(table, writer, rows, number)

    stream = orders_of(records).writeStream.foreachBatch(append).option("checkpointLocation", checkpoint)
    return stream.trigger(availableNow=True).start() if once else stream.trigger(processingTime="1 minute").start()


def main() -> None:
    """Read the arguments and run until the query ends."""
    parser = argparse.ArgumentParser(description="Keep a Delta table of orders up to date with a topic.")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--table", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--once", action="store_true", help="end when everything that is there now is in the table")
    parser.add_argument("--bootstrap", default=os.environ.get("OTTLA_BOOTSTRAP", "localhost:9092"))
    start(**vars(parser.parse_args())).awaitTermination()


if __name__ == "__main__":
    main()
