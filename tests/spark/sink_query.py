"""A program that copies a topic with the exactly-once sink, in small batches; made to be killed.

    python -m tests.spark.sink_query BOOTSTRAP SOURCE TARGET CHECKPOINT RECORDS_PER_BATCH

Prints a line for every finished batch, and ends when everything that existed at its start is copied.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import ottla.spark


def main(bootstrap: str, source: str, target: str, checkpoint: str, records: str) -> int:
    """Copy; returns 0 if everything was copied."""
    # A task may fail four times, so the same driver retries what is killed. One task at a time, because every
    # Python worker takes two seconds to start.
    settings: dict[str, Any] = {"spark.ui.enabled": "false", "spark.driver.memory": "512m"}
    spark = ottla.spark.session("sink-kills", master="local[1,4]", conf=settings)
    spark.sparkContext.setLogLevel("OFF")
    rows = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", records)
        .load()
    )
    query = (
        rows.select("key", "value")
        .writeStream.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    last = -1
    while query.isActive:
        progress = query.lastProgress
        if progress is not None and progress["batchId"] != last:
            last = progress["batchId"]
            print("batch", last, flush=True)
        time.sleep(0.02)
    failed = query.exception()
    if failed is not None:
        print(failed, file=sys.stderr)
    return 0 if failed is None else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
