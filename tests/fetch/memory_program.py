"""Reads a topic and prints how much memory that took: `python -m tests.fetch.memory_program BOOTSTRAP TOPIC`.

It prints one JSON line: bytes of this process before the read and at its peak, rows, bytes of values, seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from ottla.fetch.options import Fetching
from ottla.fetch.reader import Reader


def memory(name: str) -> int:
    """Return a figure of this process's status, in bytes."""
    return 1024 * int(Path("/proc/self/status").read_text().split(f"{name}:")[1].split()[0])


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fetch.memory_program", description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("--memory-bytes", type=int, default=Fetching().memory_bytes)
    parser.add_argument("--way", choices=("read", "count", "batches"), default="read")
    given = parser.parse_args()
    rows = size = 0
    with Reader(given.bootstrap, fetching=Fetching(memory_bytes=given.memory_bytes)) as reader:
        reader.offsets(given.topic)
        before, began = memory("VmRSS"), time.monotonic()
        if given.way == "read":
            for records in reader.read(given.topic):
                rows += records.num_rows
                size += records.nbytes
        elif given.way == "batches":
            rows = sum(raw.batch.header.count for raw in reader.batches(given.topic))
        else:
            rows = reader.count(given.topic)
        seconds = time.monotonic() - began
    figures = {"before": before, "peak": memory("VmHWM"), "rows": rows, "bytes": size, "seconds": seconds}
    print(json.dumps(figures | {"limit": given.memory_bytes}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
