"""Small files are read with a limit, and nothing else is."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from ottla import Reader, small_files
from ottla.errors import ConfigError
from ottla.settings_table import Table
from ottla.small_files import MOST_BYTES, read_line, small_text


def test_text_up_to_the_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_bytes("größe\r\nmore".encode())
    assert read_line(path) == "größe"
    path.write_bytes(b"x" * MOST_BYTES)
    assert len(small_text(path)) == MOST_BYTES


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"x" * (MOST_BYTES + 1), "larger than 64 kB"), (b"\xff", "not text"), (b"a:1\0", "not text"), (None, "regular")],
)
def test_anything_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, reason: str
) -> None:
    """Regression: a device never ended, zeros became the name of a host."""
    path = tmp_path / "default" / "bootstrap"
    path.parent.mkdir()
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    monkeypatch.delenv("OTTLA_BOOTSTRAP", raising=False)
    monkeypatch.setenv("OTTLA_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match=f"address file .*bootstrap cannot be read: it is .*{reason}"):
        Reader()


def test_a_pipe_of_a_shell_is_read_to_its_end() -> None:
    reading, writing = os.pipe()
    with open(reading, "rb"), open(writing, "wb", buffering=0) as writer:

        def write() -> None:
            for piece in (b"se", b"cret\n"):
                writer.write(piece)
            writer.close()

        thread = threading.Thread(target=write)
        thread.start()
        assert read_line(f"/dev/fd/{reading}") == "secret"
        thread.join()


def test_a_pipe_waits_for_who_writes_into_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: a password was empty if its program opened the pipe a moment later."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(b"secret\n",))
    wait = small_files._wait

    def write_first(descriptor: int, waited_for: Path) -> None:
        if not writer.ident:
            writer.start()
        wait(descriptor, waited_for)

    monkeypatch.setattr(small_files, "_wait", write_first)
    assert read_line(path) == "secret"
    writer.join()


def test_a_pipe_that_nobody_writes_into_does_not_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.small_files._PIPE_SECONDS", 0.1)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"nothing came from the pipe for 0\.1 s"):
        small_text(tmp_path / "pipe")


def test_an_empty_pipe_of_a_shell_is_an_empty_file() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    with open(reading, "rb"):
        assert small_text(f"/dev/fd/{reading}") == ""


def test_a_pipe_without_an_end_is_refused() -> None:
    reading, writing = os.pipe()
    with open(reading, "rb"), open(writing, "wb", buffering=0) as writer:
        thread = threading.Thread(target=writer.write, args=(b"x" * (MOST_BYTES + 1),))
        thread.start()
        with pytest.raises(OSError, match="larger than 64 kB"):
            small_text(f"/dev/fd/{reading}")
        thread.join()


def test_a_device_is_no_password_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="password_file: /dev/zero cannot be read: it is not a regular file"):
        Table({"password_file": "/dev/zero"}, "the file", tmp_path).secret("password", {})
