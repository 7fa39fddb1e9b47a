"""A mirror as a process of its own, to be killed: `python -m tests.mirror.program LINK`, with the link as JSON."""

from __future__ import annotations

import json
import signal
import sys
import threading

from ottla.errors import Fenced
from ottla.events import Event, MirrorTookOver
from ottla.jobs.mirror_link import Link
from ottla.jobs.mirrors import Mirroring
from ottla.mirror.lane import Phase
from ottla.mirror.rules import Policy


def main() -> None:
    """Mirror until SIGTERM. Says `ready` when every partition is taken over; exits with 3 if another takes over."""
    options = json.loads(sys.argv[1])
    link = Link(**{**options, "rules": Policy()})
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())

    def heard(event: Event) -> None:
        if isinstance(event, MirrorTookOver):
            print("ready", flush=True)

    with Mirroring(link, events=[heard]) as mirroring:
        mirroring.run(follow=True, take_over=True, is_stopped=stopped.is_set)
        errors = [lane.error for lane in mirroring.lanes() if lane.phase is Phase.FAILED]
    if errors:
        print(errors[0], file=sys.stderr)
        sys.exit(3 if isinstance(errors[0], Fenced) else 1)


if __name__ == "__main__":
    main()
