"""kill -9 of the producing process at random moments, with a write-ahead spool that the next one takes over."""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from pathlib import Path

import pytest
from tests.waiting import eventually

from ottla.cluster import LocalCluster
from ottla.testing import FakeKafka, When

from .conftest import NewPuppet, create_topic
from .puppet import value_of
from .stage import LogRecord, doubles, read_log

_KILLS = 30
_THREADS = 3


def persisted(notes: Path) -> dict[str, int]:
    """How many records of each writer were noted as persisted."""
    known: dict[str, int] = {}
    for line in notes.read_text().splitlines():
        note = json.loads(line)
        known.update({f"{note['life']}.{thread}": count for thread, count in enumerate(note["persisted"])})
    return known


def misplaced(log: list[LogRecord]) -> list[LogRecord]:
    """Records with a key that are behind a later one of that key."""
    last: dict[str, tuple[int, int]] = defaultdict(lambda: (-1, -1))
    wrong: list[LogRecord] = []
    for record in log:
        if record.key is not None:
            position = int(record.writer.partition(".")[0]), record.counter
            if position < last[record.key]:
                wrong.append(record)
            last[record.key] = max(position, last[record.key])
    return wrong


@pytest.mark.broker
@pytest.mark.slow
def test_thirty_kills_lose_nothing_that_was_persisted_and_double_nothing(
    kafka: LocalCluster, puppet: NewPuppet, tmp_path: Path
) -> None:
    topic = create_topic(kafka.bootstrap, partitions=3, replicas=3)
    notes = tmp_path / "notes"
    notes.touch()
    spool = {"path": str(tmp_path / "spool"), "write_ahead": True}
    chance = random.Random()
    for life in range(_KILLS):
        current = puppet()
        current.ask("open", bootstrap=kafka.bootstrap, spool=spool)
        current.ask("storm", topic=topic, life=life, threads=_THREADS, notes=str(notes))
        if life % 3:  # the others may die before they have persisted anything
            eventually(lambda: f"{life}.0" in persisted(notes), "something is persisted")  # noqa: B023
        time.sleep(chance.uniform(0.0, 0.6))
        current.kill()
    heir = puppet()
    heir.ask("open", bootstrap=kafka.bootstrap, spool=spool)
    heir.ask("flush")
    heir.ask("close")

    log = read_log(kafka.bootstrap, topic)
    known = persisted(notes)
    in_log = {(record.writer, record.counter) for record in log}
    lost = [(w, n) for w, count in known.items() for n in range(count) if (w, n) not in in_log]
    assert sum(known.values()) > 1000
    assert len(known) >= _THREADS * _KILLS // 2, "most of them lived long enough to persist something"
    assert not lost
    assert not doubles(log)
    assert not misplaced(log)


@pytest.mark.parametrize(("before", "cut_off"), [(0, 1), (0, 4), (1, 1), (1, 5), (3, 7)])
def test_an_acknowledgement_that_was_cut_off_before_the_kill_duplicates_nothing(
    puppet: NewPuppet, tmp_path: Path, before: int, cut_off: int
) -> None:
    spool = {"path": str(tmp_path / "spool"), "write_ahead": True}
    with FakeKafka(topics={"t": 1}) as kafka:
        victim = puppet()
        victim.ask("open", bootstrap=kafka.bootstrap, spool=spool)
        victim.ask("send", topic="t", writer="a", start=0, count=before, batches=True)
        victim.ask("flush")
        fault = kafka.cut("Produce", times=None, when=When.AFTER_HANDLING)
        victim.ask("send", topic="t", writer="a", start=before, count=cut_off, batches=True)
        eventually(lambda: fault.hits > 0)
        victim.kill()
        written = [record.value for record in kafka.records("t", 0)]
        assert len(written) > before, "the broker has a batch without an acknowledgement"
        kafka.clear_faults()
        heir = puppet()
        heir.ask("open", bootstrap=kafka.bootstrap, spool=spool)
        heir.ask("flush")
        heir.ask("close")
        log = [record.value for record in kafka.records("t", 0)]
    assert log == [value_of("a", number, 0) for number in range(before + cut_off)]
    assert log[: len(written)] == written


def test_batches_keep_their_order_when_some_of_them_were_numbered_before_the_kill(
    puppet: NewPuppet, tmp_path: Path
) -> None:
    spool = {"path": str(tmp_path / "spool")}
    with FakeKafka(topics={"t": 1}) as kafka:
        first = puppet()
        first.ask("open", bootstrap=kafka.bootstrap, spool=spool)
        first.ask("send", topic="t", writer="a", start=0, count=1)
        first.ask("close")
        kafka.all_down()
        victim = puppet()
        victim.ask("open", bootstrap=kafka.bootstrap, spool=spool)
        victim.ask("send", topic="t", writer="a", start=1, count=20, batches=True)
        fault = kafka.cut("Produce", times=None, when=When.BEFORE_HANDLING)
        kafka.all_up()
        # Now it gets a producer id: the first batch is written to disk again under its number, behind the others.
        eventually(lambda: fault.hits > 0)
        victim.kill()
        kafka.clear_faults()
        heir = puppet()
        heir.ask("open", bootstrap=kafka.bootstrap, spool=spool)
        heir.ask("flush")
        heir.ask("close")
        log = [record.value for record in kafka.records("t", 0)]
    assert log == [value_of("a", number, 0) for number in range(21)]
