"""Consume orders, compute their totals, produce them: each order counts once, whatever is killed.

The results, the orders that cannot be read, and the offsets of the consumer are one transaction. An order that cannot
be read goes to another topic with the reason in a header, and holds up nothing.

Start as many as the topic has partitions, each with a name of its own that it keeps over restarts. Any error ends the
program: let systemd or Kubernetes start it again, and it continues behind its last transaction. SIGTERM and Ctrl-C end
it in order.

    ottla cluster up --port 9092 --topic orders:3 --topic totals:3 --topic rejected
    python examples/produce_from_pandas.py examples/data/orders.csv --topic orders --key customer
    python examples/etl.py --name etl-1
    ottla consume totals --until latest --max-records 3     # in another terminal
"""

from __future__ import annotations

import argparse
import json
import os
import signal

import pyarrow as pa

import ottla


def total_of(value: bytes) -> bytes:
    """Return the total of one order as JSON. Raises ValueError, KeyError or TypeError if it cannot be read."""
    order = json.loads(value)
    cents = order["quantity"] * round(order["price"] * 100)
    return json.dumps({"order": order["order"], "customer": order["customer"], "cents": cents}).encode()


def transform(producer: ottla.Producer, records: pa.RecordBatch, *, to: str, rejected: str) -> None:
    """Send what becomes of a batch."""
    totals = []
    for key, value in zip(records["key"].to_pylist(), records["value"].to_pylist(), strict=True):
        try:
            totals.append((key, total_of(value)))
        except (ValueError, KeyError, TypeError) as error:
            producer.send(rejected, value, key=key, headers={"reason": f"{type(error).__name__}: {error}"})
    producer.send_many(to, totals)


def run(name: str, *, group: str, source: str, to: str, rejected: str, bootstrap: str) -> None:
    """Transform batch by batch, each in one transaction, until a signal."""
    with (
        ottla.Producer(bootstrap, transactional_id=name, compression="zstd") as producer,
        ottla.Consumer(bootstrap, group=group, topics=source, commit_every=None) as consumer,
    ):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: consumer.stop())
        # Takes over the name: a transaction that a killed program left open would hide the offsets of the group.
        with producer.transaction():
            pass
        for records in consumer:
            with producer.transaction() as transaction:
                transform(producer, records, to=to, rejected=rejected)
                transaction.send_offsets(consumer.member, consumer.positions())


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description="Compute the totals of orders.")
    parser.add_argument("--name", required=True, help="of this instance: its transactional id")
    parser.add_argument("--group", default="etl")
    parser.add_argument("--source", default="orders")
    parser.add_argument("--to", default="totals")
    parser.add_argument("--rejected", default="rejected")
    parser.add_argument("--bootstrap", default=os.environ.get("OTTLA_BOOTSTRAP", "localhost:9092"))
    run(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
