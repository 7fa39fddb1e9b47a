"""The fake as a raw client sees it: every version it offers, and a real broker's responses to invalid requests."""

from __future__ import annotations

import struct
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from kio.index import load_response_schema

from ottla.config import Address
from ottla.errors import ErrorCode
from ottla.testing import FakeKafka
from ottla.testing.fake import messages
from ottla.testing.fake.apis.table import TABLE
from ottla.wire.batch import Batch
from ottla.wire.messages import api_name

from .raw import RawClient, make_batch, produce

FULL = [(api_name(api.key), version) for api in TABLE.values() for version in api.versions]

# Values for the fields that every version of a request has under one of these names; the rest is empty or zero.
PLAUSIBLE: dict[str, Any] = {
    "Produce": {"acks": -1},
    "Fetch": {"max_wait": timedelta(0), "max_bytes": 1000},
    "ApiVersions": {"client_software_name": "raw", "client_software_version": "1"},
    "FindCoordinator": {"key": "g", "coordinator_keys": ["g"]},
}
TOPICS: dict[str, Any] = {
    "Produce": {"topic_data": [{"partition_data": [{"index": 0, "records": make_batch()}]}]},
    "DeleteTopics": {"topics": [{}], "topic_names": ["t"]},
    "CreateTopics": {"topics": [{"name": "new", "num_partitions": 1, "replication_factor": 1}]},
    "CreatePartitions": {"topics": [{"count": 5}]},
    "DescribeConfigs": {"resources": [{"resource_type": 2, "resource_name": "t", "configuration_keys": None}]},
    "OffsetFetch": {
        "topics": [{"partition_indexes": [0]}],
        "groups": [{"group_id": "g", "topics": [{"partition_indexes": [0]}]}],
    },
    "DescribeCluster": {},
    "LeaveGroup": {"members": [{"member_id": "nobody"}]},
}
INDEX = {"partition": 0, "partition_index": 0, "partition_max_bytes": 1000, "timestamp": -1}


@pytest.fixture
def client(fake_kafka: FakeKafka) -> Iterator[RawClient]:
    fake_kafka.create_topic("t", 2)
    with RawClient(fake_kafka.addresses[1]) as connected:
        yield connected


def filled(api: str, topic_id: uuid.UUID) -> dict[str, Any]:
    tree = {"group_id": "g", "topics": [{"partitions": [INDEX]}], **PLAUSIBLE.get(api, {}), **TOPICS.get(api, {})}
    reference = {"name": "t", "topic": "t", "topic_id": topic_id}

    def refer(value: Any) -> Any:
        if isinstance(value, dict):
            inner = {key: refer(item) for key, item in value.items()}
            has_topic = {"partitions", "partition_data", "partition_indexes", "count"} & set(value)
            return {**reference, **inner} if has_topic else inner
        return [refer(item) for item in value] if isinstance(value, list) else value

    tree = dict(refer(tree))
    if api == "DeleteTopics":
        tree["topics"] = [{"name": "t"}]
    if api == "Metadata":
        tree["topics"] = [{"name": "t"}]
    return tree


@pytest.mark.parametrize(("api", "version"), FULL)
def test_every_version_that_is_offered_is_answered_without_an_error(
    fake_kafka: FakeKafka, client: RawClient, api: str, version: int
) -> None:
    metadata = client.ask("Metadata", 12, topics=[{"name": "t"}])
    answer = client.ask(api, version, **filled(api, metadata.topics[0].topic_id))
    assert set(error_codes(answer)) <= expected_errors(api, version)
    assert type(answer).__module__ == load_response_schema(messages.api_key(api), version).__module__


def expected_errors(api: str, version: int) -> set[int]:
    group_errors = {
        "JoinGroup": {ErrorCode.inconsistent_group_protocol, ErrorCode.member_id_required},
        "SyncGroup": {ErrorCode.unknown_member_id},
        "Heartbeat": {ErrorCode.unknown_member_id},
        "LeaveGroup": {ErrorCode.unknown_member_id},
    }
    return {0} | group_errors.get(api, set())


def error_codes(entity: Any) -> Iterator[int]:
    for name in getattr(entity, "__dataclass_fields__", ()):
        value = getattr(entity, name)
        if name == "error_code":
            yield int(value)
        for item in value if isinstance(value, tuple) else (value,):
            yield from error_codes(item)


