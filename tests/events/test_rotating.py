"""Rotating files of events: complete whatever happens, compressed, bounded, and other files are not touched."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.waiting import eventually

from ottla.errors import ConfigError, OttlaError
from ottla.events import Events, Flushed, FlushFailed, JsonLinesSink, RotatingFiles, StoreDown, TimeDown, UnitEnded

from .samples import in_threads, sample

# Writes events until it is killed; each is on the disk when its number is printed.
_PROGRAM = """
import itertools, sys
from ottla.events import RotatingFiles, TimeDown
sink = RotatingFiles(sys.argv[1], max_bytes=int(sys.argv[2]))
for number in itertools.count():
    sink(TimeDown(number, "kafka:9092", 1.0))
    print(number, flush=True)
    if number + 1 == int(sys.argv[3]):
        sys.stdin.read()
"""


def _event(number: int) -> TimeDown:
    return TimeDown(number, "kafka:9092", 1.0)


def _numbers(folder: Path) -> list[int]:
    """The events in all files. A file may exist twice for a moment, plain and compressed."""
    events = []
    for path in sorted(folder.glob("events-*.jsonl*")):
        if path.suffix == ".tmp" or (path.suffix == ".jsonl" and path.with_name(f"{path.name}.gz").exists()):
            continue
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        events += [json.loads(line)["broker_id"] for line in data.splitlines()]
    return events


@contextmanager
def _writing(folder: Path, *, max_bytes: int, count: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has written `count` events, and waits."""
    command = [sys.executable, "-c", _PROGRAM, str(folder), str(max_bytes), str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while process.stdout.readline() != b"%d\n" % (count - 1):
            assert process.poll() is None
        try:
            yield process
        finally:
            process.kill()


def test_a_file_ends_after_this_many_bytes_and_is_compressed(tmp_path: Path) -> None:
    sink = RotatingFiles(tmp_path / "new" / "folder", max_bytes=1000)
    for number in range(100):
        sink(_event(number))
    sink.close()
    folder = tmp_path / "new" / "folder"
    assert sorted(_numbers(folder)) == list(range(100))
    files = sorted(folder.iterdir())
    assert len(files) > 5
    assert {path.suffix for path in files[-1:]} == {".gz"}
    assert f"-{os.getpid()}-000001.jsonl" in files[0].name
    assert all(len(gzip.decompress(path.read_bytes())) < 1200 for path in files if path.suffix == ".gz")


def test_a_file_ends_after_some_time(tmp_path: Path) -> None:
    sink = RotatingFiles(tmp_path, max_seconds=1e-9)
    for number in range(3):
        sink(_event(number))
    sink.close()
    assert len(list(tmp_path.iterdir())) >= 3
    assert sorted(_numbers(tmp_path)) == [0, 1, 2]


def test_events_of_many_threads_are_all_there(tmp_path: Path) -> None:
    events = [sample(kind) for kind in (Flushed, FlushFailed, UnitEnded, StoreDown)]
    with Events(RotatingFiles(tmp_path, max_bytes=20_000)) as hub:
        in_threads(4, lambda: any(map(hub.emit, events)), times=10)
    lines = [line for path in tmp_path.iterdir() for line in _content(path).splitlines()]
    assert len(lines) == 40 * len(events)
    assert {json.loads(line)["event"] for line in lines} == {event.kind for event in events}


def _content(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def test_after_the_end_events_are_ignored(tmp_path: Path) -> None:
    sink = RotatingFiles(tmp_path)
    sink.close()
    sink(_event(1))
    sink.close()
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_is_killed_loses_nothing_and_the_next_compresses_its_file(tmp_path: Path) -> None:
    with _writing(tmp_path, max_bytes=10_000_000, count=50) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    [left] = tmp_path.iterdir()
    assert left.suffix == ".jsonl"
    sink = RotatingFiles(tmp_path, max_bytes=1)
    sink(_event(1000))
    sink(_event(1001))
    eventually(lambda: not left.exists(), "the file of the dead process was not compressed")
    sink.close()
    assert left.with_name(f"{left.name}.gz").exists()
    assert sorted(_numbers(tmp_path)) == [*range(50), 1000, 1001]


def test_the_file_of_a_process_that_lives_is_left_alone(tmp_path: Path) -> None:
    with _writing(tmp_path, max_bytes=10_000_000, count=3):
        [theirs] = tmp_path.iterdir()
        sink = RotatingFiles(tmp_path, max_bytes=1, keep_bytes=1, keep_seconds=1e-9)
        for number in range(5):
            sink(_event(number))
        sink.close()
        assert [path.name for path in tmp_path.iterdir()] == [theirs.name]
        assert len(theirs.read_bytes().splitlines()) == 3


def test_a_crash_in_the_middle_of_compressing_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    line = b'{"time": 1.0, "event": "time_down", "broker_id": 7, "address": "a:1", "seconds": 1.0}\n'
    half, whole = tmp_path / "events-gone-1-000001.jsonl", tmp_path / "events-gone-1-000002.jsonl"
    half.write_bytes(line)
    half.with_name(f"{half.name}.gz.tmp").write_bytes(gzip.compress(line)[:20])
    whole.write_bytes(line)
    whole.with_name(f"{whole.name}.gz").write_bytes(gzip.compress(line))
    assert _numbers(tmp_path) == [7, 7]
    sink = RotatingFiles(tmp_path, max_bytes=1)
    sink(_event(1))
    sink(_event(2))
    eventually(lambda: not half.exists() and not whole.exists(), "not compressed")
    sink.close()
    assert sorted(_numbers(tmp_path)) == [1, 2, 7, 7]
    assert not list(tmp_path.glob("*.tmp"))


def test_the_oldest_files_are_deleted_and_only_those_of_such_names(tmp_path: Path) -> None:
    others = ["events-.jsonl", "events-host-1.jsonl", "my-events-host-1-000001.jsonl", "events-host-1-000001.json"]
    for name in others:
        (tmp_path / name).write_bytes(b"x" * 5000)
    for number in range(1, 10):
        path = tmp_path / f"events-host-1-00000{number}.jsonl.gz"
        path.write_bytes(b"x" * 1000)
        os.utime(path, (number, number))
    sink = RotatingFiles(tmp_path, keep_bytes=3500)
    sink(_event(1))
    sink.close()
    left = sorted(path.name for path in tmp_path.iterdir() if path.name not in others)
    assert left[:3] == [f"events-host-1-00000{number}.jsonl.gz" for number in (7, 8, 9)]
    assert len(left) == 4
    assert all((tmp_path / name).exists() for name in others)


def test_files_whose_last_event_is_old_are_deleted(tmp_path: Path) -> None:
    old, young = tmp_path / "events-host-1-000001.jsonl", tmp_path / "events-host-1-000002.jsonl"
    old.write_bytes(b"{}\n")
    young.write_bytes(b"{}\n")
    os.utime(old, (1000, 1000))
    sink = RotatingFiles(tmp_path, max_bytes=1, keep_seconds=3600)
    sink(_event(1))
    sink(_event(2))
    eventually(lambda: not old.exists() and not young.exists(), "not tidied")
    sink.close()
    assert not (tmp_path / f"{old.name}.gz").exists(), "compressing made it young"
    assert (tmp_path / f"{young.name}.gz").exists()


def test_a_number_that_was_used_is_not_used_again(tmp_path: Path) -> None:
    first = RotatingFiles(tmp_path)
    first(_event(1))
    first.close()
    second, third = RotatingFiles(tmp_path), RotatingFiles(tmp_path)
    second(_event(2))
    third(_event(3))
    second.close()
    third.close()
    assert sorted(_numbers(tmp_path)) == [1, 2, 3]


def test_a_forked_child_has_files_of_its_own(tmp_path: Path) -> None:
    code = """
import os, sys
from ottla.events import RotatingFiles, TimeDown
sink = RotatingFiles(sys.argv[1])
sink(TimeDown(1, "a:1", 1.0))
child = os.fork()
sink(TimeDown(2 if child else 3, "a:1", 1.0))
if child:
    os.waitpid(child, 0)
sink.close()
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60)
    files = list(tmp_path.iterdir())
    assert len(files) == 2
    assert {path.suffix for path in files} == {".gz"}
    assert sorted(_numbers(tmp_path)) == [1, 2, 3]


def test_what_the_disk_refuses_is_an_error_of_ottlas(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OttlaError, match="cannot write events to"):
        RotatingFiles(tmp_path / "file")(_event(1))


@pytest.mark.parametrize("name", ["max_bytes", "max_seconds", "keep_bytes", "keep_seconds"])
def test_limits_are_above_0(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"RotatingFiles\({name}=...\) must be above 0, got 0"):
        RotatingFiles(tmp_path, **{name: 0})


def test_a_file_that_another_process_took_before_it_was_locked_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between creating and locking, another process may take a new file for an abandoned one."""
    real = fcntl.flock
    taken: list[Path] = []

    def late(handle: int, operation: int) -> None:
        if not taken:
            [path] = tmp_path.iterdir()
            taken.append(path)
            path.unlink()
        real(handle, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    sink = RotatingFiles(tmp_path)
    sink(_event(5))
    sink.close()
    assert taken
    assert _numbers(tmp_path) == [5]


def test_a_relative_folder_is_that_of_the_directory_in_which_the_sink_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with Events(RotatingFiles("events"), JsonLinesSink("events.jsonl")) as events:
        monkeypatch.chdir(tmp_path / "elsewhere")
        events.emit(sample(Flushed))
    assert len(list((tmp_path / "events").iterdir())) == 1
    assert (tmp_path / "events.jsonl").read_text().count("flushed") == 1
    assert list((tmp_path / "elsewhere").iterdir()) == []
