"""Lag on real brokers, held against what was written and committed."""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest
from tests.admin.members import SECONDS, member
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.engines.fleet.kafka_memory import memory_group
from ottla.errors import BrokerError, ErrorCode
from ottla.jobs.mirror_link import Link
from ottla.jobs.mirror_status import Lag, PartitionStatus, ProcessNote, publish
from ottla.jobs.mirrors import mirror
from ottla.mirror.journal import Journal
from ottla.mirror.rules import Policy
from ottla.model import Isolation, TopicPartition
from ottla.net import Cluster
from ottla.net.targets import CoordinatorKind, CoordinatorOf
from ottla.operations.lag import (
    Evaluator,
    GroupLag,
    GroupType,
    LagRow,
    Method,
    Poller,
    Selection,
    Snapshot,
    State,
    Status,
    poll,
)
from ottla.operations.lag.sources import Mirrors
from ottla.wire import messages

pytestmark = pytest.mark.broker

_SHARE_HEARTBEAT = 76
START_MS = (int(time.time()) - 3600) * 1000


@pytest.fixture(scope="module")
def admin(kafka: LocalCluster) -> Iterator[Admin]:
    with Admin(kafka.bootstrap) as opened:
        yield opened


@pytest.fixture(scope="module")
def cluster(kafka: LocalCluster) -> Iterator[Cluster]:
    with Cluster(kafka.bootstrap) as opened:
        yield opened


def _topic(admin: Admin, name: str, partitions: int = 1, **settings: str) -> str:
    named = {key.replace("_", "."): value for key, value in settings.items()}
    admin.create_topic(name, partitions=partitions, replicas=1, settings=named)
    return name


def _write(kafka: LocalCluster, topic: str, seconds: list[int], *, partition: int = 0, value: bytes = b"x") -> None:
    """A batch for each record, with its time in seconds after the start."""
    for second in seconds:
        producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
        producer.produce(topic, value, key=b"k", partition=partition, timestamp=START_MS + 1000 * second)
        assert producer.flush(SECONDS) == 0


def _write_batch(kafka: LocalCluster, topic: str, seconds: list[int], *, value: bytes = b"x") -> None:
    """One batch with all of them."""
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 500})
    for second in seconds:
        producer.produce(topic, value, partition=0, timestamp=START_MS + 1000 * second)
    assert producer.flush(SECONDS) == 0


def _rows(snapshot: Snapshot, group: str) -> dict[int, LagRow]:
    return {row.partition: row for row in snapshot.rows() if row.group == group}


def _commit(admin: Admin, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    admin.groups.set_offsets(group, {TopicPartition(topic, number): offset for number, offset in offsets.items()})


def test_records_and_seconds_are_those_that_were_written(kafka: LocalCluster, admin: Admin, cluster: Cluster) -> None:
    topic = _topic(admin, "lag-truth", 3)
    _write(kafka, topic, [0, 10, 25, 70])
    _commit(admin, "lag-truth", topic, {0: 1, 1: 0})
    _commit(admin, "lag-truth-2", topic, {0: 3})
    snapshot = poll(cluster, ["lag-truth", "lag-truth-2"])
    rows = _rows(snapshot, "lag-truth")
    assert (rows[0].lag_records, rows[0].lag_seconds, rows[0].method) == (3, 60.0, Method.EXACT)
    assert rows[0].unread_seconds == pytest.approx(snapshot.at - START_MS / 1000 - 10)
    assert (rows[1].lag_records, rows[1].lag_seconds, rows[1].state) == (0, 0.0, State.OK)
    assert (rows[2].committed, rows[2].lag_records, rows[2].state) == (None, None, State.NONE)
    # Two groups at two places of one partition.
    assert _rows(snapshot, "lag-truth-2")[0].lag_seconds == 0.0
    assert _rows(snapshot, "lag-truth-2")[0].lag_records == 1


def test_inside_a_batch_the_seconds_are_a_bound_and_large_batches_are_found(
    kafka: LocalCluster, admin: Admin, cluster: Cluster
) -> None:
    topic = _topic(admin, "lag-batches")
    _write_batch(kafka, topic, [0, 10, 20, 30])
    _write(kafka, topic, [100], value=bytes(300_000))
    _commit(admin, "lag-inside", topic, {0: 2})
    _commit(admin, "lag-large", topic, {0: 4})
    snapshot = poll(cluster, ["lag-inside", "lag-large"])
    inside = _rows(snapshot, "lag-inside")[0]
    assert (inside.lag_seconds, inside.method) == (100.0, Method.BOUND)
    large = _rows(snapshot, "lag-large")[0]
    assert large.lag_seconds == 0.0
    assert large.unread_seconds == pytest.approx(snapshot.at - START_MS / 1000 - 100)


def test_records_that_were_deleted_are_lost_and_the_seconds_are_those_of_what_is_left(
    kafka: LocalCluster, admin: Admin, cluster: Cluster
) -> None:
    topic = _topic(admin, "lag-deleted", retention_ms="-1")
    _write(kafka, topic, [0, 10, 20, 30])
    _commit(admin, "lag-deleted", topic, {0: 1})
    client = confluent_kafka.admin.AdminClient({"bootstrap.servers": kafka.bootstrap})
    deleted = client.delete_records([confluent_kafka.TopicPartition(topic, 0, 3)])
    for future in deleted.values():
        future.result(SECONDS)
    row = _rows(poll(cluster, ["lag-deleted"]), "lag-deleted")[0]
    assert (row.state, row.lost_records, row.lag_records, row.lag_seconds) == (State.LOST, 2, 3, 0.0)
    assert row.start == 3


def _transact(kafka: LocalCluster, topic: str, *, commits: bool) -> None:
    """One record in a transaction that has ended, and its marker, which comes a little after the end."""
    end = _end(kafka, topic)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": kafka.bootstrap, "transactional.id": f"{topic}-{commits}"}
    )
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce(topic, b"y", partition=0, timestamp=START_MS + 50_000)
    producer.flush(SECONDS)
    (producer.commit_transaction if commits else producer.abort_transaction)(SECONDS)
    eventually(lambda: _end(kafka, topic) == end + 2, "the marker is written")


