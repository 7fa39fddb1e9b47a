"""Fixtures that the whole suite shares: real brokers, started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.cluster import LocalCluster

_LONG_FIRST = ("spooling", "transactions", "faults", "consume", "cluster", "fetch", "cli", "demo", "interop", "produce")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Folders that wait for brokers for long come first: two workers then end at about the same time."""

    def place(item: pytest.Item) -> int:
        folder = item.nodeid.split("/")[1]
        return _LONG_FIRST.index(folder) if folder in _LONG_FIRST else len(_LONG_FIRST)

    items.sort(key=place)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three real brokers with plaintext and secure listeners, for all tests of the run.

    A test that kills a broker restarts it.
    """
    with LocalCluster("tests", brokers=3, secure=True, dir=tmp_path_factory.mktemp("clusters")) as cluster:
        yield cluster
