"""Disks that are full, that fail an fsync, that cut writes short, and that change what was written."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.waiting import eventually

from ottla.testing import FakeKafka

from .conftest import NewPuppet
from .puppet import value_of
from .stage import Puppet, Refused

_TOPIC = "t"
_SIZE = 1000


@pytest.fixture
def broker() -> Iterator[FakeKafka]:
    """A broker with one topic of one partition."""
    with FakeKafka(topics={_TOPIC: 1}) as kafka:
        yield kafka


def numbers(broker: FakeKafka) -> list[int]:
    """The numbers of the records, in log order."""
    return [int(bytes(record.value or b"").split(b":")[1]) for record in broker.records(_TOPIC, 0)]


def knowing(broker: FakeKafka, puppet: NewPuppet, path: Path, **options: object) -> Puppet:
    """A producer whose spool knows the topic, and which has no broker."""
    first = puppet()
    first.ask("open", bootstrap=broker.bootstrap, spool={"path": str(path)})
    first.ask("send", topic=_TOPIC, writer="a", start=0, count=1)
    first.ask("close")
    broker.all_down()
    program = puppet()
    program.ask("open", bootstrap=broker.bootstrap, spool={"path": str(path), **options})
    return program


def deliver(broker: FakeKafka, puppet: NewPuppet, path: Path) -> list[dict[str, object]]:
    """The next producer delivers what is there. Returns its events about the spool."""
    broker.all_up()
    heir = puppet()
    heir.ask("open", bootstrap=broker.bootstrap, spool={"path": str(path)})
    heir.ask("flush")
    events: list[dict[str, object]] = heir.ask("events")
    heir.ask("close")
    return events


@contextlib.contextmanager
def _mounted(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"only root may mount: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        _run("umount", "-l", str(folder))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A file system of 4 MB, and a function that makes it larger."""
    with _mounted(tmp_path / "disk", "4m") as folder:
        yield folder, lambda: _run("mount", "-o", "remount,size=64m", str(folder))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@pytest.mark.parametrize("write_ahead", [False, True])
def test_a_full_disk_is_said_and_nothing_is_lost_when_there_is_room_again(
    broker: FakeKafka, puppet: NewPuppet, small_disk: tuple[Path, Callable[[], None]], write_ahead: bool
) -> None:
    path = small_disk[0] / "spool"
    program = knowing(broker, puppet, path, write_ahead=write_ahead)
    program.ask("send", topic=_TOPIC, writer="a", start=1, count=999, size=_SIZE)
    program.ask("persist")
    program.ask("send", topic=_TOPIC, writer="a", start=1000, count=9000, size=_SIZE)
    with pytest.raises(Refused, match="No space left"):
        program.ask("persist", timeout=1.0)
    assert any("No space left" in event["reason"] for event in program.ask("events"))
    small_disk[1]()
    program.ask("persist")
    program.kill()
    assert deliver(broker, puppet, path) == []
    assert numbers(broker) == list(range(10_000))


def test_what_was_persisted_before_the_disk_was_full_survives_a_kill(
    broker: FakeKafka, puppet: NewPuppet, small_disk: tuple[Path, Callable[[], None]]
) -> None:
    path = small_disk[0] / "spool"
    program = knowing(broker, puppet, path)
    program.ask("send", topic=_TOPIC, writer="a", start=1, count=999, size=_SIZE)
    program.ask("persist")
    program.ask("send", topic=_TOPIC, writer="a", start=1000, count=9000, size=_SIZE)
    with pytest.raises(Refused, match="No space left"):
        program.ask("persist", timeout=1.0)
    program.kill()
    small_disk[1]()  # batches stored without a producer id are written again with it, which takes room
    deliver(broker, puppet, path)
    delivered = numbers(broker)
    assert delivered == list(range(len(delivered)))
    assert len(delivered) >= 1000


def test_a_write_that_was_cut_short_leaves_nothing_half(broker: FakeKafka, puppet: NewPuppet, tmp_path: Path) -> None:
    path = tmp_path / "spool"
    program = knowing(broker, puppet, path)
    program.ask("limit_files", size=100_000)
    program.ask("send", topic=_TOPIC, writer="a", start=1, count=50, size=_SIZE)
    program.ask("persist")
    program.ask("send", topic=_TOPIC, writer="a", start=51, count=949, size=_SIZE)
    with pytest.raises(Refused, match=r"SpoolFailed.*File too large"):
        program.ask("persist", timeout=1.0)
    program.ask("limit_files", size=None)
    program.ask("persist")
    program.kill()
    assert deliver(broker, puppet, path) == []
    assert numbers(broker) == list(range(1000))