def test_the_offer_is_the_table(client: RawClient) -> None:
    offered = {row.api_key: (row.min_version, row.max_version) for row in client.ask("ApiVersions", 2).api_keys}
    assert offered == {api.key: (api.versions.start, api.versions.stop - 1) for api in TABLE.values()}


def test_no_handler_names_a_field_that_no_version_has(
    fake_kafka: FakeKafka, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: dict[int, set[str]] = {}
    known: dict[int, set[str]] = {}
    original = messages.build

    def watching(entity_type: Any, tree: Any) -> Any:
        key = getattr(entity_type, "__api_key__", None)
        if key is not None and "response" in entity_type.__module__:
            named.setdefault(int(key), set()).update(tree)
            known.setdefault(int(key), set()).update(entity_type.__dataclass_fields__)
        return original(entity_type, tree)

    monkeypatch.setattr(messages, "build", watching)
    for api, version in FULL:
        fake_kafka.fail(api, 3)
        for _ in range(2):
            client.ask(api, version, **filled(api, uuid.uuid4()))
        metadata = client.ask("Metadata", 12, topics=[{"name": "t"}])
        client.ask(api, version, **filled(api, metadata.topics[0].topic_id))
        if "t" not in fake_kafka.topics:
            fake_kafka.create_topic("t", 2)
    # `broker` has an address under the field names of several messages.
    assert {key: names - known[key] - {"node_id", "broker_id", "rack"} for key, names in named.items()} == {
        key: set() for key in named
    }


def test_too_new_a_version_of_api_versions_is_answered_in_version_0_with_the_list(client: RawClient) -> None:
    client.send_bytes(struct.pack(">hhih", 18, 99, 7, -1) + b"\x00\x05blah\x00")
    frame = client.receive_bytes()
    assert struct.unpack_from(">ih", frame) == (7, ErrorCode.unsupported_version)
    assert struct.unpack_from(">i", frame, 6) == (len(TABLE),)


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">hhih", 0, 99, 1, -1),
        struct.pack(">hhih", 17, 0, 1, -1),
        struct.pack(">hhih", 3, 12, 1, -1) + b"\xff" * 9,
        b"\x00",
    ],
    ids=["version not offered", "api not offered", "malformed bytes", "no header"],
)
def test_a_request_that_cannot_be_read_ends_the_connection(client: RawClient, frame: bytes) -> None:
    client.send_bytes(frame)
    with pytest.raises(ConnectionError):
        client.receive_bytes()


def test_the_same_idempotent_batch_twice_is_stored_once(fake_kafka: FakeKafka, client: RawClient) -> None:
    producer = client.ask("InitProducerId", 4, producer_id=-1, producer_epoch=-1, transactional_id=None)
    batch = make_batch(3, producer_id=producer.producer_id, epoch=producer.producer_epoch, sequence=0)
    first = produce(client, batch)
    again = produce(client, batch)
    assert (first.error_code, first.base_offset) == (again.error_code, again.base_offset) == (0, 0)
    assert [Batch.parse(data).header.next_offset for data in fake_kafka.log("t", 0)] == [3]


def test_the_last_five_batches_are_known_again_and_older_ones_are_out_of_order(client: RawClient) -> None:
    batches = [make_batch(2, producer_id=7, epoch=0, sequence=2 * i) for i in range(6)]
    assert [produce(client, batch).base_offset for batch in batches] == [0, 2, 4, 6, 8, 10]
    assert [produce(client, batch).base_offset for batch in batches[1:]] == [2, 4, 6, 8, 10]
    assert produce(client, batches[0]).error_code == ErrorCode.out_of_order_sequence_number


def test_a_gap_and_an_old_epoch_are_refused(client: RawClient) -> None:
    assert produce(client, make_batch(producer_id=7, epoch=1, sequence=0)).error_code == ErrorCode.none
    gap = produce(client, make_batch(producer_id=7, epoch=1, sequence=5))
    old = produce(client, make_batch(producer_id=7, epoch=0, sequence=1))
    assert gap.error_code == ErrorCode.out_of_order_sequence_number
    assert old.error_code == ErrorCode.invalid_producer_epoch
    assert (gap.base_offset, old.base_offset) == (-1, -1)