def _end(kafka: LocalCluster, topic: str) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "-"})
    _, end = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), SECONDS)
    consumer.close()
    return int(end)


def test_markers_and_aborted_records_at_the_end_are_nothing_to_read(
    kafka: LocalCluster, admin: Admin, cluster: Cluster
) -> None:
    topic = _topic(admin, "lag-aborted")
    _write(kafka, topic, [0, 10])
    _transact(kafka, topic, commits=True)  # a record at 2, its marker at 3
    _commit(admin, "lag-marker", topic, {0: 3})
    _commit(admin, "lag-data", topic, {0: 1})
    snapshot = poll(cluster, ["lag-marker", "lag-data"])
    row = _rows(snapshot, "lag-marker")[0]
    assert (row.lag_records, row.lag_seconds, row.state) == (1, 0.0, State.OK)
    # The newest time is that of data, not of the marker, which was written just now.
    assert _rows(snapshot, "lag-data")[0].lag_seconds == 40.0
    _transact(kafka, topic, commits=False)  # 4 and its marker at 5
    uncommitted = _rows(poll(cluster, ["lag-marker"]), "lag-marker")[0]
    assert (uncommitted.lag_records, uncommitted.state) == (3, State.UNKNOWN)
    committed = _rows(poll(cluster, ["lag-marker"], isolation=Isolation.READ_COMMITTED), "lag-marker")[0]
    assert (committed.lag_records, committed.lag_seconds, committed.state) == (3, 0.0, State.OK)


def test_an_open_transaction_ends_the_log_for_readers_of_committed_data(
    kafka: LocalCluster, admin: Admin, cluster: Cluster
) -> None:
    topic = _topic(admin, "lag-open")
    _write(kafka, topic, [0, 10])
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce(topic, b"y", partition=0)
    producer.flush(SECONDS)
    _commit(admin, "lag-open", topic, {0: 2})
    _commit(admin, "lag-open-dirty", topic, {0: 3})
    snapshot = poll(cluster, ["lag-open", "lag-open-dirty"], isolation=Isolation.READ_COMMITTED)
    producer.abort_transaction(SECONDS)
    assert (_rows(snapshot, "lag-open")[0].lag_records, _rows(snapshot, "lag-open")[0].end) == (0, 2)
    dirty = _rows(snapshot, "lag-open-dirty")[0]
    assert (dirty.lag_records, dirty.state) == (0, State.OK)


class _Watch:
    """Polls with a clock that moves on by half a minute each time."""

    def __init__(self, cluster: Cluster, *groups: str) -> None:
        self.now = time.time()
        self.poller = Poller(cluster, selection=Selection(frozenset(groups)), clock=lambda: self.now)
        self.evaluator = Evaluator()

    def look(self) -> Snapshot:
        self.now += 30
        return self.evaluator.observe(self.poller.poll(), missing=self.poller.missing)

    def row(self) -> LagRow:
        (group,) = self.look().groups
        return group.rows[0]


