"""What a consumer subscribes to, which threads may use it, how it ends, and what it refuses."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from tests.consume.consuming import RecordingListener, committed, filled, joined, new_consumer, read
from tests.waiting import eventually

from ottla.config import Timeouts
from ottla.consume.consumer import Consumer
from ottla.errors import BrokerError, ConfigError, ErrorCode, InputError, OttlaError, UsedAfterFork
from ottla.model import TopicPartition
from ottla.testing import FakeKafka

from .stand import AT, MANY

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


# Topics


def test_a_pattern_takes_in_topics_that_appear(kafka: FakeKafka) -> None:
    kafka.create_topic("shop.a", 1)
    filled(kafka, "shop.a", 1)
    times = Timeouts(connect=2.0, request=3.0, total=10.0, metadata_age=0.2)
    with new_consumer(kafka.bootstrap, topics=re.compile(r"shop\..*"), timeouts=times) as consumer:
        joined(consumer, 1)
        kafka.create_topic("shop.b", 2)
        kafka.create_topic("workshop.b", 2)
        joined(consumer, 3)
        assert {tp.topic for tp in consumer.assignment} == {"shop.a", "shop.b"}
        consumer.subscribe(re.compile("nothing"))
        joined(consumer, 0)
        consumer.subscribe("t")
        joined(consumer, 1)


def test_the_first_poll_waits_no_longer_than_it_may(kafka: FakeKafka) -> None:
    """Regression: with all brokers down, it waited for up to a minute, whatever its timeout."""
    filled(kafka, "t", 1)
    kafka.all_down()
    times = Timeouts(connect=20.0, request=20.0, total=1000.0)
    with new_consumer(kafka.bootstrap, topics="t", timeouts=times) as consumer:
        assert consumer.poll(0) is None
        assert consumer.poll(0.01) is None
        kafka.all_up()
        joined(consumer, 1)


def test_an_error_of_a_topic_is_raised_by_a_poll_and_then_checked_again(kafka: FakeKafka) -> None:
    denied = kafka.fail("Metadata", int(ErrorCode.topic_authorization_failed), times=1_000_000)
    with new_consumer(kafka.bootstrap, topics="t") as consumer:
        for _ in range(2):
            with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
                eventually(lambda: consumer.poll(0.01))
        assert denied.hits >= 2
        kafka.clear_faults()
        filled(kafka, "t", 1)
        joined(consumer, 1)


@pytest.mark.usefixtures("impatient")
def test_another_subscription_takes_the_place_of_the_first(kafka: FakeKafka) -> None:
    listener = RecordingListener()
    with new_consumer(kafka.bootstrap, topics="t", listener=listener) as consumer:
        read(consumer, 50)
        with pytest.raises(BrokerError, match="misspelt"):
            consumer.subscribe(["t", "misspelt"])
        consumer.subscribe(["many", "t"])
        joined(consumer, 5)
        consumer.subscribe("many")
        joined(consumer, 4)
        assert committed(kafka)[AT] == 50
        consumer.subscribe([])
        joined(consumer, 0)


@pytest.mark.usefixtures("impatient")
def test_an_unknown_topic_is_an_error(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics=["t", "tt"]) as consumer, pytest.raises(BrokerError, match="tt"):
        consumer.poll(1)
    with new_consumer(kafka.bootstrap, None) as alone:
        with pytest.raises(BrokerError, match="tt"):
            alone.assign([TopicPartition("tt", 0)])
        with pytest.raises(OttlaError, match="t-7"):
            alone.assign([TopicPartition("t", 7)])
        assert alone.assignment == frozenset()


def test_partitions_are_assigned_by_name_without_a_group(kafka: FakeKafka) -> None:
    listener = RecordingListener()
    with new_consumer(kafka.bootstrap, None, listener=listener) as consumer:
        consumer.assign({MANY[0]: 45, MANY[1]: 48})
        assert sorted(read(consumer, 7)) == [(0, o) for o in range(45, 50)] + [(1, 48), (1, 49)]
        consumer.assign([MANY[1], MANY[2]])
        assert consumer.assignment == frozenset(MANY[1:3])
        records = read(consumer, 50)
        assert records == [(2, o) for o in range(50)]  # 1 continues where it was
        consumer.assign({MANY[1]: 49})
        assert read(consumer, 1) == [(1, 49)]
        with pytest.raises(ConfigError, match="has no group"):
            consumer.commit()
        with pytest.raises(ConfigError, match="has no group"):
            consumer.committed()
        with pytest.raises(ConfigError, match="cannot subscribe"):
            consumer.subscribe("t")
        consumer.assign([])
        with pytest.raises(InputError, match="nothing to read"):
            consumer.poll()
    assert not any(seen.api in ("JoinGroup", "OffsetCommit") for seen in kafka.requests)


def test_partitions_that_are_assigned_with_a_group_begin_where_it_is(kafka: FakeKafka) -> None:
    for first in (0, 50):
        with new_consumer(kafka.bootstrap) as consumer:
            consumer.assign([AT])
            consumer.poll(0.1)
            eventually(lambda: consumer.poll(0.01) is None and consumer.position(AT) == 50, "the end")
            assert first in (0, consumer.positions()[AT])
        assert committed(kafka) == {AT: 50}


def test_a_consumer_either_subscribes_or_assigns(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics="t") as consumer:
        with pytest.raises(InputError, match="either subscribe"):
            consumer.assign([AT])
        joined(consumer, 1)
        consumer.subscribe([])
        with pytest.raises(InputError, match="either subscribe"):
            consumer.assign([AT])
    with new_consumer(kafka.bootstrap) as other:
        other.assign([AT])
        with pytest.raises(InputError, match="partitions from assign"):
            other.subscribe("t")


# Threads, ends


def is_in_use(consumer: Consumer) -> bool:
    """Return whether another thread is using it."""
    if not consumer._in_use.acquire(blocking=False):
        return True
    consumer._in_use.release()
    return False


def test_only_one_thread_at_a_time_may_use_it(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics="none") as consumer:
        joined(consumer, 1)
        polling = threading.Thread(target=consumer.poll, args=(5,))
        polling.start()
        eventually(lambda: is_in_use(consumer), "it polls")
        with pytest.raises(OttlaError, match="another thread is using this consumer"):
            consumer.poll()
        consumer.stop()
        polling.join(30)
        assert not polling.is_alive()


def test_close_ends_a_poll_of_another_thread(kafka: FakeKafka) -> None:
    """Regression: it raised, and everything stayed open."""
    consumer = new_consumer(kafka.bootstrap, topics="none")
    got: list[object] = []

    def iterate() -> None:
        got.extend(consumer)
        got.append("ended")

    polling = threading.Thread(target=iterate)
    polling.start()
    eventually(lambda: consumer.assignment, "it has joined")
    began = time.monotonic()
    consumer.close()
    assert time.monotonic() - began < 5
    polling.join(30)
    assert got == ["ended"]
    assert any(seen.api == "LeaveGroup" for seen in kafka.requests)


def test_after_the_end_every_call_says_so(kafka: FakeKafka) -> None:
    consumer = new_consumer(kafka.bootstrap, topics="t")
    joined(consumer, 1)
    consumer.close()
    consumer.close()
    assert consumer.assignment == frozenset()
    assert list(consumer) == []
    calls: list[Callable[[], object]] = [
        consumer.poll,
        consumer.commit,
        lambda: consumer.subscribe("t"),
        lambda: next(iter(consumer.records()), None) or consumer.poll(),
    ]
    for call in calls:
        with pytest.raises(OttlaError, match="closed"):
            call()


def test_a_consumer_that_never_began_is_closed(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics="t") as consumer:
        assert consumer.assignment == frozenset()
    assert kafka.requests == []


def test_leaving_with_brokers_away_is_in_time(kafka: FakeKafka) -> None:
    consumer = new_consumer(kafka.bootstrap, topics="t")
    read(consumer, 50)
    kafka.all_down()
    began = time.monotonic()
    consumer.close(timeout=0.5)
    assert time.monotonic() - began < 5


def test_a_forked_child_gets_an_error_and_its_parent_continues(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics="t") as consumer:
        joined(consumer, 1)
        child = os.fork()
        if child == 0:
            try:
                consumer.close()
                consumer.poll()
            except UsedAfterFork as error:
                os._exit(7 if "before fork()" in str(error) else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        consumer.seek(AT, 0)
        assert read(consumer, 50)[0] == (0, 0)


def test_the_error_that_ends_the_membership_is_raised_and_partitions_are_lost(kafka: FakeKafka) -> None:
    listener = RecordingListener()
    with new_consumer(kafka.bootstrap, topics="t", listener=listener) as consumer:
        read(consumer, 50)
        kafka.fail("Heartbeat", ErrorCode.group_authorization_failed)
        for _ in range(2):
            with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
                read(consumer, 1)
        assert listener.of("lost") == [frozenset([AT])]
    assert committed(kafka) == {}


# Bad input

BAD: list[tuple[dict[str, Any], type[OttlaError], str]] = [
    ({"group": ""}, ConfigError, "group must be a name"),
    ({"group": 5}, ConfigError, "group must be a name"),
    ({"topics": 5}, InputError, "use a name, a list of names, or re.compile"),
    ({"topics": ["t", ""]}, InputError, "use a name"),
    ({"topics": [["t"]]}, InputError, "use a name"),
    ({"topics": re.compile(b"t")}, InputError, "pattern of bytes"),
    ({"topics": "t", "group": None}, ConfigError, "without a group cannot subscribe"),
    ({"start": "lately"}, InputError, "invalid start 'lately': use 'earliest', 'latest', 'error' or a datetime"),
    ({"start": 5}, InputError, "use 'earliest', 'latest', 'error' or a datetime"),
    ({"start": datetime(2026, 1, 1)}, InputError, "time zone"),
    ({"commit_every": 0}, ConfigError, "commit_every"),
    ({"columns": ["valeu"]}, ConfigError, "unknown columns valeu"),
    ({"isolation": "committed"}, ConfigError, "isolation is 'committed'"),
    ({"on_lost": "skip"}, ConfigError, "on_lost is 'skip'"),
    ({"listener": print}, ConfigError, "listener"),
    ({"options": {}}, ConfigError, "options"),
    ({"fetching": 5}, ConfigError, "fetching"),
]


@pytest.mark.parametrize(("arguments", "kind", "text"), BAD, ids=[str(case[0]) for case in BAD])
def test_a_wrong_setting_is_refused_when_it_is_made(
    kafka: FakeKafka, arguments: dict[str, Any], kind: type[OttlaError], text: str
) -> None:
    with pytest.raises(kind, match=text):
        new_consumer(kafka.bootstrap, **arguments)


WRONG: list[tuple[str, Callable[[Consumer], object], str]] = [
    ("another's partition", lambda c: c.seek(MANY[0], 0), "this consumer does not have many-0; it has t-0"),
    ("no partition", lambda c: c.seek("t", 0), "'t' is not a partition: use TopicPartition"),  # type: ignore[arg-type]
    ("a number as text", lambda c: c.pause(("t", "0")), "is not a partition"),  # type: ignore[arg-type]
    ("an invalid place", lambda c: c.seek(AT, "begin"), "place is 'begin'"),
    ("an offset below 0", lambda c: c.seek(AT, -5), "offsets begin at 0"),
    ("a commit below 0", lambda c: c.commit({AT: -1}), "offsets are integers from 0"),
    ("a commit of text", lambda c: c.commit({AT: "5"}), "offsets are integers from 0"),  # type: ignore[dict-item]
    ("a commit for nothing", lambda c: c.commit({"t": 5}), "is not a partition"),  # type: ignore[dict-item]
    ("a wait below 0", lambda c: c.poll(-1), "timeout must be seconds from 0"),
    ("a wait of text", lambda c: c.poll("5"), "timeout must be seconds"),  # type: ignore[arg-type]
    ("a timeout of text", lambda c: c.commit(timeout="5"), "timeout must be seconds"),  # type: ignore[arg-type]
    ("committed of a topic", lambda c: c.committed("t"), "use a list of pairs"),  # type: ignore[arg-type]
]


def test_a_wrong_call_is_refused_with_what_is_accepted(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics="t") as consumer:
        joined(consumer, 1)
        for _, call, text in WRONG:
            with pytest.raises(InputError, match=text):
                call(consumer)


def test_assign_refuses_what_is_no_partition(kafka: FakeKafka) -> None:
    wrong: list[Any] = ["t", 5, [("t", -1)], [AT, "t"], {AT: -1}, {AT: "x"}]
    with new_consumer(kafka.bootstrap, None) as consumer:
        for arguments in wrong:
            with pytest.raises(InputError):
                consumer.assign(arguments)
        assert consumer.assignment == frozenset()
