"""A fleet of workers: each takes a range of offsets, scores its orders, and writes one Parquet file.

There may be more workers than partitions. Kill any of them: another one takes its range, and finds the same range, so
the file of a range is written again and nothing is in the folder twice. A range that fails five times goes to the error
list (`ottla work errors list`), and holds up no other.

    ottla cluster up --port 9092 --topic orders:3
    python examples/produce_from_pandas.py examples/data/orders.csv --topic orders --key customer
    cd examples/fleet
    export OTTLA_STORE=sqlite:///fleet.db
    ottla work run --handler score:score --takes unit --topic orders --from earliest --processes 2
    ottla work status --watch     # in another terminal, with the same OTTLA_STORE

On several machines, the store is a Redis (`redis://host`) and SCORES a folder that all of them reach.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import ottla

FOLDER = Path(os.environ.get("SCORES", "scores"))


def score_of(value: bytes | None) -> float | None:
    """Return the score of one order, None if it has no quantity. Your model goes here."""
    quantity = None if value is None else json.loads(value)["quantity"]
    return None if quantity is None else 1 - 1 / (1 + quantity)


def score(unit: ottla.Unit) -> None:
    """Write the scores of a range to the file of that range."""
    records = unit.table(["key", "value", "partition", "offset"])
    scores = pa.array([score_of(value) for value in records["value"].to_pylist()], pa.float64())
    table = records.drop_columns("value").append_column("score", scores)
    name = f"{unit.range.topic}-{unit.range.partition:05}-{unit.range.start:020}-{unit.range.stop:020}.parquet"
    FOLDER.mkdir(parents=True, exist_ok=True)
    # A worker that was given up may still be writing: each attempt has a file of its own until it is complete.
    unfinished = FOLDER / f".{name}.{unit.fence}"
    pq.write_table(table, unfinished)
    unfinished.replace(FOLDER / name)
