"""Every command line and program of every page runs, and prints what the page shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.clusters import Clusters
from tests.docs.pages import shows_start, starts, steps
from tests.docs.places import environment
from tests.docs.ports import Ports
from tests.docs.running import Failure, PageRun
from tests.docs.selection import PAGES, ROOT

from ottla.cluster import LocalCluster

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def ports() -> Iterator[Ports]:
    claimed = Ports()
    yield claimed
    claimed.release()


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where clusters leave their state: all pages that start clusters share it."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def clusters(state: Path, ports: Ports) -> Iterator[Clusters]:  # ports go back when nothing listens there
    kept = Clusters(state / "ottla/clusters")
    yield kept
    kept.down()


def _in_order() -> list[str]:
    """Pages that start the same brokers come one after the other."""
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
    return sorted(texts, key=lambda page: (sorted(starts(steps(texts[page])).items()), page))


@pytest.mark.parametrize("page", _in_order())
def test_everything_on_a_page_works(page: str, tmp_path: Path, state: Path, clusters: Clusters, ports: Ports) -> None:
    text = ports.replaced((ROOT / page).read_text(encoding="utf-8"))
    taken = steps(text)
    started = starts(taken)
    clusters.prepare(started, is_shown=shows_start(taken))
    folder, private = tmp_path / "page", tmp_path / "private"
    folder.mkdir()
    private.mkdir()
    # A page that starts no cluster finds none.
    own_state = state if started else tmp_path / "state"
    failed = ""
    try:
        with PageRun(page, folder, private=private, environment=environment(tmp_path / "home", own_state)) as run:
            for step in taken:
                run.take(step)
    except Failure as failure:
        failed = str(failure)
    finally:
        if own_state is not state:
            _down(own_state)
    if failed:
        pytest.fail(failed, pytrace=False)
    clusters.keep(started, text)


def _down(state: Path) -> None:
    folder = state / "ottla/clusters"
    for status in LocalCluster.all(folder):
        LocalCluster(status.name, dir=folder).down()
