"""Batches on disk that may or may not have been written: marks lost, ids forgotten, two owners."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ottla.cluster import LocalCluster

from .conftest import NewPuppet, create_topic
from .stage import Refused, copied, counters, doubles, read_log

pytestmark = pytest.mark.broker

_ALL = (1, 2, 3)


def lose_marks(spool: Path) -> int:
    """Remove the marks, as if they were never written. Returns how many files had some."""
    marks = list(spool.glob("*.done"))
    for path in marks:
        path.unlink()
    return len(marks)


def test_twenty_written_batches_that_look_unsent_are_not_written_again(
    kafka: LocalCluster, puppet: NewPuppet, tmp_path: Path
) -> None:
    topic = create_topic(kafka.bootstrap, replicas=3)
    path = tmp_path / "spool"
    spool = {"path": str(path), "write_ahead": True}
    victim = puppet()
    victim.ask("open", bootstrap=kafka.bootstrap, spool=spool)
    victim.ask("send", topic=topic, writer="a", start=0, count=20, batches=True)
    victim.ask("flush")
    victim.kill()
    assert lose_marks(path) == 1
    heir = puppet()
    heir.ask("open", bootstrap=kafka.bootstrap, spool=spool)
    heir.ask("send", topic=topic, writer="b", start=0, count=5)
    heir.ask("flush")
    heir.ask("close")
    log = read_log(kafka.bootstrap, topic)
    assert [(record.writer, record.counter) for record in log] == [
        *(("a", number) for number in range(20)),
        *(("b", number) for number in range(5)),
    ]


def test_a_producer_id_that_the_broker_forgot_doubles_nothing(
    lonely: LocalCluster, puppet: NewPuppet, tmp_path: Path
) -> None:
    topic = create_topic(lonely.bootstrap)
    path = tmp_path / "spool"
    spool = {"path": str(path), "write_ahead": True}
    victim = puppet()
    victim.ask("open", bootstrap=lonely.bootstrap, spool=spool)
    victim.ask("send", topic=topic, writer="a", start=0, count=20, batches=True)
    victim.ask("flush")
    lonely.freeze(1)
    # The broker finds these in its sockets when it resumes; whether it writes them is unknown.
    victim.ask("send", topic=topic, writer="a", start=20, count=5, batches=True)
    victim.kill()
    lonely.thaw(1)
    assert lose_marks(path) == 1
    time.sleep(4)  # the id expires after 2 s and is removed within another 0.5 s, without any sign
    heir = puppet()
    heir.ask("open", bootstrap=lonely.bootstrap, spool=spool)
    heir.ask("send", topic=topic, writer="b", start=0, count=5)
    heir.ask("flush")
    heir.ask("close")
    log = read_log(lonely.bootstrap, topic)
    assert counters(log, "a") == list(range(25))
    assert counters(log, "b") == list(range(5))


def test_a_producer_that_was_away_for_longer_than_its_id_lives_doubles_nothing(
    lonely: LocalCluster, puppet: NewPuppet, tmp_path: Path
) -> None:
    topic = create_topic(lonely.bootstrap)
    program = puppet()
    spool = {"path": str(tmp_path / "spool")}
    program.ask("open", bootstrap=lonely.bootstrap, spool=spool, timeout=1.0, check_after=1.5)
    program.ask("send", topic=topic, writer="a", start=0, count=5, batches=True)
    program.ask("flush")
    lonely.freeze(1)
    program.ask("send", topic=topic, writer="a", start=5, count=1)
    with pytest.raises(Refused, match="TimeoutError"):
        program.ask("flush", timeout=2.0)  # the request has timed out, and is in the broker's socket
    program.freeze()
    lonely.thaw(1)
    time.sleep(4)  # it is written; then the id expires, without any sign
    program.thaw()
    program.ask("send", topic=topic, writer="a", start=6, count=5)
    program.ask("flush")
    program.ask("close")
    assert counters(read_log(lonely.bootstrap, topic), "a") == list(range(11))


@pytest.mark.parametrize("unanswered", [1, 8])
def test_a_frozen_owner_and_one_on_a_copy_lose_and_double_nothing(
    kafka: LocalCluster, puppet: NewPuppet, tmp_path: Path, unanswered: int
) -> None:
    topic = create_topic(kafka.bootstrap, replicas=3)
    path = tmp_path / "spool"
    owner = puppet()
    owner.ask("open", bootstrap=kafka.bootstrap, spool={"path": str(path), "write_ahead": True})
    owner.ask("send", topic=topic, writer="a", start=0, count=3, batches=True)
    owner.ask("flush")
    kafka.freeze(*_ALL)
    try:
        owner.ask("send", topic=topic, writer="a", start=3, count=unanswered, batches=True)
        owner.freeze()
    finally:
        kafka.thaw(*_ALL)
    second = puppet()
    second.ask("open", bootstrap=kafka.bootstrap, spool={"path": str(copied(path, "copy")), "write_ahead": True})
    second.ask("send", topic=topic, writer="b", start=0, count=10, batches=True)
    second.ask("flush")
    second.ask("close")
    owner.thaw()
    owner.ask("send", topic=topic, writer="c", start=0, count=10, batches=True)
    owner.ask("flush")
    owner.ask("close")
    log = read_log(kafka.bootstrap, topic)
    assert not doubles(log)
    assert counters(log, "a") == list(range(3 + unanswered))
    assert counters(log, "b") == list(range(10))
    assert counters(log, "c") == list(range(10))


def test_a_second_owner_of_the_same_folder_is_refused(kafka: LocalCluster, puppet: NewPuppet, tmp_path: Path) -> None:
    topic = create_topic(kafka.bootstrap)
    spool = {"path": str(tmp_path / "spool"), "write_ahead": True}
    owner, second = puppet(), puppet()
    owner.ask("open", bootstrap=kafka.bootstrap, spool=spool)
    owner.ask("send", topic=topic, writer="a", start=0, count=1, batches=True)
    with pytest.raises(Refused, match=f"SpoolInUse.*{owner.pid}"):
        second.ask("open", bootstrap=kafka.bootstrap, spool=spool)
    owner.freeze()
    with pytest.raises(Refused, match="SpoolInUse"):
        second.ask("open", bootstrap=kafka.bootstrap, spool=spool)
    owner.kill()
    second.ask("open", bootstrap=kafka.bootstrap, spool=spool)
    second.ask("flush")
    second.ask("close")
    assert counters(read_log(kafka.bootstrap, topic), "a") == [0]
