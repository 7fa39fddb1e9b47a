"""A gateway in front of real brokers, in this process or as a program, and clients of it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.cli.commands import PROGRAM
from tests.waiting import eventually

from ottla import Reader
from ottla.admin import Admin
from ottla.gateway.running import Gateway
from ottla.gateway.settings import Listen, Settings
from ottla.net.access import ClusterAccess

_ANY_PORT = Listen("127.0.0.1", 0)


class Answered(NamedTuple):
    """An answer."""

    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        """Its body."""
        return json.loads(self.body)


@contextmanager
def gateway(bootstrap: str, **settings: Any) -> Iterator[Gateway]:
    """A gateway in this process, on ports of its own."""
    running = Gateway(Settings(cluster=ClusterAccess(bootstrap=bootstrap), http=_ANY_PORT, ops=_ANY_PORT, **settings))
    running.start()
    try:
        yield running
    finally:
        running.stop()


def ask(port: int, method: str, path: str, body: bytes | str = b"", /, **headers: str) -> Answered:
    """Send one request; names of headers have _ for -."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body or None, named)
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Answered(answer.status, answer.read(), found)
    finally:
        connection.close()


def post(gateway: Gateway | int, path: str, body: Any, **headers: str) -> Answered:
    """Post JSON, or bytes as they are."""
    port = gateway if isinstance(gateway, int) else port_of(gateway)
    headers.setdefault("Content_Type", "application/json")
    return ask(port, "POST", path, body if isinstance(body, bytes) else json.dumps(body), **headers)


def port_of(gateway: Gateway) -> int:
    """Return the port of its HTTP listener."""
    assert gateway.http_address is not None
    return gateway.http_address.port


def new_topic(bootstrap: str, name: str, *, partitions: int = 1, replicas: int = 1, **settings: str) -> str:
    """Create a topic with a name of its own."""
    topic = f"gateway-{name}-{os.getpid()}"
    named = {key.replace("_", "."): value for key, value in settings.items()}
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=partitions, replicas=replicas, settings=named)
    return topic


def records_of(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    """Return all records of a topic, as committed readers see them."""
    with Reader(bootstrap) as reader:
        return [row for batch in reader.read(topic) for row in batch.to_pylist()]


class Program:
    """`ottla gateway run` as a program that can be killed."""

    def __init__(self, bootstrap: str, folder: Path, *arguments: str, port: int) -> None:
        self.port = port
        self._command = [*PROGRAM, "gateway", "run", "--bootstrap", bootstrap, "--http", str(port), *arguments]
        self._log = folder / "gateway.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process that runs."""
        assert self._process is not None
        return self._process

    def start(self) -> None:
        """Run it, and return when it takes requests."""
        before = self.log.count("/v1/topics")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        self.await_start(before)

    def await_start(self, before: int) -> None:
        """Wait until it has said once more than `before` where it listens."""
        eventually(
            lambda: self.log.count("/v1/topics") > before or self.process.poll() is not None,
            lambda: f"the gateway runs: {self.log}",
        )
        assert self.process.poll() is None, self.log

    @property
    def log(self) -> str:
        """What it printed."""
        return self._log.read_text() if self._log.exists() else ""

    def kill(self) -> None:
        """End it without any chance to do anything."""
        self.process.kill()
        self.process.wait(30)

    def stop(self) -> int:
        """End it in order; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextmanager
def program(bootstrap: str, folder: Path, *arguments: str) -> Iterator[Program]:
    """A gateway as a program, killed at the end if it still runs."""
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    running = Program(bootstrap, folder, *arguments, port=port)
    running.start()
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.kill()
