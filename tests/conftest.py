"""Fixtures that the whole suite shares: real brokers, started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.cluster import LocalCluster


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three real brokers with plaintext and secure listeners, for all tests of the run.

    A test that kills a broker restarts it.
    """
    with LocalCluster("tests", brokers=3, secure=True, dir=tmp_path_factory.mktemp("clusters")) as cluster:
        yield cluster
