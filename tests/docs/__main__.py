"""`python -m tests.docs docs/reader.md`: runs a page and prints what its blocks print, to write it down there."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests import quick_java
from tests.docs.clusters import Clusters
from tests.docs.pages import starts, steps
from tests.docs.places import environment
from tests.docs.ports import Ports
from tests.docs.running import Failure, PageRun
from tests.docs.selection import ROOT


def main() -> None:
    """Run the pages that are named."""
    classes = ROOT / ".pytest_cache/d/kafka-classes"
    classes.mkdir(parents=True, exist_ok=True)
    quick_java.hurry(classes)
    ports = Ports()
    for page in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as name:
            _show(page, Path(name), ports)


def _show(page: str, place: Path, ports: Ports) -> None:
    taken = steps(ports.replaced((ROOT / page).read_text(encoding="utf-8")))
    folder, private, state = place / "page", place / "private", place / "state"
    folder.mkdir()
    private.mkdir()
    clusters = Clusters(state / "ottla/clusters")
    try:
        with PageRun(page, folder, private=private, environment=environment(place / "home", state)) as run:
            for step in taken:
                print(f"--- {page}:{step.line}", flush=True)
                print(run.printed_by(step), flush=True)
    except Failure as failure:
        print(failure)
    finally:
        clusters.down()
    print(f"--- {page} starts {starts(taken) or 'no cluster'}")


if __name__ == "__main__":
    main()
