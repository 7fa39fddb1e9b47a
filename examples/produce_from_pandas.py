"""Load a CSV file into a topic with pandas: the whole file, or nothing of it.

Each row becomes a JSON value, keyed by one of its columns. The file is read in chunks, and all of them are one
transaction: a load that fails or is killed leaves nothing that readers of committed data see, so run it again. The
times of the rows stay in the values, because retention deletes records by their timestamps.

    pip install 'ottla[cluster]' pandas
    ottla cluster up --port 9092 --topic orders:3
    python examples/produce_from_pandas.py examples/data/orders.csv --topic orders --key customer
"""

from __future__ import annotations

import argparse
import os

import pandas as pd

import ottla

ROWS_PER_CHUNK = 100_000
TRANSACTION_SECONDS = 900
"""How long a load may take: brokers allow 15 minutes unless transaction.max.timeout.ms says more."""


def records_of(rows: pd.DataFrame, key: str) -> pd.DataFrame:
    """Return a key and a JSON value for each row."""
    values = rows.to_json(orient="records", lines=True).splitlines()
    return pd.DataFrame({"key": rows[key].astype("string"), "value": values})


def load(path: str, topic: str, key: str, *, bootstrap: str) -> int:
    """Load the file in one transaction and return how many records are committed."""
    count = 0
    with (
        # The next load of this topic takes over the id, and so ends what a killed one has left open.
        ottla.Producer(
            bootstrap,
            transactional_id=f"load-{topic}",
            transaction_timeout=TRANSACTION_SECONDS,
            compression="zstd",
        ) as producer,
        producer.transaction(),
        # Columns of Arrow: a column of whole numbers stays one if a cell is empty.
        pd.read_csv(path, chunksize=ROWS_PER_CHUNK, dtype_backend="pyarrow") as chunks,
    ):
        for rows in chunks:
            producer.send_table(topic, records_of(rows, key))  # waits while the buffer is full
            count += len(rows)
    return count


def main() -> None:
    """Read the arguments and load."""
    parser = argparse.ArgumentParser(description="Load a CSV file into a topic.")
    parser.add_argument("file")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--key", required=True, help="the column that decides the partition")
    parser.add_argument("--bootstrap", default=os.environ.get("OTTLA_BOOTSTRAP", "localhost:9092"))
    settings = parser.parse_args()
    count = load(settings.file, settings.topic, settings.key, bootstrap=settings.bootstrap)
    print(f"{count} records committed to {settings.topic}")


if __name__ == "__main__":
    main()
