"""The cluster client against a fake cluster in this process, with faults on demand."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ottla.cluster.process import wait_until
from ottla.config import PLAINTEXT, Address, Retry, Timeouts, parse_address
from ottla.errors import (
    BrokerError,
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    ErrorCode,
    NoBrokerReachable,
    OttlaError,
    UsedAfterFork,
)
from ottla.net import (
    AnyBroker,
    Cluster,
    Controller,
    CoordinatorKind,
    CoordinatorOf,
    Deadline,
    LeaderOf,
    Node,
    OnUnknownTopic,
    Refresh,
    VersionOf,
)
from ottla.net import attempts as attempts_module
from ottla.net.connection import Connection
from ottla.net.pool import Pool
from ottla.produce.producer import Producer
from ottla.testing import FakeKafka
from ottla.wire import messages

from .servers import Peer, metadata_fields, serving
from .test_connection import answers, broker, in_a_child, silence

LIST_OFFSETS = 2
QUICK = Retry(initial=0.005, maximum=0.05)


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka(brokers=3, topics={"t": 6}, auto_create=None) as fake:
        yield fake


@pytest.fixture
def cluster(kafka: FakeKafka) -> Iterator[Cluster]:
    with Cluster(kafka.bootstrap, retry=QUICK, chance=random.Random(1)) as client:
        yield client


def closed_port() -> Address:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return Address("127.0.0.1", server.getsockname()[1])


def end_of(topic: str, partition: int) -> Any:
    """Build the request for the end offset of a partition."""

    def build(version_of: VersionOf) -> messages.Message:
        row = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": -1}
        fields = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": [row]}]}
        entity = messages.request_type(LIST_OFFSETS, version_of(LIST_OFFSETS, highest=7))
        message: messages.Message = messages.compose(entity, fields)
        return message

    return build


def check_end(response: Any) -> int:
    [row] = response.topics[0].partitions
    if row.error_code is not ErrorCode.none:
        raise BrokerError(row.error_code, "the end of the partition")
    return int(row.offset)


def ask_end(cluster: Cluster, partition: int = 0, seconds: float = 10) -> int:
    target = LeaderOf("t", partition)
    return cluster.call(
        target, end_of("t", partition), check=check_end, what="asking", deadline=Deadline.after(seconds)
    )


@pytest.mark.parametrize("name", ["a\udcffb", "x" * 32_768, "ä" * 16_384, 5, None])
def test_a_client_id_that_no_request_can_have_is_refused(name: str) -> None:
    """Found: every request raised UnicodeEncodeError, on threads of the library."""
    with pytest.raises(ConfigError, match="client_id"):
        Cluster("localhost:1", client_id=name)
    with pytest.raises(ConfigError, match="client_id"):
        Producer("localhost:1", client_id=name)


def test_constructing_connects_nothing() -> None:
    with Cluster("broker.invalid:9092") as cluster:
        assert repr(cluster) == "<Cluster broker.invalid:9092 PLAINTEXT>"


def test_metadata_names_brokers_and_the_topics_asked_for(kafka: FakeKafka, cluster: Cluster) -> None:
    assert set(cluster.metadata().brokers) == {1, 2, 3}
    assert cluster.metadata().topics == {}
    assert set(cluster.metadata(None).topics) == {"t"}
    metadata = cluster.metadata(["t", "missing"])
    assert len(metadata.topics["t"].partitions) == 6
    assert metadata.topics["missing"].error is ErrorCode.unknown_topic_or_partition
    assert kafka.topics == {"t": 6}


def test_a_topic_is_created_by_asking_only_if_that_is_asked_for() -> None:
    with FakeKafka(topics={}) as fake, Cluster(fake.bootstrap, retry=QUICK) as cluster:
        cluster.metadata(["new"])
        assert "new" not in fake.topics
        cluster.metadata(["new"], unknown=OnUnknownTopic.CREATE)
        assert "new" in fake.topics


def metadata_requests(kafka: FakeKafka) -> int:
    return sum(seen.api == "Metadata" for seen in kafka.requests)


def test_leaders_are_remembered_until_in_doubt(kafka: FakeKafka, cluster: Cluster) -> None:
    for partition in range(6):
        assert cluster.leader("t", partition).id == kafka.leader("t", partition)
    assert metadata_requests(kafka) == 1
    cluster.metadata(["t"], refresh=Refresh.IF_STALE)
    assert metadata_requests(kafka) == 1
    cluster.invalidate("t")
    cluster.leader("t", 0)
    assert metadata_requests(kafka) == 2
    cluster.invalidate()
    cluster.topic("t")
    assert metadata_requests(kafka) == 3


def test_metadata_is_asked_for_again_when_it_is_old(kafka: FakeKafka) -> None:
    with Cluster(kafka.bootstrap, timeouts=Timeouts(metadata_age=0.01)) as cluster:
        cluster.topic("t")
        time.sleep(0.02)
        cluster.topic("t")
    assert metadata_requests(kafka) == 2


def test_threads_that_ask_the_same_share_one_look(kafka: FakeKafka, cluster: Cluster) -> None:
    cluster.metadata()
    kafka.delay("Metadata", 0.3)
    before = metadata_requests(kafka)
    with ThreadPoolExecutor(16) as pool:
        assert {len(metadata.brokers) for metadata in pool.map(lambda _: cluster.metadata(["t"]), range(16))} == {3}
    assert metadata_requests(kafka) - before <= 4


def test_one_dead_bootstrap_address_does_not_matter(kafka: FakeKafka) -> None:
    dead = [str(closed_port()) for _ in range(3)]
    for seed in range(5):
        with Cluster([*dead, *kafka.bootstrap.split(",")], chance=random.Random(seed), retry=QUICK) as cluster:
            assert len(cluster.metadata(deadline=Deadline.after(2)).brokers) == 3


def test_a_bootstrap_address_that_is_silent_costs_its_share_of_the_time(kafka: FakeKafka) -> None:
    with serving(silence) as silent, Cluster([silent, *kafka.addresses.values()], chance=random.Random(3)) as cluster:
        started = time.monotonic()
        assert len(cluster.metadata(deadline=Deadline.after(8)).brokers) == 3
        assert time.monotonic() - started < 6


def test_when_nothing_is_reachable_each_address_is_named_with_reason_time_and_tries() -> None:
    refused = closed_port()
    with serving(silence) as silent, Cluster([refused, silent], retry=QUICK) as cluster:
        started = time.monotonic()
        with pytest.raises(NoBrokerReachable) as caught:
            cluster.metadata(deadline=Deadline.after(1))
        assert 0.5 < time.monotonic() - started < 3
    attempts = {attempt.address: attempt for attempt in caught.value.attempts}
    assert "connection refused" in attempts[str(refused)].reason
    assert "not answered" in attempts[str(silent)].reason
    assert attempts[str(silent)].seconds > 0.2
    assert str(refused) in str(caught.value)


def test_when_nothing_listens_the_advice_says_so() -> None:
    text = r"tried \d+ times(.|\n)*hint: nothing listens there"
    with Cluster([closed_port()], retry=QUICK) as cluster, pytest.raises(NoBrokerReachable, match=text):
        cluster.metadata(deadline=Deadline.after(0.3))


def test_a_second_cluster_behind_a_bootstrap_address_is_named() -> None:
    def cut_after_one(peer: Peer) -> None:
        peer.answer(peer.request(), metadata_fields("one"))
        peer.wait_until_closed()

    def other(peer: Peer) -> None:
        while True:
            peer.answer(peer.request(), metadata_fields("two"))

    with serving(broker(cut_after_one), broker(other)) as address, Cluster([address], retry=QUICK) as cluster:
        assert cluster.metadata().cluster_id == "one"
        with pytest.raises(
            NoBrokerReachable, match="belongs to cluster two, but this client is connected to cluster one"
        ):
            cluster.metadata(deadline=Deadline.after(0.2))


def test_a_moved_leader_is_found(kafka: FakeKafka, cluster: Cluster) -> None:
    assert ask_end(cluster) == 0
    kafka.move_leader("t", 0, to=kafka.leader("t", 0) % 3 + 1)
    assert ask_end(cluster) == 0
    assert cluster.leader("t", 0).id == kafka.leader("t", 0)


def test_what_is_known_is_returned_without_asking(kafka: FakeKafka, cluster: Cluster) -> None:
    assert cluster.known.topics == {}
    assert kafka.requests == []
    cluster.topic("t")
    before = len(kafka.requests)
    cluster.invalidate("t")
    assert [p.leader for p in cluster.known.topics["t"].partitions] == [kafka.leader("t", p) for p in range(6)]
    assert len(kafka.requests) == before


def test_a_leader_that_a_broker_named_is_used_without_asking(kafka: FakeKafka, cluster: Cluster) -> None:
    known = cluster.topic("t").partitions[2]
    others = [p for p in cluster.topic("t").partitions if p.index != 2]
    before = metadata_requests(kafka)
    assert cluster.leader_moved("t", 2, leader=known.leader % 3 + 1, epoch=known.leader_epoch + 1)
    assert cluster.leader("t", 2).id == known.leader % 3 + 1
    assert [p for p in cluster.known.topics["t"].partitions if p.index != 2] == others
    assert metadata_requests(kafka) == before
    cluster.metadata(["t"])  # the fake still names the old leader, with an older epoch
    assert cluster.leader("t", 2).id == known.leader % 3 + 1


@pytest.mark.parametrize(
    ("topic", "partition", "leader", "step", "is_known"),
    [
        ("t", 0, 0, 0, True),
        ("t", 0, 9, 0, False),
        ("t", 0, 0, -1, False),
        ("t", 0, 9, 1, False),
        ("t", 17, 2, 1, False),
        ("other", 0, 2, 1, False),
        ("t", 0, 2, -1_000_000, False),
    ],
    ids=[
        "known",
        "another one of the same epoch",
        "older",
        "unknown broker",
        "unknown partition",
        "unknown topic",
        "no epoch",
    ],
)
def test_news_of_a_leader_that_are_old_or_of_no_use_change_nothing(
    cluster: Cluster, topic: str, partition: int, leader: int, step: int, is_known: bool
) -> None:
    first = cluster.topic("t").partitions[0]
    cluster.leader_moved("t", 0, leader=first.leader, epoch=first.leader_epoch + 5)
    before = cluster.known
    epoch = max(-1, first.leader_epoch + 5 + step)
    assert cluster.leader_moved(topic, partition, leader=leader or first.leader, epoch=epoch) is is_known
    assert cluster.known == before


@pytest.mark.parametrize("code", [ErrorCode.not_leader_or_follower, ErrorCode.leader_not_available])
def test_errors_of_a_stale_leader_are_retried_after_a_fresh_look(
    kafka: FakeKafka, cluster: Cluster, code: ErrorCode
) -> None:
    ask_end(cluster)
    before = metadata_requests(kafka)
    kafka.fail("ListOffsets", code, times=3)
    assert ask_end(cluster) == 0
    assert metadata_requests(kafka) == before + 3


def test_retriable_errors_without_refresh_do_not_ask_for_metadata(kafka: FakeKafka, cluster: Cluster) -> None:
    ask_end(cluster)
    before = metadata_requests(kafka)
    kafka.fail("ListOffsets", ErrorCode.request_timed_out, times=3)
    assert ask_end(cluster) == 0
    assert metadata_requests(kafka) == before


def test_other_errors_are_raised_at_once(kafka: FakeKafka, cluster: Cluster) -> None:
    fault = kafka.fail("ListOffsets", ErrorCode.topic_authorization_failed, times=None)
    with pytest.raises(BrokerError) as caught:
        ask_end(cluster)
    assert caught.value.code is ErrorCode.topic_authorization_failed
    assert fault.hits == 1


def test_cut_connections_and_half_answers_are_retried(kafka: FakeKafka, cluster: Cluster) -> None:
    kafka.cut("ListOffsets", times=2)
    kafka.half_response("ListOffsets", times=2)
    assert ask_end(cluster) == 0


def test_an_error_that_does_not_end_is_summed_up_at_the_deadline(kafka: FakeKafka, cluster: Cluster) -> None:
    kafka.fail("ListOffsets", ErrorCode.not_leader_or_follower, times=None)
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"asking did not succeed(.|\n)*NOT_LEADER(.|\n)*hint: ") as caught:
        ask_end(cluster, seconds=0.5)
    assert 0.3 < time.monotonic() - started < 3
    assert len(caught.value.causes) == 1


def test_a_broker_that_never_answers_ends_at_the_deadline(kafka: FakeKafka, cluster: Cluster) -> None:
    kafka.silence("ListOffsets", times=None)
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="ListOffsets v7 was not answered within"):
        ask_end(cluster, seconds=0.5)
    assert time.monotonic() - started < 3


def test_downtime_is_waited_out(kafka: FakeKafka, cluster: Cluster) -> None:
    ask_end(cluster)
    kafka.all_down()
    timer = threading.Timer(0.3, kafka.all_up)
    timer.start()
    try:
        assert ask_end(cluster) == 0
    finally:
        timer.join()


def test_the_caller_gets_every_failure_before_the_next_try(kafka: FakeKafka, cluster: Cluster) -> None:
    heard: list[OttlaError] = []
    kafka.cut("ListOffsets", times=1)
    cluster.call(LeaderOf("t", 0), end_of("t", 0), check=check_end, what="asking", retrying=heard.append)
    assert [type(error) for error in heard] == [ConnectionLost]


def test_an_unknown_topic_is_an_error_after_a_short_patience(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts_module, "UNKNOWN_TOPIC_SECONDS", 0.1)
    with pytest.raises(BrokerError, match="topic missing: UNKNOWN_TOPIC_OR_PARTITION"):
        cluster.topic("missing")
    with pytest.raises(BrokerError, match=r"partition t-17: .* the topic has partitions 0 to 5"):
        cluster.leader("t", 17)


def test_a_topic_that_appears_in_time_is_found(kafka: FakeKafka, cluster: Cluster) -> None:
    timer = threading.Timer(0.2, kafka.create_topic, ("late", 1))
    timer.start()
    try:
        assert len(cluster.topic("late").partitions) == 1
    finally:
        timer.join()


def test_coordinators_are_found_and_remembered(kafka: FakeKafka, cluster: Cluster) -> None:
    coordinator = cluster.coordinator("group", CoordinatorKind.GROUP)
    assert coordinator.id in (1, 2, 3)
    assert cluster.coordinator("group", CoordinatorKind.GROUP) == coordinator
    assert sum(seen.api == "FindCoordinator" for seen in kafka.requests) == 1
    cluster.doubt(CoordinatorOf(CoordinatorKind.GROUP, "group"))
    cluster.coordinator("group", CoordinatorKind.GROUP)
    assert sum(seen.api == "FindCoordinator" for seen in kafka.requests) == 2


def test_a_coordinator_that_is_not_available_yet_is_waited_for(kafka: FakeKafka, cluster: Cluster) -> None:
    kafka.fail("FindCoordinator", ErrorCode.coordinator_not_available, times=3)
    assert cluster.coordinator("group", CoordinatorKind.GROUP).id in (1, 2, 3)


def test_each_kind_of_target_finds_a_broker(kafka: FakeKafka, cluster: Cluster) -> None:
    asked: list[int] = []

    def ask(target: Any) -> int:
        cluster.call(target, lambda v: messages.compose(messages.request_type(18, v(18)), _names()), check=id, what="x")
        seen = [request for request in kafka.requests if request.api == "ApiVersions"][-1]
        asked.append(seen.broker)
        return seen.broker

    assert ask(Node(2)) == 2
    assert ask(LeaderOf("t", 0)) == kafka.leader("t", 0)
    assert ask(AnyBroker()) in (1, 2, 3)
    assert ask(Controller()) == cluster.metadata().controller_id
    group = CoordinatorOf(CoordinatorKind.GROUP, "g")
    assert ask(group) == cluster.coordinator("g", CoordinatorKind.GROUP).id
    with pytest.raises(DeadlineExceeded, match="broker 9: not in the cluster's list of brokers"):
        cluster.call(Node(9), end_of("t", 0), check=check_end, what="asking broker 9", deadline=Deadline.after(0.2))


def _names() -> dict[str, str]:
    return {"client_software_name": "ottla", "client_software_version": "1"}


def test_a_broker_has_one_connection_for_each_lane(kafka: FakeKafka, cluster: Cluster) -> None:
    leader = cluster.leader("t", 0)
    control = cluster.connection(leader)
    assert cluster.connection(leader) is control
    fetching = cluster.connection(leader, channel="fetch")
    assert fetching is not control
    control.close()
    assert cluster.connection(leader) is not control


def test_a_connection_that_the_broker_closed_while_idle_is_replaced(kafka: FakeKafka, cluster: Cluster) -> None:
    leader = cluster.leader("t", 0)
    connection = cluster.connection(leader)
    kafka.down(leader.id)
    kafka.up(leader.id)
    replaced = cluster.connection(leader)
    assert replaced is not connection
    assert not replaced.closed


def test_closing_ends_waits_and_refuses_further_calls(kafka: FakeKafka) -> None:
    cluster = Cluster(kafka.bootstrap, retry=QUICK)
    kafka.silence("ListOffsets", times=None)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask_end, cluster, 0, 30.0)
        kafka.wait_for_request("ListOffsets", timeout=5)
        cluster.close()
        with pytest.raises(OttlaError):
            waiting.result(5)
    with pytest.raises(ConnectionLost, match="it was closed"):
        cluster.metadata()
    cluster.close()


def _is_free(lock: threading.RLock) -> bool:
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(lock.acquire, blocking=False).result()


def test_a_found_connection_does_not_wait_for_a_thread_that_is_connecting(kafka: FakeKafka) -> None:
    """The connecting thread may have minutes left, so waiting for it would exceed the caller's deadline."""
    pool = Pool(security=PLAINTEXT, client_id="t")
    address = parse_address(kafka.bootstrap.split(",")[0])
    with serving(silence) as silent, ThreadPoolExecutor(1) as threads:
        connecting = threads.submit(pool.get, "broker", silent, deadline=Deadline.after(2))
        assert wait_until(lambda: not _is_free(pool._slot("broker").lock), timeout=5)
        connection = Connection.open(address, security=PLAINTEXT, client_id="t", deadline=Deadline.after(5))
        pool.adopt("broker", connection)
        assert not connecting.done()
        assert connection.closed
        with pytest.raises(ConnectFailed):
            connecting.result()
    pool.close()


