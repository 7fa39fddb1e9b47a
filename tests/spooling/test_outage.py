"""A spool without write-ahead: while no broker can be reached, what is sent goes to disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.cluster import LocalCluster

from .conftest import NewPuppet, create_topic
from .stage import Refused, counters, doubles, read_log

pytestmark = pytest.mark.broker

_MIB = 1 << 20


def test_two_hundred_megabytes_wait_on_disk_and_not_in_memory_and_are_replayed_in_order(
    lonely: LocalCluster, puppet: NewPuppet, tmp_path: Path
) -> None:
    topic = create_topic(lonely.bootstrap)
    program = puppet()
    program.ask("open", bootstrap=lonely.bootstrap, spool={"path": str(tmp_path / "spool")}, buffer=8 * _MIB, timeout=3)
    program.ask("send", topic=topic, writer="a", start=0, count=100, size=1000)
    program.ask("flush")
    before = program.ask("memory")
    lonely.kill(1)
    try:
        program.ask("send", topic=topic, writer="a", start=100, count=200_000, size=1000)
        program.ask("persist")
        assert sum(file.stat().st_size for file in (tmp_path / "spool").iterdir()) > 190_000_000
        grown = program.ask("memory") - before
    finally:
        lonely.restart(1)
    program.ask("flush")
    assert program.ask("outcomes") == {"delivered": 200_100}
    program.ask("close")
    assert counters(read_log(lonely.bootstrap, topic), "a") == list(range(200_100))
    # The buffer, the deliveries of 200,000 records, and what allocators retain; unbounded it would be 200.
    assert grown < 100 * _MIB
    assert not list((tmp_path / "spool").glob("*.log"))


def test_a_program_killed_during_the_outage_and_one_started_in_it_lose_and_double_nothing(
    lonely: LocalCluster, puppet: NewPuppet, tmp_path: Path
) -> None:
    topic = create_topic(lonely.bootstrap)
    spool = {"path": str(tmp_path / "spool")}
    first, second, third = puppet(), puppet(), puppet()
    first.ask("open", bootstrap=lonely.bootstrap, spool=spool, timeout=3)
    first.ask("send", topic=topic, writer="a", start=0, count=10)
    first.ask("flush")
    lonely.kill(1)
    try:
        first.ask("send", topic=topic, writer="a", start=10, count=50, batches=True, key="k")
        first.kill()
        # No broker can be asked for the partitions of the topic: the spool remembers them.
        second.ask("open", bootstrap=lonely.bootstrap, spool=spool, timeout=3)
        second.ask("send", topic=topic, writer="b", start=0, count=50, batches=True, key="k")
        second.ask("send", topic="never-seen", writer="b", start=50, count=1)
        with pytest.raises(Refused, match="never-seen"):
            second.ask("persist", timeout=0.5)
        second.kill()
    finally:
        lonely.restart(1)
    third.ask("open", bootstrap=lonely.bootstrap, spool=spool)
    third.ask("send", topic=topic, writer="c", start=0, count=10, key="k")
    third.ask("flush")
    third.ask("close")
    log = read_log(lonely.bootstrap, topic)
    assert [(record.writer, record.counter) for record in log] == [
        *(("a", number) for number in range(60)),
        *(("b", number) for number in range(50)),
        *(("c", number) for number in range(10)),
    ]


def test_closing_without_a_broker_leaves_everything_to_the_next_producer(
    lonely: LocalCluster, puppet: NewPuppet, tmp_path: Path
) -> None:
    topic = create_topic(lonely.bootstrap, partitions=3)
    spool = {"path": str(tmp_path / "spool")}
    program, heir = puppet(), puppet()
    program.ask("open", bootstrap=lonely.bootstrap, spool=spool, timeout=3)
    program.ask("send", topic=topic, writer="a", start=0, count=10)
    program.ask("flush")
    lonely.kill(1)
    try:
        program.ask("send", topic=topic, writer="a", start=10, count=500)
        program.ask("close", timeout=1.0)
        assert program.ask("outcomes") == {"delivered": 10, "kept": 500}
    finally:
        lonely.restart(1)
    heir.ask("open", bootstrap=lonely.bootstrap, spool=spool)
    heir.ask("flush")
    heir.ask("close")
    log = read_log(lonely.bootstrap, topic)
    assert not doubles(log)
    assert sorted(counters(log, "a")) == list(range(510))
