"""Sockets are opened, or one sentence says why not; those of systemd are taken over."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.errors import ConfigError, OttlaError
from ottla.gateway import activation
from ottla.gateway.activation import Passed, named, passed
from ottla.gateway.receiving import sockets

_KINDS = pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])


@_KINDS
def test_a_socket_has_its_mode_whatever_the_umask(tmp_path: Path, kind: int) -> None:
    before = os.umask(0o077)
    try:
        with sockets.unix_socket(tmp_path / "s", kind, mode=0o222):
            assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o222
    finally:
        os.umask(before)


@_KINDS
def test_the_file_of_a_dead_process_is_taken_over(tmp_path: Path, kind: int) -> None:
    path = tmp_path / "s"
    program = f"import os, socket; s = socket.socket(socket.AF_UNIX, {int(kind)}); s.bind({str(path)!r}); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
    assert path.exists()
    sockets.unix_socket(path, kind, mode=0o222).close()


@_KINDS
def test_a_socket_in_use_is_left_alone(tmp_path: Path, kind: int) -> None:
    path = tmp_path / "s"
    with sockets.unix_socket(path, kind, mode=0o222):
        for other in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
            with pytest.raises(OttlaError, match=rf"cannot listen on {path}: another process listens there"):
                sockets.unix_socket(path, other, mode=0o222)
        assert path.exists()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(OttlaError, match="is no socket"):
        sockets.unix_socket(path, socket.SOCK_DGRAM, mode=0o222)
    assert path.read_text() == "precious"


def test_paths_that_no_socket_can_have_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has 2.. bytes, the system allows 107: shorten it"):
        sockets.unix_socket(tmp_path / ("x" * 200), socket.SOCK_DGRAM, mode=0o222)
    with pytest.raises(OttlaError, match=r"the folder .*none.*: No such file or directory"):
        sockets.unix_socket(tmp_path / "none" / "s", socket.SOCK_DGRAM, mode=0o222)


def test_only_the_own_file_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with sockets.unix_socket(path, socket.SOCK_DGRAM, mode=0o222):
        file = sockets.file_of(path)
        path.unlink()
        with sockets.unix_socket(path, socket.SOCK_DGRAM, mode=0o222):
            sockets.remove(file)
            assert path.exists(), "it belongs to the second"
            sockets.remove(sockets.file_of(path))
            assert not path.exists()
            sockets.remove(file)


def test_ports_that_cannot_be_had_are_named() -> None:
    with sockets.stream_listener("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OttlaError, match=rf"cannot listen on 127.0.0.1:{port}: Address already in use"):
            sockets.stream_listener("127.0.0.1", port)
    with pytest.raises(OttlaError, match=r"no\.such\.host\.invalid"):
        sockets.udp_socket("no.such.host.invalid", 514)
    with pytest.raises(ConfigError, match="0 to 65535"):
        sockets.udp_socket("127.0.0.1", 70_000)


def test_two_processes_may_share_a_port_if_they_want(tmp_path: Path) -> None:
    with sockets.stream_listener("127.0.0.1", 0, reuse_port=True) as first:
        sockets.stream_listener("127.0.0.1", first.getsockname()[1], reuse_port=True).close()


# Activation


def test_descriptors_come_from_the_environment() -> None:
    variables = {"LISTEN_PID": "7", "LISTEN_FDS": "3", "LISTEN_FDNAMES": "syslog:http:syslog"}
    entries = passed(variables, pid=7)
    assert entries == (Passed(3, "syslog"), Passed(4, "http"), Passed(5, "syslog"))
    assert named(entries, "syslog") == (3, 5)
    assert passed(variables, pid=8) == (), "they are for another process"
    assert passed({}, pid=7) == ()
    assert passed({"LISTEN_PID": "7", "LISTEN_FDS": "1"}, pid=7) == (Passed(3, ""),)


@pytest.mark.parametrize(
    "variables",
    [
        {"LISTEN_FDS": "x"},
        {"LISTEN_FDS": "-1"},
        {"LISTEN_FDS": "99999999"},
        {"LISTEN_FDS": "2", "LISTEN_FDNAMES": "one"},
    ],
)
def test_variables_that_contradict_each_other_are_refused(variables: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        passed(variables, pid=1)


def test_only_a_socket_of_the_right_kind_is_adopted() -> None:
    def adopt(descriptor: int, kind: int) -> socket.socket:
        return activation.adopt(descriptor, kind=kind, what="the listener")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        with pytest.raises(ConfigError, match="is a SOCK_STREAM, expected a SOCK_DGRAM"):
            adopt(listening.fileno(), socket.SOCK_DGRAM)
        with adopt(os.dup(listening.fileno()), socket.SOCK_STREAM) as adopted:
            assert adopted.getsockname() == listening.getsockname()
            assert not os.get_inheritable(adopted.fileno())
        connection = socket.create_connection(listening.getsockname())
        with connection, pytest.raises(ConfigError, match="Accept=no"):
            adopt(connection.fileno(), socket.SOCK_STREAM)
    with open(os.devnull, "rb") as file, pytest.raises(ConfigError, match="is not a socket"):
        adopt(file.fileno(), socket.SOCK_STREAM)
