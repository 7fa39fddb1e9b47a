"""A spool has one owner: others get an error that names it, and a dead owner does not count."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ottla.errors import SpoolFailed, SpoolInUse
from ottla.produce.spool import Store, inspect

from .batches import entry, numbers

ROOT = Path(__file__).parents[3]
HOLD = """
import os, sys
from ottla.produce.spool import Store
from tests.produce.spool.batches import entry
store = Store.open(sys.argv[1])
store.put(entry(7))
"""


@contextmanager
def program(text: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Another process that runs `text` and prints a line when it is ready."""
    command = [sys.executable, "-c", text, *map(str, arguments)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def test_a_second_owner_in_this_process_is_refused(tmp_path: Path) -> None:
    with Store.open(tmp_path) as first:
        with pytest.raises(SpoolInUse, match=f"in use by process {os.getpid()}") as caught:
            Store.open(tmp_path)
        assert (caught.value.path, caught.value.pid) == (str(tmp_path), os.getpid())
        first.put(entry(1))
    with Store.open(tmp_path) as second:
        assert numbers(second) == [1]


def test_another_process_is_refused_and_named_and_after_its_kill_the_spool_is_free(tmp_path: Path) -> None:
    with program(HOLD + "print('ready', flush=True); sys.stdin.read()", tmp_path) as other:
        with pytest.raises(SpoolInUse) as caught:
            Store.open(tmp_path)
        assert caught.value.pid == other.pid
        stored, damage, owner = inspect(tmp_path)
        assert owner is not None
        assert owner.pid == other.pid
        assert ([s.header.base_sequence for s in stored], damage) == ([7], [])
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert inspect(tmp_path)[2] is None
        with Store.open(tmp_path) as store:
            assert numbers(store) == [7]


def test_a_forked_child_is_refused_and_does_not_keep_the_spool_of_its_dead_parent(tmp_path: Path) -> None:
    text = HOLD + (
        "from ottla.errors import UsedAfterFork\n"
        "if os.fork():\n"
        "    os.kill(os.getpid(), 9)\n"
        "try:\n"
        "    store.put(entry(8))\n"
        "except UsedAfterFork as exc:\n"
        "    assert str(os.getppid()) or exc\n"
        "    store.close()\n"  # closing in the child does not affect the parent
        "    print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with program(text, tmp_path) as other:
        other.wait()  # the parent; the child lives on
        with Store.open(tmp_path) as store:
            assert numbers(store) == [7]


def test_a_closing_child_does_not_take_the_spool_from_its_parent(tmp_path: Path) -> None:
    text = HOLD + (
        "child = os.fork()\n"
        "if not child:\n"
        "    store.close(); os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "store.put(entry(8))\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with program(text, tmp_path) as other:
        with pytest.raises(SpoolInUse):
            Store.open(tmp_path)
        assert [s.header.base_sequence for s in inspect(tmp_path)[0]] == [7, 8]
        other.kill()


def test_a_link_to_the_directory_is_the_same_spool(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real").mkdir()
    with Store.open(tmp_path / "real") as store:
        store.put(entry(1))
        with pytest.raises(SpoolInUse):
            Store.open(tmp_path / "link")
    with Store.open(tmp_path / "link") as store:
        assert numbers(store) == [1]


@pytest.mark.parametrize("name", ["owner", "000001.log"])
def test_a_link_in_place_of_a_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "elsewhere").write_text("precious")
    spool = tmp_path / "s"
    spool.mkdir()
    (spool / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SpoolFailed, match="symbolic link"):
        Store.open(spool)
    assert (tmp_path / "elsewhere").read_text() == "precious"


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("precious")
    with pytest.raises(SpoolFailed, match="is not a directory"):
        Store.open(tmp_path / "s")
    with pytest.raises(SpoolFailed, match="cannot be created"):
        Store.open(tmp_path / "s" / "below")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(SpoolFailed, match="cannot be created"):
        Store.open(tmp_path / "dangling")


@pytest.fixture
def visible() -> Iterator[Path]:
    """A directory that other users may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def test_a_directory_that_cannot_be_written_is_refused(visible: Path) -> None:
    (visible / "s").mkdir(mode=0o555)
    (visible / "below").mkdir(mode=0o555)
    text = (
        "import os, sys\n"
        "from ottla.errors import SpoolFailed\n"
        "from ottla.produce.spool import Store\n"
        "os.chdir(sys.argv[1])\n"
        "if os.getuid() == 0:\n"
        "    os.setgid(65534); os.setuid(65534)\n"  # permissions mean nothing to root
        "for path in ('s', 'below/s'):\n"
        "    try:\n"
        "        Store.open(path)\n"
        "    except SpoolFailed as exc:\n"
        "        print(exc)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", text, str(visible)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    first, second = result.stdout.splitlines()
    assert first.endswith("s/owner: cannot be opened: Permission denied")
    assert second.endswith("below/s: cannot be created: Permission denied")


def test_an_owner_whose_file_was_taken_away_notices(tmp_path: Path) -> None:
    with Store.open(tmp_path, segment_bytes=4096) as store:
        store.put(entry(1, size_bytes=3000))
        (tmp_path / "owner").unlink()
        with pytest.raises(SpoolFailed, match="may have another owner now"):
            store.put(entry(2, size_bytes=3000))


def test_a_directory_that_is_deleted_in_use_is_reported_at_the_next_put(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s") as store:
        store.put(entry(1))
        for name in os.listdir(tmp_path / "s"):
            os.unlink(tmp_path / "s" / name)
        os.rmdir(tmp_path / "s")
        with pytest.raises(SpoolFailed, match="deleted"):
            store.put(entry(2))
        with pytest.raises(SpoolFailed, match="deleted"):
            store.put(entry(3))
        store.settle()


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o702])
def test_a_directory_that_others_can_write_to_is_refused_with_what_to_do(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "s"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(
        SpoolFailed, match=rf"other users can write to it \(mode {mode:04o}\).*chmod 700 .*/s, else use"
    ):
        Store.open(path)
    assert os.listdir(path) == []
    with Store.open(path / "inside") as store:
        assert stat.S_IMODE(store.path.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o711])
def test_a_directory_that_others_can_read_is_for_its_owner_only_from_now_on(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "s"
    path.mkdir()
    path.chmod(mode)
    with Store.open(path) as store:
        store.put(entry(1))
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
