"""A program that joins a group, prints a line, and waits to be killed."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack

from tests.waiting import eventually

from .members import Stage
from .ways import WAYS


def main(bootstrap: str, group: str, topic: str, way: str) -> None:
    with ExitStack() as stack:
        member = Stage(bootstrap, stack).join(group, topic, name="doomed", **WAYS[way])
        eventually(lambda: bool(member.held))
        print("has some", flush=True)
        time.sleep(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
