"""The fake and a real broker get the same requests; their responses must be the same."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from ottla.cluster import LocalCluster
from ottla.config import Address, parse_bootstrap
from ottla.errors import ErrorCode
from ottla.testing import FakeKafka
from ottla.testing.fake.apis.table import TABLE
from ottla.wire.messages import api_name

from .raw import RawClient, make_batch, produce

pytestmark = pytest.mark.broker

Play = Callable[["Stage"], Any]

_names = (f"play-{number}" for number in itertools.count())


class Stage:
    """A topic `name` on one of the two clusters, and a connection to the leader of its only partition."""

    def __init__(self, name: str, client: RawClient, bootstrap: Address) -> None:
        self.name = name
        self.client = client
        self.bootstrap = bootstrap

    def produce(self, records: bytes, **more: Any) -> tuple[ErrorCode, int]:
        answer = produce(self.client, records, topic=self.name, **more)
        return answer.error_code, answer.base_offset

    def fetch(self, offset: int, **more: Any) -> Any:
        part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 10_000, "current_leader_epoch": -1}
        request = {"max_wait": timedelta(0), "min_bytes": 1, "max_bytes": 10_000, "session_epoch": -1}
        topics = [{"topic": self.name, "partitions": [part | more]}]
        return self.client.ask("Fetch", 12, topics=topics, **request).responses[0].partitions[0]

    def list_offset(self, timestamp: int) -> tuple[ErrorCode, int, int]:
        topics = [{"name": self.name, "partitions": [{"partition_index": 0, "timestamp": timestamp}]}]
        partition = self.client.ask("ListOffsets", 9, replica_id=-1, topics=topics).topics[0].partitions[0]
        return partition.error_code, partition.offset, partition.timestamp

    def coordinator(self, key: str, *, key_type: int = 0) -> RawClient:
        """Connect to the coordinator of a group or transactional id, once it has one."""
        with RawClient(self.bootstrap) as client:
            coordinator = once_warm(
                lambda: client.ask("FindCoordinator", 4, key_type=key_type, coordinator_keys=[key]).coordinators[0],
                lambda answer: answer.error_code,
            )
        return RawClient(Address(coordinator.host, coordinator.port))


NOT_YET = {
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.leader_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.not_leader_or_follower,
}


def once_warm(ask: Callable[[], Any], code: Callable[[Any], ErrorCode], *more: ErrorCode) -> Any:
    """Retry while a broker answers that it is loading, or not the right one yet."""
    end = time.monotonic() + 30.0
    while True:
        answer = ask()
        if code(answer) not in NOT_YET | set(more):
            return answer
        assert time.monotonic() < end
        time.sleep(0.1)


def stage(bootstrap: Address, name: str) -> Iterator[Stage]:
    with RawClient(bootstrap) as client:
        topic = {"name": name, "num_partitions": 1, "replication_factor": 1}
        client.ask("CreateTopics", 7, topics=[topic], timeout=timedelta(seconds=20))
        leader = find_leader(client, name)
    with RawClient(leader) as client:
        ready = Stage(name, client, bootstrap)
        # The leader may learn about its partition later than the broker that answered.
        once_warm(lambda: ready.list_offset(-1), lambda answer: answer[0], ErrorCode.unknown_topic_or_partition)
        yield ready


def find_leader(client: RawClient, name: str) -> Address:
    end = time.monotonic() + 20.0
    while True:
        answer = client.ask("Metadata", 12, topics=[{"name": name}])
        parts = answer.topics[0].partitions
        nodes = {broker.node_id: Address(broker.host, broker.port) for broker in answer.brokers}
        if parts and parts[0].leader_id in nodes:
            return nodes[parts[0].leader_id]
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def both(kafka_cluster: LocalCluster) -> Iterator[tuple[Stage, Stage]]:
    name = next(_names)
    with FakeKafka(brokers=3, auto_create=None) as fake:
        real_bootstrap = parse_bootstrap(kafka_cluster.bootstrap)[0]
        stages = stage(real_bootstrap, name), stage(fake.addresses[1], name)
        yield next(stages[0]), next(stages[1])
        for each in stages:
            each.close()  # type: ignore[attr-defined]


def damaged(batch: bytes) -> bytes:
    return batch[:-2] + bytes([batch[-2] ^ 1]) + batch[-1:]


def idempotent(sequence: int, *, epoch: int = 0, count: int = 2) -> bytes:
    return make_batch(count, producer_id=4_000_000, epoch=epoch, sequence=sequence)


PLAYS: dict[str, Play] = {
    "a good batch": lambda on: [on.produce(make_batch(2)), on.produce(make_batch())],
    "a wrong checksum": lambda on: on.produce(damaged(make_batch())),
    "two batches": lambda on: on.produce(make_batch() + make_batch()),
    "a base offset": lambda on: on.produce(make_batch(base_offset=5)),
    "a hole in the offsets": lambda on: on.produce(make_batch(2, delta=5)),
    "a control batch": lambda on: on.produce(make_batch(attributes=0x20)),
    "a producer without sequence": lambda on: on.produce(make_batch(producer_id=5, epoch=0)),
    "message format 1": lambda on: on.produce(make_batch()[:16] + b"\x01" + make_batch()[17:]),
    "another partition": lambda on: on.produce(make_batch(), partition=9),
    "duplicates": lambda on: [on.produce(idempotent(s)) for s in (0, 2, 4, 6, 8, 10, 2, 10, 4, 0, 12)],
    "a gap": lambda on: [on.produce(idempotent(s)) for s in (0, 2, 6, 4)],
    "part of a duplicate": lambda on: [on.produce(idempotent(s, count=c)) for s, c in ((0, 3), (1, 2), (3, 1))],
    "an old epoch": lambda on: [on.produce(idempotent(s, epoch=e)) for s, e in ((0, 1), (0, 0), (2, 1))],
    "a new epoch": lambda on: [on.produce(idempotent(s, epoch=e)) for s, e in ((0, 0), (2, 1), (0, 1), (0, 0))],
    "an unknown producer": lambda on: [on.produce(idempotent(s)) for s in (70, 72, 0)],
    "the last sequence": lambda on: [on.produce(idempotent(s, count=3)) for s in (2**31 - 2, 1, 5)],
}


@pytest.mark.parametrize("play", PLAYS.values(), ids=PLAYS)
def test_producing_is_answered_as_by_a_real_broker(both: tuple[Stage, Stage], play: Play) -> None:
    real, fake = both
    assert play(fake) == play(real)


def test_what_is_stored_is_what_a_real_broker_stores(both: tuple[Stage, Stage]) -> None:
    def stored(on: Stage) -> tuple[bytes, int, int, int]:
        for _ in range(3):
            on.produce(make_batch(2))
        part = on.fetch(0)
        return bytes(part.records), part.high_watermark, part.last_stable_offset, part.log_start_offset

    real, fake = both
    assert stored(fake) == stored(real)


def test_fetching_is_answered_as_by_a_real_broker(both: tuple[Stage, Stage]) -> None:
    def answers(on: Stage) -> list[Any]:
        on.produce(make_batch(2))
        on.produce(make_batch(2))
        requests: list[dict[str, int]] = [
            {"offset": 1},
            {"offset": 4},
            {"offset": 5},
            {"offset": -1},
            {"offset": 0, "partition": 7},
            {"offset": 0, "current_leader_epoch": 9},
            {"offset": 2, "partition_max_bytes": 1},
        ]
        parts = [on.fetch(**request) for request in requests]
        return [(part.error_code, part.high_watermark, bytes(part.records or b"")) for part in parts]

    real, fake = both
    assert answers(fake) == answers(real)


def test_offsets_are_listed_as_by_a_real_broker(both: tuple[Stage, Stage]) -> None:
    def answers(on: Stage) -> list[Any]:
        empty = [on.list_offset(mark) for mark in (-1, -2, -3, 5)]
        for timestamp in (1_700_000_001_000, 1_700_000_003_000, 1_700_000_002_000):
            on.produce(make_batch(2, timestamp=timestamp))
        times = [1_700_000_000_000 + t for t in (0, 1000, 1001, 3000, 3001)]
        return empty + [on.list_offset(mark) for mark in (-1, -2, -3, -4, *times)]

    real, fake = both
    assert answers(fake) == answers(real)


def test_transactional_ids_are_taken_over_as_on_a_real_broker(both: tuple[Stage, Stage]) -> None:
    def answers(on: Stage) -> list[Any]:
        minute = timedelta(minutes=1)
        with on.coordinator(on.name, key_type=1) as client:

            def init(producer_id: int = -1, epoch: int = -1) -> Any:
                known = {"producer_id": producer_id, "producer_epoch": epoch, "transaction_timeout": minute}
                return once_warm(
                    lambda: client.ask("InitProducerId", 4, transactional_id=on.name, **known),
                    lambda answer: answer.error_code,
                )

            first, second = init(), init()
            stale = init(first.producer_id, first.producer_epoch)
            same = second.producer_id == first.producer_id
            assert first.error_code == ErrorCode.none
            return [first.producer_epoch, second.producer_epoch, same, stale.error_code, stale.producer_id]

    real, fake = both
    assert answers(fake) == answers(real)


def test_commits_are_answered_as_by_a_real_broker(both: tuple[Stage, Stage]) -> None:
    def answers(on: Stage) -> list[Any]:
        with on.coordinator(on.name) as client:

            def commit(generation: int, member: str, name: str = on.name, partition: int = 0) -> ErrorCode:
                part = {"partition_index": partition, "committed_offset": 7, "committed_metadata": "note"}
                topics = [{"name": name, "partitions": [part]}]
                member_fields = {"group_id": on.name, "generation_id_or_member_epoch": generation, "member_id": member}
                answer = once_warm(
                    lambda: client.ask("OffsetCommit", 8, topics=topics, **member_fields),
                    lambda answer: answer.topics[0].partitions[0].error_code,
                )
                code: ErrorCode = answer.topics[0].partitions[0].error_code
                return code

            codes = [commit(3, "stranger"), commit(-1, ""), commit(3, "stranger"), commit(-1, "", "nowhere")]
            topics = [{"name": on.name, "partition_indexes": [0, 1]}, {"name": "nowhere", "partition_indexes": [0]}]
            group = client.ask("OffsetFetch", 8, groups=[{"group_id": on.name, "topics": topics}]).groups[0]
            offsets = [(p.committed_offset, p.metadata, p.error_code) for t in group.topics for p in t.partitions]
            beat = client.ask("Heartbeat", 4, group_id=on.name, generation_id=1, member_id="stranger").error_code
            join = client.ask(
                "JoinGroup",
                5,
                group_id=on.name,
                session_timeout=timedelta(seconds=10),
                rebalance_timeout=timedelta(seconds=10),
                protocol_type="consumer",
                protocols=[{"name": "range", "metadata": b""}],
            )
            return [codes, offsets, beat, join.error_code, bool(join.member_id)]

    real, fake = both
    assert answers(fake) == answers(real)


@pytest.mark.parametrize("api", ["Produce", "Fetch", "ListOffsets"])
def test_an_unknown_topic_is_answered_as_by_a_real_broker(both: tuple[Stage, Stage], api: str) -> None:
    part = {"index": 0, "partition": 0, "partition_index": 0, "records": make_batch(), "partition_max_bytes": 100}
    named = {"name": "nowhere", "topic": "nowhere", "partitions": [part], "partition_data": [part]}
    request = {"acks": -1, "topics": [named], "topic_data": [named], "session_epoch": -1, "replica_id": -1}
    wait = {"max_wait": timedelta(0), "timeout": timedelta(seconds=5)}

    def code(on: Stage) -> ErrorCode:
        version = {"Produce": 9, "Fetch": 12, "ListOffsets": 7}[api]
        answer = on.client.ask(api, version, **request, **wait)
        topic = (answer.topics if api == "ListOffsets" else answer.responses)[0]
        parts = topic.partition_responses if api == "Produce" else topic.partitions
        code: ErrorCode = parts[0].error_code
        return code

    real, fake = both
    assert code(fake) is code(real)


def test_an_unknown_topic_id_is_answered_as_by_a_real_broker(both: tuple[Stage, Stage]) -> None:
    def codes(on: Stage) -> list[ErrorCode]:
        unknown_id = uuid.uuid4()
        data = [{"topic_id": unknown_id, "partition_data": [{"index": 0, "records": make_batch()}]}]
        produced = on.client.ask("Produce", 13, acks=-1, timeout=timedelta(seconds=5), topic_data=data)
        part = {"partition": 0, "partition_max_bytes": 100}
        topics = [{"topic_id": unknown_id, "partitions": [part]}]
        fetched = on.client.ask("Fetch", 13, replica_id=-1, session_epoch=-1, max_bytes=100, topics=topics)
        deleted = on.client.ask("DeleteTopics", 6, topics=[{"topic_id": unknown_id}], timeout=timedelta(seconds=5))
        return [
            produced.responses[0].partition_responses[0].error_code,
            fetched.responses[0].partitions[0].error_code,
            deleted.responses[0].error_code,
        ]

    real, fake = both
    assert codes(fake) == codes(real)


def test_no_version_is_offered_that_a_real_broker_does_not_have(both: tuple[Stage, Stage]) -> None:
    software = {"client_software_name": "raw", "client_software_version": "1"}
    real, fake = ({row.api_key: row for row in on.client.ask("ApiVersions", 3, **software).api_keys} for on in both)
    newest = {api_name(key): (fake[key].max_version, real[key].max_version) for key in TABLE}
    assert [name for name, (ours, theirs) in newest.items() if ours > theirs] == []
    assert newest["Produce"] == (13, 13)


def test_a_client_without_a_proper_name_is_refused_as_by_a_real_broker(both: tuple[Stage, Stage]) -> None:
    def codes(on: Stage) -> list[ErrorCode]:
        names = ["", "-raw", "a b", "raw", "raw-1.0"]
        software = [{"client_software_name": name, "client_software_version": "1"} for name in names]
        return [on.client.ask("ApiVersions", 3, **fields).error_code for fields in software]

    real, fake = both
    assert codes(fake) == codes(real)