def test_persist_waits_for_fdatasync(broker: FakeKafka, puppet: NewPuppet, tmp_path: Path) -> None:
    program = knowing(broker, puppet, tmp_path / "spool", fsync=True)
    for number in range(1, 6):
        before = program.ask("fdatasyncs")
        program.ask("send", topic=_TOPIC, writer="a", start=number, count=1)
        program.ask("persist")
        assert program.ask("fdatasyncs") > before
    program.kill()
    deliver(broker, puppet, tmp_path / "spool")
    assert numbers(broker) == list(range(6))


def test_with_write_ahead_nothing_is_sent_before_fdatasync(
    broker: FakeKafka, puppet: NewPuppet, tmp_path: Path
) -> None:
    program = puppet()
    program.ask("open", bootstrap=broker.bootstrap, spool=_durable(tmp_path))
    program.ask("send", topic=_TOPIC, writer="a", start=0, count=1)
    program.ask("flush")
    assert program.ask("fdatasyncs") == 1
    program.ask("fail_fdatasync", times=1_000_000)
    program.ask("send", topic=_TOPIC, writer="a", start=1, count=1)
    with pytest.raises(Refused, match="TimeoutError"):
        program.ask("flush", timeout=1.0)
    assert numbers(broker) == [0]
    program.ask("fail_fdatasync", times=0)
    program.ask("flush")
    assert numbers(broker) == [0, 1]


def _durable(tmp_path: Path) -> dict[str, object]:
    return {"path": str(tmp_path / "spool"), "write_ahead": True, "fsync": True}


def test_an_fdatasync_that_fails_once_is_not_believed_the_second_time(
    broker: FakeKafka, puppet: NewPuppet, tmp_path: Path
) -> None:
    path = tmp_path / "spool"
    program = knowing(broker, puppet, path, fsync=True)
    program.ask("send", topic=_TOPIC, writer="a", start=1, count=20, batches=True)
    program.ask("fail_fdatasync", times=1)
    program.ask("send", topic=_TOPIC, writer="a", start=21, count=1, size=5000)
    program.ask("persist")
    program.kill()
    # What the failed fsync may have lost was written again, into another file.
    assert sum(value_of("a", 21, 5000) in file.read_bytes() for file in path.glob("*.log")) == 2
    assert deliver(broker, puppet, path) == []
    assert numbers(broker) == list(range(22))


def test_persist_does_not_lie_when_the_disk_fails_twice_over(
    broker: FakeKafka, puppet: NewPuppet, tmp_path: Path
) -> None:
    path = tmp_path / "spool"
    program = knowing(broker, puppet, path, fsync=True)
    program.ask("fail_fdatasync", times=1, then_limit=1)
    program.ask("send", topic=_TOPIC, writer="a", start=1, count=10)
    for _ in range(2):
        with pytest.raises(Refused, match="SpoolFailed"):
            program.ask("persist", timeout=3.0)
    program.ask("limit_files", size=None)
    program.ask("persist")
    program.kill()
    deliver(broker, puppet, path)
    assert numbers(broker) == list(range(11))


