"""A part of `ottla demo`: two nodes of a fleet share a topic, one is killed in the middle, and nothing is missing.

Each unit is handled into a file that has the unit's range as its name: a unit that is handled twice writes the same
file twice. What is in the files at the end is held against the log.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from ottla.cli.errors import CommandFailed
from ottla.engines.fleet.fleet import Fleet
from ottla.engines.fleet.planning import Units
from ottla.engines.fleet.store import Store, open_store
from ottla.engines.fleet.unit import Unit
from ottla.engines.fleet.units import Charter
from ottla.files import create_whole
from ottla.model import Fingerprint
from ottla.wire.columns import from_arrow
from ottla.wire.encode import fingerprint_of

_GROUP = "demo-fleet"
_CHARTER = Charter(lease_seconds=2.0)
_UNITS = 60
"""How many the topic is cut into, about."""
_HANDLING_SECONDS = 0.05
"""What a handler would take that does more than count."""
_FILES_BEFORE_KILL = 5


def share_and_kill(
    bootstrap: str, store: str, topic: str, records: int, folder: Path, say: Callable[[str], None]
) -> Fingerprint:
    """What the nodes have handled together."""
    say("sharing the work between two nodes of a fleet that meet in Redis, unit by unit; one is killed in the middle")
    folder.mkdir()
    command = [sys.executable, "-m", "ottla.cli.demo.fleet", bootstrap, store, topic, str(records), str(folder)]
    began = time.monotonic()
    with ExitStack() as stack, closing(open_store(store, _GROUP)) as group:
        nodes = [stack.enter_context(_node(command)) for _ in range(2)]
        assert nodes[0].stdout is not None
        for _ in range(_FILES_BEFORE_KILL):
            taken = nodes[0].stdout.readline().strip()
        nodes[0].kill()
        say(f"  node 1 killed with SIGKILL while it worked on {taken or 'nothing'}")
        if nodes[1].wait() != 0:
            raise CommandFailed("the other node of the fleet failed, too")
        _say_counts(group, time.monotonic() - began, say)
    return sum((Fingerprint.parse(file.read_text()) for file in folder.glob("*-*")), Fingerprint())


def _node(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)  # noqa: S603 - ours


def _say_counts(group: Store, seconds: float, say: Callable[[str], None]) -> None:
    counts = group.look().counts
    say(
        f"  {counts.done} units of {counts.offsets:,} offsets done in {seconds:.1f} s; {counts.reclaimed} taken from"
        f" the dead node and handled again, {counts.given_up} given up"
    )
    if counts.given_up or group.failures():
        raise CommandFailed("units are on the error list")


def work(bootstrap: str, store: str, topic: str, records: int, folder: Path) -> None:
    """One node, until everything is done."""

    def handle(unit: Unit) -> None:
        print(unit.range, flush=True)
        total = Fingerprint()
        for batch in unit.read(("key", "value")):
            total += fingerprint_of(from_arrow(batch.column("value"), key=batch.column("key")))
        time.sleep(_HANDLING_SECONDS)
        offsets = unit.range
        try:
            create_whole(
                folder / f"{offsets.topic}-{offsets.partition}-{offsets.start}-{offsets.stop}", str(total).encode()
            )
        except FileExistsError:
            pass  # an earlier attempt got as far as this

    units = Units(records=max(1, records // _UNITS))
    with Fleet(
        bootstrap, group=_GROUP, topics=topic, store=store, start="earliest", units=units, charter=_CHARTER
    ) as fleet:
        fleet.run(handle, until_end=True)


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), Path(sys.argv[5]))
