"""Clients that are given no address: the environment, then the local cluster that is running."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ottla import Admin, Consumer, Fleet, Producer, Reader
from ottla.cluster.creation import ClusterRequest
from ottla.cluster.state import ClusterFolder, Phase
from ottla.default_address import default_bootstrap
from ottla.errors import ConfigError
from ottla.testing import FakeKafka

CLIENTS: list[Callable[[], object]] = [
    Admin,
    Producer,
    Reader,
    lambda: Consumer(group="app", topics=["clicks"]),
    lambda: Fleet(group="etl", topics=["clicks"], store="memory://"),
]


@pytest.fixture(autouse=True)
def _no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTTLA_BOOTSTRAP", raising=False)
    monkeypatch.setenv("OTTLA_DIR", str(tmp_path))


def _running(folder: Path, name: str, *, phase: Phase = Phase.RUNNING, secure: bool = False) -> str:
    """Leave the state of a running cluster in a folder."""
    request = ClusterRequest(brokers=2, secure=secure, cache_dir=folder)
    state = replace(request.new_state(name, random.Random(name)), phase=phase)
    ClusterFolder(folder, name).save(state)
    return state.anywhere


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_without_an_address_says_what_it_needs(client: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match="OTTLA_BOOTSTRAP is not set and no local cluster is running: pass HOST:PORT"):
        client()


@pytest.mark.parametrize("client", CLIENTS[1:])
def test_the_environment_names_the_brokers(client: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_BOOTSTRAP", "localhost:99999")
    with pytest.raises(ConfigError, match="localhost:99999"):
        client()


def test_a_client_without_an_address_works_with_the_brokers_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeKafka(topics={"clicks": 1}) as kafka:
        monkeypatch.setenv("OTTLA_BOOTSTRAP", kafka.bootstrap)
        with Producer() as producer:
            producer.send("clicks", b"hello")
        with Reader() as reader:
            assert reader.count("clicks") == 1


def test_the_local_cluster_is_found_the_one_named_default_first(tmp_path: Path) -> None:
    address = _running(tmp_path, "other")
    assert default_bootstrap() == address
    address = _running(tmp_path, "default")
    assert default_bootstrap() == address


def test_several_clusters_of_which_none_is_the_default_are_named(tmp_path: Path) -> None:
    _running(tmp_path, "one")
    _running(tmp_path, "two")
    with pytest.raises(ConfigError, match=r"several local clusters are running \(one, two\)"):
        default_bootstrap()


def test_clusters_that_are_stopped_or_want_credentials_do_not_count(tmp_path: Path) -> None:
    _running(tmp_path, "secure", secure=True)
    _running(tmp_path, "starting", phase=Phase.STARTING)
    _running(tmp_path, "stopped")
    _running(tmp_path, "stopped", phase=Phase.KEPT)
    with pytest.raises(ConfigError, match="no local cluster is running"):
        default_bootstrap()