def test_bursts_stalls_and_rewinds_are_seen_as_they_happen(kafka: LocalCluster, admin: Admin, cluster: Cluster) -> None:
    topic, group = _topic(admin, "lag-states"), "lag-states"
    watch = _Watch(cluster, group)
    _write_batch(kafka, topic, [*range(100)])
    for offset in (10, 20, 30, 40):  # as fast as it is written
        _commit(admin, group, topic, {0: offset})
        _write_batch(kafka, topic, [*range(10)])
        row = watch.row()
    assert (row.state, row.lag_records, row.trend) == (State.WARN, 100, 0.0)
    _commit(admin, group, topic, {0: 140})
    assert watch.row().state is State.OK
    _commit(admin, group, topic, {0: 50})
    assert watch.row().state is State.REWIND
    _commit(admin, group, topic, {0: 140})
    assert watch.row().state is State.OK
    _write_batch(kafka, topic, [1])
    states = [watch.row().state for _ in range(12)]
    assert states[-1] is State.STOP


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_that_does_not_read_on_stalls_and_is_named(
    kafka: LocalCluster, admin: Admin, cluster: Cluster, protocol: str
) -> None:
    topic, group = _topic(admin, f"lag-stall-{protocol}"), f"lag-stall-{protocol}"
    _write(kafka, topic, [0, 1])
    _commit(admin, group, topic, {0: 1})
    watch = _Watch(cluster, group)
    with member(kafka.bootstrap, group, topic, protocol=protocol, client="sleepy"):
        for _ in range(4):
            row = watch.row()
        assert (row.state, row.type) == (State.STALL, GroupType(protocol))
        assert row.owner is not None
        assert (row.owner.client_id, row.owner.host) == ("sleepy", "127.0.0.1")


def test_a_recreated_topic_and_a_deleted_group_leave_nothing_behind(
    kafka: LocalCluster, admin: Admin, cluster: Cluster
) -> None:
    topic, group = _topic(admin, "lag-again"), "lag-again"
    _write_batch(kafka, topic, [*range(10)])
    _commit(admin, group, topic, {0: 8})
    watch = _Watch(cluster, group)
    assert watch.row().lag_records == 2
    admin.delete_topics(topic)
    eventually(lambda: not [row for row in watch.look().rows() if row.committed is not None], "the topic disappears")
    _topic(admin, topic)
    _write(kafka, topic, [0, 1])
    _commit(admin, group, topic, {0: 1})
    row = watch.row()
    assert (row.committed, row.lag_records, len(row.window)) == (1, 1, 1)
    assert row.state is not State.REWIND
    _commit(admin, group, topic, {0: 99})
    ahead = watch.row()
    assert (ahead.state, ahead.lag_records) == (State.AHEAD, None)
    admin.groups.delete(group)
    assert watch.look().groups == ()


def test_share_groups_are_shown_where_their_oldest_record_in_flight_is(
    kafka: LocalCluster, admin: Admin, cluster: Cluster
) -> None:
    topic, group = _topic(admin, "lag-share"), "lag-share"
    _write(kafka, topic, [0, 1, 2])
    with contextlib.ExitStack() as stack:
        heartbeat = _ShareMember(cluster, group, topic)
        stack.callback(heartbeat.leave)
        eventually(heartbeat.beat, "the share group has its partition")
        snapshot = poll(cluster, [group])
        (found,) = snapshot.groups
        assert (found.type, found.members) == (GroupType.SHARE, 1)
        assert found.rows[0].owner is not None
        assert found.rows[0].end == 3
        # The default is to begin at the end; nothing is committed before something was delivered.
        assert found.rows[0].state in (State.NONE, State.OK, State.UNKNOWN)


class _ShareMember:
    """A member of a share group, by its heartbeats alone."""

    def __init__(self, cluster: Cluster, group: str, topic: str) -> None:
        self._cluster, self._group, self._topic = cluster, group, topic
        self._id, self._epoch = str(uuid.uuid4()), 0

    def beat(self) -> bool:
        """Whether partitions are assigned."""
        response = self._send(self._epoch)
        self._epoch = response.member_epoch
        return response.assignment is not None and bool(response.assignment.topic_partitions)

    def leave(self) -> None:
        """End the membership."""
        self._send(-1)

    def _send(self, epoch: int) -> Any:
        fields = {
            "group_id": self._group,
            "member_id": self._id,
            "member_epoch": epoch,
            "rack_id": None,
            "subscribed_topic_names": (self._topic,) if epoch == 0 else None,
        }

        def check(response: Any) -> Any:
            if response.error_code is not ErrorCode.none:
                raise BrokerError(response.error_code, "share heartbeat", response.error_message)
            return response

        return self._cluster.call(
            CoordinatorOf(CoordinatorKind.GROUP, self._group),
            lambda version_of: messages.compose(
                messages.request_type(_SHARE_HEARTBEAT, version_of(_SHARE_HEARTBEAT)), fields
            ),
            check=check,
            what="share heartbeat",
        )