def damaged(batch: bytes) -> bytes:
    return batch[:-2] + bytes([batch[-2] ^ 1]) + batch[-1:]


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (damaged(make_batch()), ErrorCode.corrupt_message),
        (make_batch()[:-3], ErrorCode.corrupt_message),
        (make_batch() + make_batch(), ErrorCode.invalid_record),
        (make_batch(base_offset=5), ErrorCode.invalid_record),
        (make_batch(2, delta=5), ErrorCode.invalid_record),
        (make_batch(attributes=0x20), ErrorCode.invalid_record),
        (make_batch(producer_id=5, epoch=0), ErrorCode.invalid_record),
        (make_batch()[:16] + b"\x01" + make_batch()[17:], ErrorCode.invalid_record),
        (make_batch(60), ErrorCode.message_too_large),
    ],
    ids=["crc", "cut", "two batches", "base offset", "hole", "control", "no sequence", "format 1", "too large"],
)
def test_a_wrong_batch_is_refused_as_by_a_real_broker(records: bytes, error: ErrorCode) -> None:
    with FakeKafka(topics={"t": 1}, max_message_bytes=500) as kafka, RawClient(kafka.addresses[1]) as client:
        assert produce(client, records).error_code == error
        assert kafka.log("t", 0) == []


def test_unknown_topics_partitions_and_acks_are_refused(client: RawClient) -> None:
    assert produce(client, make_batch(), topic="no").error_code == ErrorCode.unknown_topic_or_partition
    assert produce(client, make_batch(), partition=9).error_code == ErrorCode.unknown_topic_or_partition
    data = [{"name": "t", "partition_data": [{"index": 0, "records": make_batch()}]}]
    answer = client.ask("Produce", 9, acks=2, topic_data=data)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.invalid_required_acks
    unknown_id = [{"topic_id": uuid.uuid4(), "partition_data": [{"index": 0, "records": make_batch()}]}]
    answer = client.ask("Produce", 13, acks=1, topic_data=unknown_id)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.unknown_topic_id


def test_acks_0_gets_no_answer_and_an_error_ends_the_connection(fake_kafka: FakeKafka, client: RawClient) -> None:
    data = [{"name": "t", "partition_data": [{"index": 0, "records": make_batch()}]}]
    client.send("Produce", 9, acks=0, topic_data=data)
    assert client.ask("ListOffsets", 7, topics=[{"name": "t", "partitions": [INDEX]}]).topics
    assert len(fake_kafka.log("t", 0)) == 1
    client.send("Produce", 9, acks=0, topic_data=[{**data[0], "name": "missing"}])
    with pytest.raises(ConnectionError):
        client.receive_bytes()


def fetch(client: RawClient, offset: int, *, version: int = 12, **tree: Any) -> Any:
    part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": tree.pop("partition_max_bytes", 10_000)}
    part["current_leader_epoch"] = tree.pop("epoch", -1)
    topics = [{"topic": "t", "partitions": [part]}]
    request = {"max_wait": timedelta(0), "min_bytes": 1, "max_bytes": 10_000, "topics": topics, **tree}
    return client.ask("Fetch", version, **request)


def offsets(answer: Any) -> list[int]:
    data, offsets = bytes(answer.responses[0].partitions[0].records), []
    while data:
        batch = Batch.parse(data)
        batch.verify()
        offsets.append(batch.header.base_offset)
        data = data[len(batch.data) :]
    return offsets


def test_fetch_gives_whole_batches_within_the_limits_but_always_one(client: RawClient) -> None:
    size = len(make_batch(2))
    for _ in range(4):
        produce(client, make_batch(2))
    assert offsets(fetch(client, 0)) == [0, 2, 4, 6]
    assert offsets(fetch(client, 3)) == [2, 4, 6]
    assert offsets(fetch(client, 0, max_bytes=2 * size)) == [0, 2]
    assert offsets(fetch(client, 0, partition_max_bytes=3 * size - 1)) == [0, 2]
    assert offsets(fetch(client, 4, max_bytes=1, partition_max_bytes=1)) == [4]
    assert offsets(fetch(client, 8)) == []
    part = fetch(client, 8).responses[0].partitions[0]
    assert (part.high_watermark, part.log_start_offset, part.error_code) == (8, 0, ErrorCode.none)


def test_fetch_says_when_an_offset_is_out_of_range(client: RawClient) -> None:
    produce(client, make_batch(2))
    assert fetch(client, 3).responses[0].partitions[0].error_code == ErrorCode.offset_out_of_range
    client.ask("DeleteRecords", 2, topics=[{"name": "t", "partitions": [{"partition_index": 0, "offset": 2}]}])
    assert fetch(client, 1).responses[0].partitions[0].error_code == ErrorCode.offset_out_of_range
    assert fetch(client, 2).responses[0].partitions[0].log_start_offset == 2


