"""The clients in `examples/gateway` send what the gateway understands, and say what is wrong."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.gateway.datagram.format import Message, read

EXAMPLES = Path(__file__).parents[2] / "examples" / "gateway"
_CC = shutil.which("cc") or shutil.which("gcc")
_BASH = shutil.which("bash")
_SECONDS = 60


@pytest.fixture
def taker(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "s"))
        sock.settimeout(_SECONDS)
        yield sock


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> str:
    if _CC is None:
        pytest.skip("no C compiler on this machine: apt install gcc")
    program = tmp_path_factory.mktemp("c") / "send"
    strict = ["-std=c11", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror", "-O2"]
    subprocess.run([_CC, *strict, "-o", str(program), str(EXAMPLES / "send.c")], check=True, timeout=_SECONDS)
    return str(program)


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)


def _check(data: bytes, topic: bytes, value: bytes, key: bytes | None) -> None:
    message = read(data)
    assert isinstance(message, Message)
    assert (message.topic, message.value, message.key, message.headers) == (topic, value, key, ())
    assert abs(message.timestamp_ms / 1000 - time.time()) < _SECONDS


def test_the_client_in_c(compiled: str, taker: socket.socket, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    assert _run(compiled, path, "clicks", "välue").returncode == 0
    _check(taker.recv(1000), b"clicks", "välue".encode(), None)
    assert _run(compiled, path, "clicks", "x" * 50_000, "key").returncode == 0
    _check(taker.recv(100_000), b"clicks", b"x" * 50_000, b"key")
    for command, code in (
        ((compiled,), 2),
        ((compiled, path, "", "v"), 2),
        ((compiled, "x" * 200, "t", "v"), 2),
        ((compiled, str(tmp_path / "none"), "t", "v"), 1),
    ):
        done = _run(*command)
        assert (done.returncode, done.stderr != "") == (code, True)


@pytest.mark.skipif(_BASH is None, reason="no bash on this machine")
def test_the_client_for_the_shell_by_tcp() -> None:
    script = str(EXAMPLES / "send.sh")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(_SECONDS)
        place = f"127.0.0.1:{listening.getsockname()[1]}"
        for value, key in (("välue 100%", None), ("line\nbreak", "kéy"), ("", "k")):
            done = _run(str(_BASH), script, place, "clicks", value, *([key] if key else []))
            assert (done.returncode, done.stderr) == (0, "")
            connection, _ = listening.accept()
            with connection, connection.makefile("rb") as stream:
                _check(stream.read(), b"clicks", value.encode(), key.encode() if key else None)
    assert _run(str(_BASH), script, place, "clicks", "v").returncode == 1
    for arguments in ((), ("place", "t", "v"), (place, "", "v")):
        assert _run(str(_BASH), script, *arguments).returncode == 2


@pytest.mark.skipif(_BASH is None or shutil.which("socat") is None, reason="no bash or socat: apt install socat")
def test_the_client_for_the_shell_by_unix_datagram(taker: socket.socket, tmp_path: Path) -> None:
    done = _run(str(_BASH), str(EXAMPLES / "send.sh"), str(tmp_path / "s"), "clicks", "value", "key")
    assert (done.returncode, done.stderr) == (0, "")
    _check(taker.recv(1000), b"clicks", b"value", b"key")


def test_the_client_in_python(taker: socket.socket, tmp_path: Path) -> None:
    script, path = str(EXAMPLES / "send.py"), str(tmp_path / "s")
    assert _run(sys.executable, script, path, "clicks", "välue").returncode == 0
    _check(taker.recv(1000), b"clicks", "välue".encode(), None)
    assert _run(sys.executable, script, path, "clicks", "v", "--key", "k", "--header", "a=1").returncode == 0
    found = read(taker.recv(1000))
    assert isinstance(found, Message)
    assert (found.key, found.headers) == (b"k", ((b"a", b"1"),))
    done = _run(sys.executable, script, str(tmp_path / "none"), "clicks", "v")
    assert (done.returncode, done.stderr) == (1, f"error: {tmp_path}/none: No such file or directory\n")
