"""Archive topics as Parquet with a Spark cluster, from a scheduler: each record once, whatever is killed.

A run archives what is in the topics when it starts, and continues where the last one ended, also if that one was
killed. Two runs at the same time do no harm. The folder is one that driver and executors reach under the same path,
and Ottla is installed where they run.

    pip install 'ottla[cluster,spark]' pandas
    ottla cluster up --port 9092 --topic orders:3
    python examples/produce_from_pandas.py examples/data/orders.csv --topic orders --key customer
    spark-submit examples/archive_job.py orders --to lake
    ottla lake verify lake --deep --against localhost:9092

On a cluster: `spark-submit --master spark://host:7077 ...`, or `--master yarn`.
"""

from __future__ import annotations

import argparse
import os

import ottla.spark
from ottla.jobs import archive


def main() -> None:
    """Read the arguments and archive."""
    parser = argparse.ArgumentParser(description="Archive topics.")
    parser.add_argument("topics", nargs="+")
    parser.add_argument("--to", required=True, help="the folder of the archive")
    parser.add_argument("--bootstrap", default=os.environ.get("OTTLA_BOOTSTRAP", "localhost:9092"))
    settings = parser.parse_args()
    spark = ottla.spark.session("archive")
    try:
        done = archive(
            settings.topics,
            settings.to,
            brokers=settings.bootstrap,
            partition_by="topic,date",
            # Tools that watch lag see how far the archive is.
            group="archive-job",
            spark=spark,
        )
    finally:
        spark.stop()
    print(f"{done.records} records archived in {done.files} files of {done.file_bytes} bytes")


if __name__ == "__main__":
    main()