def test_a_flipped_bit_costs_its_batch_and_is_named(broker: FakeKafka, puppet: NewPuppet, tmp_path: Path) -> None:
    path = tmp_path / "spool"
    program = knowing(broker, puppet, path)
    program.ask("send", topic=_TOPIC, writer="a", start=1, count=10, batches=True, size=200)
    program.kill()
    (file,) = path.glob("*.log")
    data = bytearray(file.read_bytes())
    data[data.index(value_of("a", 5, 200)) + 100] ^= 1
    file.write_bytes(data)
    (event,) = deliver(broker, puppet, path)
    assert event["kind"] == "spool_damaged"
    assert "1 batch is lost of t-0, 1 records" in str(event["reason"])
    assert numbers(broker) == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert [kept.suffix for kept in path.glob("0*")] == [".damaged"]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB."""
    with _mounted(tmp_path / "tiny", "3m") as folder:
        yield folder


@pytest.mark.parametrize("numbered", [True, False], ids=["as it is sent", "before any broker was seen"])
def test_a_spool_that_filled_its_own_disk_empties_it_when_brokers_are_back(
    broker: FakeKafka, puppet: NewPuppet, tiny_disk: Path, numbered: bool
) -> None:
    path = tiny_disk / "spool"
    spool = {"path": str(path), "write_ahead": True}
    program = puppet()
    program.ask("open", bootstrap=broker.bootstrap, spool=spool, bytes=20_000)
    program.ask("send", topic=_TOPIC, writer="a", start=0, count=1)
    program.ask("flush")
    broker.all_down()
    if not numbered:
        program.ask("close")
        program = puppet()
        program.ask("open", bootstrap=broker.bootstrap, spool=spool, bytes=20_000)
    program.ask("send", topic=_TOPIC, writer="a", start=1, count=1000, size=5000)
    with pytest.raises(Refused, match=r"SpoolFull: spool .* is full: its disk has no space .*No space left"):
        program.ask("persist", timeout=2.0)
    broker.all_up()
    program.ask("flush")
    assert program.ask("outcomes") == {"delivered": 1001 if numbered else 1000}
    program.ask("send", topic=_TOPIC, writer="a", start=1001, count=100, size=5000)
    program.ask("persist")
    program.ask("flush")
    assert {event["kind"] for event in program.ask("events")} == {"spool_full"}
    eventually(lambda: _free_bytes(path) > 2_000_000, "the disk has its room back")
    program.ask("close")
    assert numbers(broker) == list(range(1101))
    assert sorted(file.name for file in path.iterdir()) == ["owner", "topics.json"]


def test_a_disk_that_another_program_fills_and_frees_holds_nothing_up_for_good(
    broker: FakeKafka, puppet: NewPuppet, tiny_disk: Path
) -> None:
    path, foreign = tiny_disk / "spool", tiny_disk / "foreign"
    program = puppet()
    program.ask("open", bootstrap=broker.bootstrap, spool={"path": str(path), "write_ahead": True}, bytes=20_000)
    program.ask("send", topic=_TOPIC, writer="a", start=0, count=20, size=1000)
    program.ask("flush")
    _fill(foreign)
    broker.all_down()
    program.ask("send", topic=_TOPIC, writer="a", start=20, count=200, size=1000)
    with pytest.raises(Refused, match="SpoolFull"):
        program.ask("persist", timeout=1.0)
    foreign.unlink()
    program.ask("persist")
    broker.all_up()
    program.ask("flush")
    program.ask("close")
    assert numbers(broker) == list(range(220))


def _free_bytes(path: Path) -> int:
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize


def _fill(path: Path) -> None:
    """Fill it with as much as the disk takes."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    assert os.statvfs(path).f_bavail == 0


def test_on_a_full_disk_the_oldest_are_dropped_if_that_was_asked_for(
    broker: FakeKafka, puppet: NewPuppet, tiny_disk: Path
) -> None:
    program = puppet()
    spool = {"path": str(tiny_disk / "spool"), "when_full": "DROP_OLDEST", "after": 0.1}
    program.ask("open", bootstrap=broker.bootstrap, spool=spool, buffer=1 << 20, bytes=50_000)
    program.ask("send", topic=_TOPIC, writer="a", start=0, count=1)
    program.ask("flush")
    broker.all_down()
    program.ask("send", topic=_TOPIC, writer="a", start=1, count=8000, size=1000)
    program.ask("persist")
    before = sum(event["records"] for event in program.ask("events") if event["kind"] == "dropped")
    broker.all_up()
    with pytest.raises(Refused, match=r"NotDelivered.*dropped to make room"):
        program.ask("flush")
    dropped = sum(event["records"] for event in program.ask("events") if event["kind"] == "dropped")
    program.ask("close")
    delivered = numbers(broker)
    # Brokers that are back reject the numbers behind dropped ones. The batches are numbered again, which takes room on
    # the disk, so more may have to go; what is in flight then stays.
    assert delivered == sorted(set(delivered)), "in order, and nothing twice"
    assert len(delivered) == 8001 - dropped, "what is gone was reported"
    assert min(delivered[1:]) > before, "only the oldest are gone while brokers are away"
    assert dropped < 7500, "no more than necessary"