def test_fetch_checks_leader_epoch_and_sessions(client: RawClient) -> None:
    assert fetch(client, 0, epoch=1).responses[0].partitions[0].error_code == ErrorCode.unknown_leader_epoch
    answer = fetch(client, 0, session_id=5, session_epoch=3)
    assert answer.error_code == ErrorCode.fetch_session_id_not_found


def test_a_fetch_session_says_only_what_is_new(client: RawClient) -> None:
    produce(client, make_batch(2))
    number = fetch(client, 0, session_epoch=0).session_id
    assert number > 0
    known = {"session_id": number, "topics": []}
    assert offsets(fetch(client, 0, session_epoch=1, **known)) == [0]
    assert fetch(client, 2, session_id=number, session_epoch=2).responses == ()
    assert fetch(client, 0, session_epoch=2, **known).error_code == ErrorCode.invalid_fetch_session_epoch
    produce(client, make_batch(2))
    assert offsets(fetch(client, 0, session_epoch=3, **known)) == [2]
    dropped = [{"topic": "t", "partitions": [0]}]
    assert fetch(client, 0, session_epoch=4, forgotten_topics_data=dropped, **known).responses == ()
    again = fetch(client, 0, session_id=number, session_epoch=0)
    assert again.session_id not in (0, number)
    assert fetch(client, 0, session_epoch=5, **known).error_code == ErrorCode.fetch_session_id_not_found
    assert fetch(client, 0, session_epoch=-1).session_id == 0


def test_fetch_waits_for_records_and_no_longer_than_asked(fake_kafka: FakeKafka, client: RawClient) -> None:
    before = time.monotonic()
    assert offsets(fetch(client, 0, max_wait=timedelta(seconds=0.2))) == []
    assert 0.2 <= time.monotonic() - before < 5
    with RawClient(fake_kafka.addresses[1]) as other:
        part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
        topics = [{"topic": "t", "partitions": [part]}]
        other.send("Fetch", 12, max_wait=timedelta(seconds=60), min_bytes=1, max_bytes=1000, topics=topics)
        fake_kafka.wait_for_request("Fetch", count=2)
        produce(client, make_batch())
        assert offsets(other.receive("Fetch", 12)) == [0]


def test_a_new_leader_stamps_its_epoch_and_an_old_epoch_is_fenced() -> None:
    with FakeKafka(brokers=2, topics={"t": 1}) as kafka:
        old = kafka.leader("t", 0)
        new = 3 - old
        with RawClient(kafka.addresses[old]) as client:
            produce(client, make_batch(2))
        kafka.move_leader("t", 0, to=new)
        with RawClient(kafka.addresses[old]) as client:
            refused = produce(client, make_batch(), version=10)
            assert refused.error_code == ErrorCode.not_leader_or_follower
            assert refused.current_leader.leader_id == new
        with RawClient(kafka.addresses[new]) as client:
            assert produce(client, make_batch()).base_offset == 2
            assert fetch(client, 0, epoch=0).responses[0].partitions[0].error_code == ErrorCode.fenced_leader_epoch
            part = {"partition": 0, "current_leader_epoch": 1, "leader_epoch": 0}
            response = client.ask("OffsetForLeaderEpoch", 4, topics=[{"topic": "t", "partitions": [part]}])
            assert (response.topics[0].partitions[0].leader_epoch, response.topics[0].partitions[0].end_offset) == (
                0,
                2,
            )
        assert [Batch.parse(data).header.leader_epoch for data in kafka.log("t", 0)] == [0, 1]


def list_offset(client: RawClient, timestamp: int) -> tuple[int, int]:
    part = {"partition_index": 0, "timestamp": timestamp}
    answer = client.ask("ListOffsets", 9, topics=[{"name": "t", "partitions": [part]}])
    partition = answer.topics[0].partitions[0]
    return partition.offset, partition.timestamp


def test_list_offsets_knows_start_end_newest_and_time(client: RawClient) -> None:
    assert list_offset(client, -3) == (-1, -1)
    for timestamp in (1000, 3000, 2000):
        produce(client, make_batch(2, timestamp=timestamp))
    assert list_offset(client, -1) == (6, -1)
    assert list_offset(client, -2) == (0, -1)
    assert list_offset(client, -3) == (2, 3000)
    assert list_offset(client, 500) == (0, 1000)
    assert list_offset(client, 1001) == (2, 3000)
    assert list_offset(client, 3001) == (-1, -1)


