"""What happens when the spool has reached its limit: wait, refuse, or drop the oldest and report it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.testing import FakeKafka

from .conftest import NewPuppet
from .puppet import value_of
from .stage import Puppet, Refused

_MIB = 1 << 20
_SIZE = 1000
_LIMIT = 4 * _MIB


# How long a send waits for room. Only WAIT waits that long.
_PATIENCE = {"WAIT": 1.0, "REFUSE": 30.0, "DROP_OLDEST": 30.0}


def opened(kafka: FakeKafka, puppet: NewPuppet, path: Path, policy: str) -> Puppet:
    """A producer with little memory and a small spool."""
    program = puppet()
    spool = {"path": str(path), "max_bytes": _LIMIT, "when_full": policy, "after": 0.1}
    program.ask("open", bootstrap=kafka.bootstrap, spool=spool, buffer=_MIB, wait=_PATIENCE[policy], bytes=100_000)
    return program


def filled(kafka: FakeKafka, puppet: NewPuppet, path: Path, policy: str) -> tuple[Puppet, int, str]:
    """Send three times what the spool takes, with no broker. Returns how much was accepted, and why not more."""
    program = opened(kafka, puppet, path, policy)
    program.ask("send", topic="t", writer="before", start=0, count=1)
    program.ask("flush")
    kafka.all_down()
    taken, error_text = program.ask("send_until_refused", topic="t", writer="a", most=3 * _LIMIT // _SIZE, size=_SIZE)
    return program, taken, error_text


def numbers(kafka: FakeKafka) -> list[int]:
    values = [bytes(record.value or b"") for record in kafka.records("t", 0)]
    assert values[0] == value_of("before", 0, 0)
    return [int(value.split(b":")[1]) for value in values[1:]]


@pytest.mark.parametrize(("policy", "error"), [("WAIT", "BufferFull"), ("REFUSE", "SpoolFull")])
def test_a_full_spool_takes_no_more_and_what_it_took_is_delivered(
    puppet: NewPuppet, tmp_path: Path, policy: str, error: str
) -> None:
    with FakeKafka(topics={"t": 1}) as kafka:
        program, taken, error_text = filled(kafka, puppet, tmp_path / "spool", policy)
        assert error_text.startswith(error)
        assert _LIMIT // _SIZE * 0.8 < taken < 1.6 * _LIMIT // _SIZE
        used = sum(file.stat().st_size for file in (tmp_path / "spool").iterdir())
        assert _LIMIT * 0.8 < used <= _LIMIT + 4096
        kafka.all_up()
        program.ask("flush")
        program.ask("send", topic="t", writer="a", start=taken, count=10, size=_SIZE)
        program.ask("flush")
        assert program.ask("outcomes") == {"delivered": taken + 11}
        program.ask("close")
        assert numbers(kafka) == list(range(taken + 10))


def test_a_spool_that_was_filled_before_any_broker_was_seen_is_emptied_by_the_next_one(
    puppet: NewPuppet, tmp_path: Path
) -> None:
    with FakeKafka(topics={"t": 1}) as kafka:
        first = opened(kafka, puppet, tmp_path / "spool", "WAIT")
        first.ask("send", topic="t", writer="before", start=0, count=1)
        first.ask("close")
        kafka.all_down()
        second = opened(kafka, puppet, tmp_path / "spool", "WAIT")
        _, error_text = second.ask("send_until_refused", topic="t", writer="a", most=3 * _LIMIT // _SIZE, size=_SIZE)
        assert error_text.startswith("BufferFull")
        with pytest.raises(Refused, match=r"could not keep them: spool .* is full"):
            second.ask("close", timeout=0.1)
        kept = second.ask("outcomes").get("kept", 0)
        assert kept > 0.8 * _LIMIT // _SIZE
        kafka.all_up()
        third = opened(kafka, puppet, tmp_path / "spool", "WAIT")
        third.ask("flush")
        third.ask("close")
        delivered = numbers(kafka)
    assert delivered == sorted(set(delivered))
    assert len(delivered) == kept


def test_dropped_records_are_exactly_those_that_were_reported(puppet: NewPuppet, tmp_path: Path) -> None:
    with FakeKafka(topics={"t": 1}) as kafka:
        program, taken, error_text = filled(kafka, puppet, tmp_path / "spool", "DROP_OLDEST")
        assert error_text == ""
        kafka.all_up()
        with pytest.raises(Refused, match=r"NotDelivered.*dropped to make room"):
            program.ask("flush")
        program.ask("send", topic="t", writer="a", start=taken, count=10, size=_SIZE)
        program.ask("flush")
        outcomes = program.ask("outcomes")
        dropped = [event for event in program.ask("events") if event["kind"] == "dropped"]
        program.ask("close")
        delivered = numbers(kafka)
    missing = taken + 10 - len(delivered)
    assert delivered == list(range(missing, taken + 10)), "only the oldest are gone"
    assert sum(event["records"] for event in dropped) == missing == outcomes["failed"]
    assert {event["topic"] for event in dropped} == {"t"}
    assert all(event["first_timestamp"] <= event["last_timestamp"] for event in dropped)
    assert len(delivered) * _SIZE > _LIMIT // 3, "not much more than necessary"


def test_a_dropped_batch_that_comes_back_takes_the_number_of_no_other(puppet: NewPuppet, tmp_path: Path) -> None:
    """The marks of dropped batches are lost: some of them are delivered after all, and so is all that was kept."""
    path = tmp_path / "spool"
    with FakeKafka(topics={"t": 1}) as kafka:
        program, taken, _ = filled(kafka, puppet, path, "DROP_OLDEST")
        program.ask("persist")
        dropped = sum(event["records"] for event in program.ask("events") if event["kind"] == "dropped")
        program.kill()
        for marks in path.glob("*.done"):
            marks.unlink()
        kafka.all_up()
        heir = opened(kafka, puppet, path, "WAIT")
        heir.ask("flush")
        heir.ask("close")
        delivered = numbers(kafka)
    assert dropped > 0
    assert set(range(dropped, taken)) <= set(delivered), "what was not reported as dropped is there"
    assert len(delivered) == len(set(delivered)), "nothing twice"
