"""Files are replaced as a whole, and only files are replaced."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

from ottla.files import replace_whole


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    replace_whole(path, b"first")
    replace_whole(path, b"second")
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"second", ["state.json"])


def test_a_link_stays_a_link_to_the_file_that_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "real.json", tmp_path / "link.json"
    target.write_bytes(b"first")
    link.symlink_to(target)
    replace_whole(link, b"second")
    assert (link.is_symlink(), target.read_bytes()) == (True, b"second")


def test_what_is_no_file_is_written_to_and_stays_what_it_is(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    replace_whole(pipe, b"page")
    reader.join(10)
    assert (read, stat.S_ISFIFO(pipe.stat().st_mode)) == ([b"page"], True)
