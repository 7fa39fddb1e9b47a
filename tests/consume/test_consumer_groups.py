"""Consumers on a real broker: members join, leave, die and stall while records flow, and none is missed."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.admin.group_admin import GroupAdmin
from ottla.cluster import LocalCluster
from ottla.config import Timeouts
from ottla.consume.consumer import Consumer
from ottla.consume.membership import GroupOptions
from ottla.errors import CommitFailed, OffsetsLost
from ottla.fetch.reader import Reader
from ottla.model import TopicPartition
from ottla.net import Cluster
from ottla.produce.producer import Producer

from .consuming import RecordingListener, joined, read, rows, take
from .members import all_of, settled
from .ways import COOPERATIVE, EAGER, MODERN, WAYS
from .workers import Crew, Worker

pytestmark = [pytest.mark.broker, pytest.mark.usefixtures("no_thread_is_left")]
PARTITIONS = 6
_numbers = itertools.count()


@pytest.fixture(scope="module")
def client(broker: LocalCluster) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap) as resource:
        yield resource


@pytest.fixture
def topic(client: Cluster) -> str:
    name = f"flow-{next(_numbers)}"
    Admin(client).create_topic(name, partitions=PARTITIONS, replicas=1)
    return name


@pytest.fixture
def crew(broker: LocalCluster, group: str, topic: str) -> Iterator[Crew]:
    with Crew(broker.bootstrap, group, topic) as resource:
        yield resource


def options(way: str, **more: Any) -> GroupOptions:
    return GroupOptions(**(WAYS[way] | more))


def fill(bootstrap: str, topic: str, each: int = 50, partitions: int = PARTITIONS) -> None:
    """Write `count` records into every partition."""
    with Producer(bootstrap) as producer:
        for partition in range(partitions):
            for number in range(each):
                producer.send(topic, b"%d" % number, partition=partition)


def lag(client: Cluster, group: str) -> int:
    """Return the lag of the group over all partitions."""
    return sum(partition_lag.lag or 0 for partition_lag in GroupAdmin(client).lag(group))


def committed_ends(client: Cluster, group: str, topic: str) -> bool:
    """Return whether the group has committed the end of every partition."""
    committed = GroupAdmin(client).committed(group)
    ends = Admin(client).log_ranges(all_of(topic, PARTITIONS))
    return {tp: offset.offset for tp, offset in committed.items()} == {tp: log.stop for tp, log in ends.items()}


# Members that come and go


@pytest.mark.parametrize("way", WAYS)
def test_every_record_is_processed_exactly_once_while_members_come_and_go(
    crew: Crew, client: Cluster, way: str
) -> None:
    how = {"options": options(way), "commit_every": 0.2}
    a = crew.hire("a", **how)
    crew.flows()
    b = crew.hire("b", **how)
    settled([a, b], all_of(crew.topic, PARTITIONS))
    crew.flows()
    c = crew.hire("c", **how)
    settled([a, b, c], all_of(crew.topic, PARTITIONS))
    crew.flows()
    crew.dismiss(a)
    settled([b, c], all_of(crew.topic, PARTITIONS))
    crew.flows()
    crew.dismiss(b)
    crew.ends()
    crew.dismiss(c)
    assert crew.history.repeated == []
    assert crew.history.trouble == []
    assert not any(worker.lost_some for worker in (a, b, c))
    assert committed_ends(client, crew.group, crew.topic)


MIXED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("classic, eager", EAGER, {"session_timeout_ms": 4000, "heartbeat_interval_ms": 100}),
    (
        "classic, cooperative",
        COOPERATIVE,
        {
            "session_timeout_ms": 4000,
            "heartbeat_interval_ms": 100,
            "partition_assignment_strategy": "cooperative-sticky",
        },
    ),
    ("the new protocol", MODERN, {"group_protocol": "consumer"}),
]


@pytest.mark.parametrize(("ours", "theirs"), [case[1:] for case in MIXED], ids=[case[0] for case in MIXED])
def test_a_group_shared_with_confluent_misses_nothing_and_repeats_nothing_of_ours(
    crew: Crew, client: Cluster, ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    s = crew.hire_foreigner("s", **theirs)
    crew.until(lambda: s.seen, "the other one starts")
    a = crew.hire("a", options=GroupOptions(**ours))
    settled([a, s], all_of(crew.topic, PARTITIONS))
    crew.flows()
    crew.dismiss(s)
    settled([a], all_of(crew.topic, PARTITIONS))
    z = crew.hire_foreigner("z", **theirs)
    settled([a, z], all_of(crew.topic, PARTITIONS))
    crew.flows()
    crew.dismiss(a)
    crew.ends()
    crew.dismiss(z)
    # With cooperative rebalances, brokers sometimes refuse librdkafka's commit on revocation, and it does not retry.
    assert crew.history.repeated_after(["a"]) == []
    assert crew.history.trouble == []
    assert committed_ends(client, crew.group, crew.topic)


@pytest.mark.parametrize("way", ["eager", "modern"])
def test_a_killed_member_loses_nothing_and_repeats_only_its_own(
    crew: Crew, broker: LocalCluster, client: Cluster, way: str, tmp_path: Path
) -> None:
    a = crew.hire("a", options=options(way), commit_every=0.2)
    crew.flows()
    notes = tmp_path / "processed"
    program = [sys.executable, "-m", "tests.consume.programs", "work", broker.bootstrap, crew.group, crew.topic, way]
    with subprocess.Popen([*program, str(notes)]) as doomed:
        try:
            eventually(lambda: notes.exists() and notes.stat().st_size > 2000, "it works")
        finally:
            os.kill(doomed.pid, signal.SIGKILL)
    whole = notes.read_text().rpartition("\n")[0].splitlines()
    theirs = [(int(line.split()[0]), int(line.split()[1])) for line in whole]
    settled([a], all_of(crew.topic, PARTITIONS))
    crew.stop_source()
    crew.until(lambda: len(crew.history.done.keys() | set(theirs)) >= crew.sent, "everything is processed")
    crew.dismiss(a)
    assert len(theirs) == len(set(theirs))
    assert crew.history.repeated == []
    assert crew.history.trouble == []
    assert committed_ends(client, crew.group, crew.topic)


@pytest.mark.parametrize("way", WAYS)
def test_a_member_that_stops_polling_is_replaced_and_comes_back(crew: Crew, client: Cluster, way: str) -> None:
    sleeping, wake = threading.Event(), threading.Event()

    class Sleeper(Worker):
        def work(self, records: list[tuple[int, int]]) -> None:
            if not wake.is_set():
                sleeping.set()
                wake.wait(20)
                with pytest.raises(CommitFailed):
                    self.consumer.commit()
            super().work(records) if self.consumer._subscription.keeps(self.held) == self.held else None

    a = Sleeper(crew, "a", options=options(way, max_poll_interval=1.0))
    crew.workers.append(a)
    crew.until(sleeping.is_set, "the first falls asleep")
    crew.history.let_go("a", all_of(crew.topic, PARTITIONS))  # it is asleep and learns it when it wakes
    b = crew.hire("b", options=options(way))
    settled([b], all_of(crew.topic, PARTITIONS))
    crew.flows()
    wake.set()
    settled([a, b], all_of(crew.topic, PARTITIONS))
    assert a.lost_some
    assert not b.lost_some
    crew.ends()
    for worker in (a, b):
        crew.dismiss(worker)
    assert crew.history.repeated == []
    assert crew.history.trouble == []
    assert committed_ends(client, crew.group, crew.topic)


@pytest.mark.parametrize("way", WAYS)
def test_heartbeats_continue_while_a_program_works_for_longer_than_its_session(
    broker: LocalCluster, group: str, topic: str, way: str
) -> None:
    fill(broker.bootstrap, topic, 5)
    listener = RecordingListener()
    more = {} if way == "modern" else {"session_timeout": 2.0}  # 4 s by the broker's own setting
    with Consumer(
        broker.bootstrap, group=group, topics=topic, options=options(way, **more), listener=listener
    ) as consumer:
        take(consumer)
        time.sleep(5.0 if way == "modern" else 3.0)  # the program's work
        consumer.commit()
        assert listener.of("lost") == []
        assert len(listener.of("assigned")) == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_static_member_that_restarts_continues_where_it_was(crew: Crew, client: Cluster, way: str) -> None:
    a = crew.hire("a", options=options(way, instance_id="one"))
    b = crew.hire("b", options=options(way, instance_id="two"))
    settled([a, b], all_of(crew.topic, PARTITIONS))
    crew.flows()
    held, seen = a.held, len(b.held)
    crew.dismiss(a)
    again = crew.hire("again", options=options(way, instance_id="one"))
    crew.until(lambda: again.held == held, "it has its partitions back")
    assert len(b.held) == seen
    crew.ends()
    for worker in (again, b):
        crew.dismiss(worker)
    assert crew.history.repeated == []
    assert crew.history.trouble == []
    assert committed_ends(client, crew.group, crew.topic)


# What a program may do


def test_a_paused_partition_waits_and_the_others_flow(
    broker: LocalCluster, client: Cluster, group: str, topic: str
) -> None:
    fill(broker.bootstrap, topic, 50)
    tp = TopicPartition(topic, 2)
    listener = RecordingListener(assigned=lambda consumer, _: consumer.pause(tp))
    with Consumer(
        broker.bootstrap, group=group, topics=topic, listener=listener, options=options("modern"), commit_every=None
    ) as consumer:
        records = read(consumer, 250)
        assert {partition for partition, _ in records} == {0, 1, 3, 4, 5}
        assert consumer.poll(0.3) is None
        assert consumer.positions() == {each: 50 if each != tp else 0 for each in all_of(topic, PARTITIONS)}
        consumer.commit()
        assert lag(client, group) == 50
        consumer.resume(tp)
        assert read(consumer, 50) == [(2, offset) for offset in range(50)]
        consumer.commit()
    assert lag(client, group) == 0


def test_a_program_goes_to_a_time(broker: LocalCluster, group: str, client: Cluster) -> None:
    topic = f"times-{next(_numbers)}"
    Admin(client).create_topic(topic, partitions=1, replicas=1, settings={"retention.ms": "-1"})
    with Producer(broker.bootstrap) as producer:
        for number in range(100):
            producer.send(topic, b"x", timestamp=1_700_000_000.0 + number)
    tp = TopicPartition(topic, 0)
    half = datetime.fromtimestamp(1_700_000_050.0, UTC)
    with Consumer(broker.bootstrap, group=group, topics=topic, start=half, options=options("modern")) as consumer:
        assert rows(take(consumer))[0] == (0, 50)
        consumer.seek(tp, datetime.fromtimestamp(1_700_000_089.5, UTC))
        assert rows(take(consumer))[0] == (0, 90)
        consumer.seek(tp, datetime.now(UTC))
        assert consumer.position(tp) == 100


def test_a_topic_that_appears_is_taken_in_by_its_pattern(broker: LocalCluster, client: Cluster, group: str) -> None:
    stem = f"shop-{next(_numbers)}"
    admin = Admin(client)
    admin.create_topic(f"{stem}.a", partitions=1, replicas=1)
    times = Timeouts(metadata_age=0.3)
    pattern = re.compile(re.escape(stem) + r"\..*")
    with Consumer(broker.bootstrap, group=group, topics=pattern, options=options("modern"), timeouts=times) as consumer:
        joined(consumer, 1)
        admin.create_topic(f"{stem}.b", partitions=2, replicas=1)
        joined(consumer, 3)
        fill(broker.bootstrap, f"{stem}.b", 10, 2)
        assert sorted(read(consumer, 20)) == [(p, o) for p in range(2) for o in range(10)]


def test_a_topic_created_again_is_noticed_by_what_was_committed(
    broker: LocalCluster, client: Cluster, group: str
) -> None:
    """The offset committed for the old topic is beyond the end of the new one."""
    topic, admin = f"anew-{next(_numbers)}", Admin(client)
    admin.create_topic(topic, partitions=1, replicas=1)
    fill(broker.bootstrap, topic, 50, 1)
    with Consumer(broker.bootstrap, group=group, topics=topic, options=options("eager")) as consumer:
        read(consumer, 50)
    admin.delete_topics(topic)
    admin.create_topic(topic, partitions=1, replicas=1)
    fill(broker.bootstrap, topic, 10, 1)
    GroupAdmin(client).set_offsets(group, {TopicPartition(topic, 0): 50})
    with Consumer(broker.bootstrap, group=group, topics=topic, options=options("eager")) as consumer:
        for _ in range(2):
            with pytest.raises(OffsetsLost, match="the log ends at 10"):
                read(consumer, 1)
        consumer.seek(TopicPartition(topic, 0), "earliest")
        assert len(read(consumer, 10)) == 10


# Ends


def test_ctrl_c_ends_the_iteration_at_once(broker: LocalCluster, client: Cluster, group: str, topic: str) -> None:
    fill(broker.bootstrap, topic, 10)
    program = [sys.executable, "-m", "tests.consume.programs", "wait", broker.bootstrap, group, topic]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        got = 0
        while got < 60:
            got += int(process.stdout.readline())
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == -signal.SIGINT
        took = time.monotonic() - began
        assert process.stderr is not None
        shown = process.stderr.read()
    assert shown.rstrip().endswith("KeyboardInterrupt")
    assert took < 5.0, "it takes the end of an interpreter on a busy machine, not a session"
    assert GroupAdmin(client).describe(group).members == ()
    assert lag(client, group) in (0, 10)  # all but the batch in work, if it had not asked for more yet


@pytest.mark.parametrize("way", WAYS)
def test_leaving_is_quick(broker: LocalCluster, group: str, topic: str, way: str) -> None:
    with Consumer(broker.bootstrap, group=group, topics=topic, options=options(way)) as consumer:
        joined(consumer, PARTITIONS)
        began = time.monotonic()
    assert time.monotonic() - began < 5.0, "it does not wait for a session"


# Transactions


@pytest.mark.parametrize("way", ["modern"])
def test_consume_transform_produce_is_exactly_once_across_kills(
    broker: LocalCluster, client: Cluster, group: str, topic: str, way: str
) -> None:
    sink, total = f"{topic}-sink", 60 * PARTITIONS
    Admin(client).create_topic(sink, partitions=2, replicas=1)
    fill(broker.bootstrap, topic, 60)
    program = [sys.executable, "-m", "tests.consume.programs", "transform"]
    program += [broker.bootstrap, group, topic, sink, f"id-{group}", way]
    done = 0
    for share in (0.2, 0.5, 1.0):
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                while done < share * total and (line := process.stdout.readline()):
                    done += int(line)
            finally:
                process.kill()
            done += sum(int(line) for line in process.stdout.read().splitlines())
    with Reader(client, isolation="read_committed") as reader:
        values = [v for batch in reader.read(sink, start="earliest", stop="latest") for v in batch["value"].to_pylist()]
    assert sorted(values) == sorted(b"%d:%d" % (p, o) for p in range(PARTITIONS) for o in range(60))
    eventually(lambda: lag(client, group) == 0, "its offsets are committed")


def test_a_member_that_lost_its_partitions_cannot_commit_them_in_a_transaction(
    broker: LocalCluster, client: Cluster, group: str, topic: str
) -> None:
    """Regression: in the epoch after the loss, the broker accepted offsets of partitions that others owned by then."""
    fill(broker.bootstrap, topic, 10)
    sink = f"{topic}-sink"
    Admin(client).create_topic(sink, partitions=1, replicas=1)
    away = options("modern", max_poll_interval=0.5)
    with (
        Producer(broker.bootstrap, transactional_id=f"id-{group}") as producer,
        Consumer(
            broker.bootstrap, group=group, topics=topic, options=away, commit_every=None, isolation="read_committed"
        ) as consumer,
    ):
        take(consumer)
        held = consumer.assignment
        eventually(lambda: not consumer._subscription.keeps(held), "it is out")
        consumer._subscription.membership.polled()  # type: ignore[union-attr]
        eventually(lambda: consumer._subscription.member.generation > 0, "it is in again")

        def transact() -> None:
            with producer.transaction() as tx:
                producer.send(sink, b"x")
                tx.send_offsets(consumer.member, consumer.positions())

        with pytest.raises(CommitFailed):
            transact()
    assert GroupAdmin(client).committed(group) == {}
