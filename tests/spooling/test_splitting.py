"""A batch on disk that a broker rejects as too large: its parts take its place there, all at once, before any is
sent."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.waiting import eventually

from ottla.errors import ErrorCode
from ottla.produce.spool import inspect
from ottla.testing import FakeKafka, When

from .conftest import NewPuppet
from .puppet import value_of
from .stage import Puppet, Refused

_EXPECTED = [value_of("a", number, 100) for number in range(11)]


def cut_on_a_disk_that_refuses(kafka: FakeKafka, puppet: NewPuppet, path: Path, *, write_ahead: bool) -> Puppet:
    """A producer whose batch of ten records was refused as too large, and whose disk does not accept the parts."""
    program = puppet()
    spool = {"path": str(path), "write_ahead": write_ahead}
    program.ask("open", bootstrap=kafka.bootstrap, spool=spool, linger=0.2)
    program.ask("send", topic="t", writer="a", start=0, count=1, size=100)
    program.ask("flush")
    down = kafka.fail("Produce", ErrorCode.not_enough_replicas, times=None)
    program.ask("send", topic="t", writer="a", start=1, count=10, size=100)
    program.ask("persist")
    program.ask("fail_renames", times=1_000_000)
    refused = kafka.fail("Produce", ErrorCode.message_too_large)
    down.remaining = 0
    eventually(lambda: refused.hits)
    eventually(lambda: any(event["kind"] == "spool_failed" for event in program.ask("events")))
    return program


def log(kafka: FakeKafka) -> list[bytes | None]:
    return [record.value for record in kafka.records("t", 0)]


def deliver(kafka: FakeKafka, puppet: NewPuppet, path: Path) -> None:
    """The next producer, with a broker that accepts large batches."""
    kafka.clear_faults()
    heir = puppet()
    heir.ask("open", bootstrap=kafka.bootstrap, spool={"path": str(path)})
    heir.ask("flush")
    heir.ask("close")


@pytest.mark.parametrize("write_ahead", [False, True])
def test_no_part_is_sent_before_all_of_them_are_on_disk(puppet: NewPuppet, tmp_path: Path, write_ahead: bool) -> None:
    with FakeKafka(topics={"t": 1}) as kafka:
        program = cut_on_a_disk_that_refuses(kafka, puppet, tmp_path, write_ahead=write_ahead)
        with pytest.raises(Refused, match="Timeout"):
            program.ask("flush", timeout=0.5)
        assert log(kafka) == _EXPECTED[:1]
        assert [stored.header.count for stored in inspect(tmp_path)[0]] == [10]
        program.ask("fail_renames", times=0)
        program.ask("flush")
        program.ask("close")
        assert log(kafka) == _EXPECTED
    assert inspect(tmp_path)[0] == []


def test_a_kill_before_the_parts_are_on_disk_leaves_the_whole_to_the_next_one(
    puppet: NewPuppet, tmp_path: Path
) -> None:
    with FakeKafka(topics={"t": 1}) as kafka:
        cut_on_a_disk_that_refuses(kafka, puppet, tmp_path, write_ahead=True).kill()
        deliver(kafka, puppet, tmp_path)
        assert log(kafka) == _EXPECTED


def test_closing_before_the_parts_are_on_disk_leaves_the_whole_to_the_next_one(
    puppet: NewPuppet, tmp_path: Path
) -> None:
    with FakeKafka(topics={"t": 1}) as kafka:
        program = cut_on_a_disk_that_refuses(kafka, puppet, tmp_path, write_ahead=False)
        program.ask("close", timeout=0.1)
        assert program.ask("outcomes") == {"delivered": 1, "kept": 10}
        deliver(kafka, puppet, tmp_path)
        assert log(kafka) == _EXPECTED


@pytest.mark.parametrize("handled", [1, 2])
def test_a_kill_while_parts_are_in_flight_duplicates_nothing_although_the_broker_now_accepts_the_whole(
    puppet: NewPuppet, tmp_path: Path, handled: int
) -> None:
    with FakeKafka(topics={"t": 1}) as kafka:
        program = cut_on_a_disk_that_refuses(kafka, puppet, tmp_path, write_ahead=True)
        lost = kafka.cut("Produce", times=handled, when=When.AFTER_HANDLING)
        program.ask("fail_renames", times=0)
        eventually(lambda: lost.hits)
        program.kill()
        assert len(log(kafka)) > 1, "the broker has a part without an acknowledgement"
        deliver(kafka, puppet, tmp_path)
        assert log(kafka) == _EXPECTED
