"""Programs that are interrupted and killed: `python -m tests.consume.programs NAME ...`, one function per name."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import ottla
from ottla.consume.membership import GroupOptions

from .consuming import rows
from .ways import WAYS


def work(bootstrap: str, group: str, topic: str, way: str, path: str) -> None:
    """Process records slowly, writing down which they are, and commit often."""
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    options = GroupOptions(**WAYS[way])
    with ottla.Consumer(bootstrap, group=group, topics=topic, options=options, commit_every=0.05) as consumer:
        for batch in consumer:
            os.write(out, b"".join(b"%d %d\n" % row for row in rows(batch)))
            time.sleep(0.01)


def wait(bootstrap: str, group: str, topic: str) -> None:
    """Read what there is, print it, and wait for more in a loop that only Ctrl-C ends."""
    with ottla.Consumer(bootstrap, group=group, topics=topic) as consumer:
        for batch in consumer:
            print(len(batch), flush=True)


def transform(bootstrap: str, group: str, source: str, sink: str, tid: str, way: str) -> None:
    """Read, transform and produce, each batch in one transaction with its offsets; print after each commit."""
    options = GroupOptions(**WAYS[way])
    with (
        ottla.Producer(bootstrap, transactional_id=tid, transaction_timeout=10) as producer,
        ottla.Consumer(
            bootstrap,
            group=group,
            topics=source,
            options=options,
            commit_every=None,
            isolation="read_committed",
            fetching=ottla.Fetching(request_bytes=1 << 11),
        ) as consumer,
    ):
        for batch in consumer:
            with producer.transaction() as tx:
                producer.send_many(sink, [b"%d:%d" % row for row in rows(batch)])
                tx.send_offsets(consumer.member, consumer.positions())
            print(len(batch), flush=True)


if __name__ == "__main__":
    programs: dict[str, Callable[..., None]] = {"work": work, "wait": wait, "transform": transform}
    programs[sys.argv[1]](*sys.argv[2:])
