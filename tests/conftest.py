"""What the whole suite shares: real brokers, started once and quickly, and the order in which two workers do it all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING

import pytest
from tests import quick_java

from ottla.cluster import LocalCluster

if TYPE_CHECKING:
    from xdist.remote import Producer  # type: ignore[import-untyped]
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

# Files that keep processors busy for long, and files that wait for brokers for long: they come first, in turns.
_BUSY = ("spark/", "jobs/", "lake/", "demo/", "fuzz/", "wire/test_kernel_cache", "engines/")
_WAITING = (
    *("spooling/", "transactions/", "faults/", "consume/", "cluster/", "fetch/", "cli/", "interop/"),
    *("testing/", "frame/", "net/test_real", "admin/", "produce/"),
)
# Files for one worker, because they share a broker of their own.
_TOGETHER = {
    "tests/spooling/test_doubts.py": "a broker that forgets producers",
    "tests/spooling/test_outage.py": "a broker that forgets producers",
    "tests/consume/test_consumer_groups.py": "a broker for members in a hurry",
    "tests/consume/test_membership_real.py": "a broker for members in a hurry",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long ones first, a busy file beside a waiting one: workers share the processors well, and end together."""
    files = list(dict.fromkeys(_file(item) for item in items))
    busy, waiting = _in_order(files, _BUSY), _in_order(files, _WAITING)
    turns = [file for pair in zip_longest(busy, waiting) for file in pair if file is not None]
    place = {file: at for at, file in enumerate([*turns, *(file for file in files if file not in {*turns})])}
    items.sort(key=lambda item: place[_file(item)])


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0].removeprefix("tests/")


def _in_order(files: list[str], starts: tuple[str, ...]) -> list[str]:
    return [file for start in starts for file in files if file.startswith(start)]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Where brokers will be started, they start quickly."""
    # Sessions of Spark live for seconds, too; this reaches those of child programs.
    os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData")
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData")
    needs_brokers = any(item.get_closest_marker("broker") for item in session.items)
    if needs_brokers and not session.config.option.collectonly:
        assert session.config.cache is not None
        quick_java.hurry(session.config.cache.mkdir("kafka-classes"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    """With `--dist loadfile`: each file goes to one worker, and so do files that share a broker."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByBroker(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            return _TOGETHER.get(file, file)

    return ByBroker(config, log)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three real brokers with plaintext and secure listeners, for all tests of the run.

    A test that kills a broker restarts it. Some tests write records of years ago, which retention takes away half a
    minute after a broker has started, and every five minutes: here it does not look for a day.
    """
    day = str(24 * 60 * 60 * 1000)
    settings = {"log.retention.check.interval.ms": day, "log.initial.task.delay.ms": day}
    folder = tmp_path_factory.mktemp("clusters")
    with LocalCluster("tests", brokers=3, secure=True, dir=folder, settings=settings) as cluster:
        yield cluster


@pytest.fixture
def hasty_about_unknown_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that no broker knows is given up soon; a program waits for three seconds, as it may be a new one."""
    monkeypatch.setattr("ottla.net.effort.UNKNOWN_TOPIC_SECONDS", 0.3)
    monkeypatch.setattr("ottla.produce.scout._UNKNOWN_PATIENCE", 0.3)


@pytest.fixture
def quick_brokers_of_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that the test starts have quick brokers, too; their JVMs say so on standard error."""
    for name, value in quick_java.variables().items():
        monkeypatch.setenv(name, value)
