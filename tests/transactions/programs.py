"""Programs for tests that need another process: `python programs.py NAME ...`, one function for each name."""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Callable

import ottla

FOREVER = 300.0


def hang(bootstrap: str, tid: str, topic: str) -> None:
    """Send in a transaction, print "ready", and never end it."""
    with ottla.Producer(bootstrap, transactional_id=tid) as producer, producer.transaction():
        for number in range(100):
            producer.send(topic, b"hanging %d" % number)
        producer.flush()
        print("ready", flush=True)
        time.sleep(FOREVER)


def prepare(bootstrap: str, tid: str, topic: str) -> None:
    """Prepare a transaction and write the token to standard output."""
    with ottla.Producer(bootstrap, transactional_id=tid) as producer, producer.transaction() as tx:
        producer.send(topic, b"prepared")
        sys.stdout.buffer.write(pickle.dumps(tx.prepare()))


def end(bootstrap: str) -> None:
    """End the transactions whose tokens come from standard input, each with whether to commit."""
    for token, commit in pickle.load(sys.stdin.buffer):
        ottla.end_transaction(bootstrap, token, commit=commit)


if __name__ == "__main__":
    programs: dict[str, Callable[..., None]] = {"hang": hang, "prepare": prepare, "end": end}
    programs[sys.argv[1]](*sys.argv[2:])