def test_a_deadline_without_end_is_no_trouble_for_locks_and_polls(kafka: FakeKafka, cluster: Cluster) -> None:
    kafka.delay("Metadata", 0.2, times=1)
    with ThreadPoolExecutor(2) as pool:
        looks = [pool.submit(cluster.metadata, ["t"], deadline=Deadline.after(float("inf"))) for _ in range(2)]
        assert [len(look.result().topics) for look in looks] == [1, 1]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_must_make_a_client_of_its_own(kafka: FakeKafka, cluster: Cluster) -> None:
    cluster.metadata()
    assert in_a_child(lambda: print(cluster.metadata())) == 0
    assert len(cluster.metadata().brokers) == 3
    cluster._pid += 1
    with pytest.raises(UsedAfterFork, match="before fork"):
        cluster.metadata()


def test_no_connection_is_left_open(kafka: FakeKafka) -> None:
    before = len(os.listdir("/dev/fd"))
    with Cluster(kafka.bootstrap) as cluster:
        for partition in range(6):
            ask_end(cluster, partition)
    deadline = Deadline.after(5)
    while len(os.listdir("/dev/fd")) > before and not deadline.expired():
        time.sleep(0.01)  # the fake closes its ends in threads of its own
    assert len(os.listdir("/dev/fd")) <= before


def test_a_stand_in_broker_without_neighbours_is_enough_to_bootstrap() -> None:
    with serving(broker(answers)) as address, Cluster([address]) as cluster:
        assert cluster.metadata().cluster_id == "1"