def test_a_transactional_id_is_taken_over_with_the_next_epoch(client: RawClient) -> None:
    new = {"producer_id": -1, "producer_epoch": -1}
    first = client.ask("InitProducerId", 4, transactional_id="tx", **new)
    second = client.ask("InitProducerId", 4, transactional_id="tx", **new)
    assert (second.producer_id, second.producer_epoch) == (first.producer_id, first.producer_epoch + 1)
    stale = {"producer_id": first.producer_id, "producer_epoch": first.producer_epoch}
    refused = client.ask("InitProducerId", 4, transactional_id="tx", **stale)
    assert (refused.error_code, refused.producer_id) == (ErrorCode.producer_fenced, -1)
    old = produce(client, make_batch(producer_id=first.producer_id, epoch=0, sequence=0))
    assert old.error_code == ErrorCode.invalid_producer_epoch


def test_offsets_are_committed_and_fetched_by_topic_id(client: RawClient) -> None:
    topic_id = client.ask("Metadata", 12, topics=[{"name": "t"}]).topics[0].topic_id
    part = {"partition_index": 1, "committed_offset": 7, "committed_metadata": "note"}
    client.ask("OffsetCommit", 10, group_id="g", member_id="", topics=[{"topic_id": topic_id, "partitions": [part]}])
    groups = [{"group_id": "g", "topics": [{"topic_id": topic_id, "partition_indexes": [0, 1]}]}]
    parts = client.ask("OffsetFetch", 10, groups=groups).groups[0].topics[0].partitions
    assert [(p.committed_offset, p.metadata) for p in parts] == [(-1, ""), (7, "note")]
    everything = client.ask("OffsetFetch", 9, groups=[{"group_id": "g", "topics": None}]).groups[0]
    assert [(t.name, p.partition_index) for t in everything.topics for p in t.partitions] == [("t", 1)]


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        ({"name": "t", "num_partitions": 1, "replication_factor": 1}, ErrorCode.topic_already_exists),
        ({"name": "a/b", "num_partitions": 1, "replication_factor": 1}, ErrorCode.invalid_topic_exception),
        ({"name": "n", "num_partitions": 0, "replication_factor": 1}, ErrorCode.invalid_partitions),
        ({"name": "n", "num_partitions": 1, "replication_factor": 2}, ErrorCode.invalid_replication_factor),
        (
            {"name": "n", "num_partitions": -1, "assignments": [{"partition_index": 0, "broker_ids": [9]}]},
            ErrorCode.invalid_replica_assignment,
        ),
    ],
)
def test_a_topic_that_cannot_be_is_refused(client: RawClient, topic: dict[str, Any], error: ErrorCode) -> None:
    topic = {"replication_factor": -1, **topic}
    assert client.ask("CreateTopics", 7, topics=[topic]).topics[0].error_code == error


def test_validate_only_creates_nothing(fake_kafka: FakeKafka, client: RawClient) -> None:
    topic = {"name": "n", "num_partitions": 3, "replication_factor": 1}
    assert client.ask("CreateTopics", 7, topics=[topic], validate_only=True).topics[0].error_code == ErrorCode.none
    assert "n" not in fake_kafka.topics


def test_a_topic_made_again_has_another_id(client: RawClient) -> None:
    first = client.ask("Metadata", 12, topics=[{"name": "again"}], allow_auto_topic_creation=True).topics[0].topic_id
    client.ask("DeleteTopics", 6, topics=[{"topic_id": first}])
    second = client.ask("Metadata", 12, topics=[{"name": "again"}], allow_auto_topic_creation=True).topics[0].topic_id
    assert first != second


def test_a_group_is_kept_by_one_broker_and_refused_by_the_others() -> None:
    with FakeKafka(brokers=3, topics={"t": 1}) as kafka:
        with RawClient(kafka.addresses[1]) as client:
            keeper = client.ask("FindCoordinator", 4, coordinator_keys=["g"]).coordinators[0]
        assert Address(keeper.host, keeper.port) == kafka.addresses[keeper.node_id]
        for broker, address in kafka.addresses.items():
            with RawClient(address) as client:
                code = client.ask("OffsetFetch", 8, groups=[{"group_id": "g"}]).groups[0].error_code
                assert code == (ErrorCode.none if broker == keeper.node_id else ErrorCode.not_coordinator)
