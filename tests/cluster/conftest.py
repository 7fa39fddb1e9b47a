"""A Maven repository on 127.0.0.1 with faults on demand, and a folder for clusters that must be empty at the end."""

from __future__ import annotations

import hashlib
import threading
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from ottla.cluster import LocalCluster
from ottla.cluster.pinned import Jar


@dataclass
class Repository:
    """What it serves by path, how the next responses for a path are damaged, and how often each path was requested."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    spoilt: dict[str, list[str]] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    delay: float = 0.0
    logins: list[str] = field(default_factory=list)

    def add(self, artifact: str, content: bytes, *spoilt: str) -> Jar:
        """Serve one more jar; its first responses are damaged."""
        jar = Jar(f"org.example:{artifact}:1.0", hashlib.sha256(content).hexdigest(), len(content))
        self.files[f"/{jar.path}"] = content
        self.spoilt[f"/{jar.path}"] = list(spoilt)
        return jar


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    served = Repository()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(served))
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield served
    server.shutdown()
    thread.join()
    server.server_close()


def _handler(served: Repository) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.requests[self.path] += 1
            if login := self.headers["Authorization"]:
                served.logins.append(b64decode(login.removeprefix("Basic ")).decode())
            queue = served.spoilt.get(self.path, [])
            how = queue.pop(0) if queue else "whole"
            content = served.files.get(self.path)
            if content is None or how.isdigit():
                self.send_error(int(how) if how.isdigit() else 404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            time.sleep(served.delay)
            if how == "half":
                content = content[: len(content) // 2]
            if how == "altered":
                content = b"?" + content[1:]
            if how != "silent":
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    return Handler


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for clusters. Everything that a test leaves in it is taken down, and no process of it may remain."""
    yield tmp_path
    for status in LocalCluster.all(tmp_path):
        LocalCluster(status.name, dir=tmp_path).down()
    assert processes_of(tmp_path) == []


def processes_of(folder: Path) -> list[str]:
    """Return the command lines of all processes that belong to clusters in this folder."""
    commands = []
    for process in psutil.process_iter():
        try:
            command = " ".join(process.cmdline())
            ours = process.name() in ("java", "sh") and str(folder) in command
            redis = process.name().startswith("redis-server") and process.cwd().startswith(str(folder))
            if ours or redis:
                commands.append(command)
        except psutil.Error:
            continue
    return commands