def test_fleets_are_shown_by_their_name_and_internal_groups_only_on_request(
    kafka: LocalCluster, admin: Admin, cluster: Cluster
) -> None:
    topic = _topic(admin, "lag-fleet")
    _write(kafka, topic, [0, 30])
    _commit(admin, memory_group("lag-etl"), topic, {0: 1})
    _commit(admin, "ottla-replay-x:1", topic, {0: 1})
    snapshot = poll(cluster, topic="lag-fleet")
    assert [(group.name, group.type) for group in snapshot.groups] == [("lag-etl", GroupType.FLEET)]
    everything = poll(cluster, topic="lag-fleet", with_internal=True)
    assert {group.name for group in everything.groups} == {"ottla-fleet.lag-etl", "ottla-replay-x:1"}


def test_topics_are_chosen_by_a_pattern_over_the_whole_name(
    kafka: LocalCluster, admin: Admin, cluster: Cluster
) -> None:
    first, second = _topic(admin, "lag-pattern-a"), _topic(admin, "lag-pattern-a.b")
    for name in (first, second):
        _write(kafka, name, [0])
        _commit(admin, "lag-pattern", name, {0: 0})
    assert {row.topic for row in poll(cluster, ["lag-pattern"], topic="lag-pattern-a").rows()} == {first}
    assert {row.topic for row in poll(cluster, ["lag-pattern"], topic="lag-pattern-.*").rows()} == {first, second}
    with pytest.raises(re.error):
        poll(cluster, topic="(")


def test_lag_is_never_negative_while_records_are_written_and_read(
    kafka: LocalCluster, admin: Admin, cluster: Cluster
) -> None:
    topic, group = _topic(admin, "lag-racing"), "lag-racing"
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
    watch = _Watch(cluster, group)
    for number in range(1, 30):
        producer.produce(topic, b"x", partition=0)
        producer.flush(SECONDS)
        _commit(admin, group, topic, {0: number})
        row = watch.row()
        assert row.lag_records is not None
        assert 0 <= row.lag_records <= 1
        assert row.state is not State.AHEAD


def test_the_number_of_requests_does_not_depend_on_the_number_of_groups(
    kafka: LocalCluster, admin: Admin, cluster: Cluster
) -> None:
    topic = _topic(admin, "lag-many", 4)
    for number in range(40):
        _commit(admin, f"lag-many-{number}", topic, dict.fromkeys(range(4), 0))

    def requests(groups: int) -> int:
        names = [f"lag-many-{number}" for number in range(groups)]
        snapshot = poll(cluster, names, with_times=False)
        assert len(snapshot.groups) == groups
        assert snapshot.groups[0].status is Status.OK
        return snapshot.traffic.requests

    # To three brokers: ListGroups, OffsetFetch, and ListOffsets for both ends.
    assert requests(40) <= 3 * 4


def test_mirrors_are_shown_by_their_journal(kafka: LocalCluster, admin: Admin, cluster: Cluster) -> None:
    topic = _topic(admin, "lag-mirrored")
    _write(kafka, topic, [0, 1, 2])
    link = Link(
        source=kafka.bootstrap,
        target=kafka.bootstrap,
        topics=(topic,),
        name="lag-link",
        rename="copy.{topic}",
        rules=Policy(patience=20.0),
        replicas=1,
        journal="lag-mirror-journal",
    )
    mirror(link)
    poller = Poller(cluster, selection=Selection(frozenset(["nothing"])))

    def look() -> GroupLag:
        (group,) = Evaluator().observe(poller.poll(others=lambda: mirrors.read(now=time.time()))).groups
        return group

    with contextlib.closing(Mirrors(cluster, journal="lag-mirror-journal")) as mirrors:
        group = look()
        assert (group.name, group.type) == ("lag-link", GroupType.MIRROR)
        # How far the source is, only a process that runs can say.
        assert [(row.topic, row.committed, row.end, row.state) for row in group.rows] == [
            (topic, 3, None, State.UNKNOWN)
        ]
        at = TopicPartition(topic, 0)
        status = PartitionStatus(at, TopicPartition(f"copy.{topic}", 0), 3, 8, Lag(5, None, 7.5))
        with contextlib.closing(Journal(cluster, link="lag-link", topic="lag-mirror-journal")) as journal:
            publish(journal, ProcessNote("host", 1, 0.0, time.time(), "running", kafka.bootstrap), [status])
            (row,) = look().rows
            assert (row.lag_records, row.lag_seconds, row.method) == (5, 7.5, Method.EXACT)
            publish(journal, ProcessNote("host", 1, 0.0, time.time() - 100, "running", kafka.bootstrap), [status])
        assert look().error == "its process has been silent for a minute"
    with contextlib.closing(Mirrors(cluster, journal="lag-no-journal")) as mirrors:
        assert mirrors.read(now=time.time()) == []
