"""Produce and Fetch, written and read by hand, against kio's classes for the same messages."""

from __future__ import annotations

import io
import struct
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from ottla.errors import ErrorCode, InputError, WireError
from ottla.model import Isolation, TopicPartition
from ottla.wire import fetch, messages, produce
from ottla.wire.fetch import (
    NO_SESSION,
    Aborted,
    Diverging,
    Fetched,
    FetchPartition,
    Forgotten,
    fetch_request,
    fetch_response,
)
from ottla.wire.primitives import ByteReader, compact_length, compact_string, unsigned_varint
from ottla.wire.produce import Leader, Produced, produce_request, produce_response

from .rows import Row, encoded, quick, thorough

int16, int32, int64 = (st.integers(-(2**bits), 2**bits - 1) for bits in (15, 31, 63))
topics = st.text("abc-_.XYZ019", min_size=1, max_size=12)
partitions = st.integers(0, 2**31 - 1)
codes = st.sampled_from([code for code in ErrorCode if code != -1])
leaders = st.none() | st.builds(Leader, st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
messages_texts = st.none() | st.text(max_size=30)


def written_by_kio(entity: Any) -> memoryview:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return memoryview(buffer.getvalue())


def read_by_kio(entity_type: type[Any], data: bytes) -> Any:
    entity, size = entity_reader(entity_type)(data, 0)
    assert size == len(data)
    return entity


def of(entity_type: type[Any], **values: Any) -> Any:
    """An entity from plain values, by Ottla's own `compose`."""
    return messages.compose(entity_type, values)


# Produce


PRODUCE_VERSIONS = (*range(produce.LOWEST_VERSION, produce.HIGHEST_VERSION + 1), produce.BY_ID)


def id_of(topic: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_DNS, topic)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@given(
    batches=st.dictionaries(st.builds(TopicPartition, topics, partitions), st.lists(st.binary(max_size=200))),
    acks=st.sampled_from([0, 1, -1]),
    timeout=st.integers(0, 2**31 - 1),
    transaction=st.none() | st.text(min_size=1, max_size=20),
)
@quick
def test_kio_reads_our_produce_request(
    version: int, batches: dict[TopicPartition, list[bytes]], acks: int, timeout: int, transaction: str | None
) -> None:
    parts: dict[TopicPartition, list[bytes | memoryview]] = {key: [*value] for key, value in batches.items()}
    ids = {key.topic: id_of(key.topic) for key in batches} if version >= produce.BY_ID else None
    body = produce_request(parts, acks=acks, timeout_ms=timeout, transactional_id=transaction, topic_ids=ids)
    request = read_by_kio(load_request_schema(0, version), b"".join(body))
    assert (request.acks, request.timeout, request.transactional_id) == (
        acks,
        timedelta(milliseconds=timeout),
        transaction,
    )
    names = {id_of(key.topic): key.topic for key in batches}
    named = [topic.name if ids is None else names[topic.topic_id] for topic in request.topic_data]
    sent = {
        TopicPartition(name, data.index): data.records
        for name, topic in zip(named, request.topic_data, strict=True)
        for data in topic.partition_data
    }
    assert sent == {key: b"".join(value) for key, value in batches.items()}
    assert len(set(named)) == len(named)


def test_batches_are_not_copied_into_the_request() -> None:
    (batch,) = encoded([Row(b"k", b"v" * 1000)])
    body = produce_request({TopicPartition("t", 0): batch.parts()}, acks=-1, timeout_ms=1000)
    assert any(part is batch.records for part in body)


produced = st.builds(
    Produced,
    topic=topics,
    partition=partitions,
    error_code=codes.map(int),
    base_offset=int64,
    append_time=st.integers(-1, 253_402_300_799_999),
    log_start_offset=int64,
    message=messages_texts,
    record_errors=st.lists(st.tuples(int32, messages_texts), max_size=3).map(tuple),
    leader=leaders,
)
answers = st.lists(produced, max_size=6, unique_by=lambda answer: (answer.topic, answer.partition))


def _time(milliseconds: int) -> datetime | None:
    return None if milliseconds == -1 else datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds)


def kio_produce_response(version: int, generated: list[Produced]) -> Any:
    def partition(answer: Produced) -> dict[str, Any]:
        values: dict[str, Any] = {
            "index": answer.partition,
            "error_code": ErrorCode(answer.error_code),
            "base_offset": answer.base_offset,
            "log_append_time": _time(answer.append_time),
            "log_start_offset": answer.log_start_offset,
            "record_errors": [
                {"batch_index": index, "batch_index_error_message": text} for index, text in answer.record_errors
            ],
            "error_message": answer.message,
        }
        if answer.leader is not None:
            values["current_leader"] = {"leader_id": answer.leader.id, "leader_epoch": answer.leader.epoch}
        return values

    named = [
        {
            **({"topic_id": id_of(name)} if version >= produce.BY_ID else {"name": name}),
            "partition_responses": [partition(answer) for answer in generated if answer.topic == name],
        }
        for name in dict.fromkeys(answer.topic for answer in generated)
    ]
    endpoints = [{"node_id": 7, "host": "elsewhere", "port": 9092, "rack": None}]
    return of(
        load_response_schema(0, version),
        responses=named,
        throttle_time=timedelta(milliseconds=5),
        node_endpoints=endpoints,
    )


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@given(generated=answers)
@quick
def test_we_read_kios_produce_response(version: int, generated: list[Produced]) -> None:
    named = [
        answer for topic in dict.fromkeys(a.topic for a in generated) for answer in generated if answer.topic == topic
    ]
    expected = named if version >= 10 else [answer._replace(leader=None) for answer in named]
    ids = {answer.topic: id_of(answer.topic) for answer in generated} if version >= produce.BY_ID else None
    assert produce_response(written_by_kio(kio_produce_response(version, generated)), topic_ids=ids) == expected


# Fetch

wants = st.builds(
    FetchPartition,
    topic=topics,
    partition=partitions,
    offset=st.integers(0, 2**63 - 1),
    max_bytes=st.integers(0, 2**31 - 1),
    leader_epoch=st.integers(-1, 2**31 - 1),
    topic_id=st.none(),
    last_epoch=st.integers(-1, 2**31 - 1),
)
wanted_lists = st.lists(wants, max_size=6, unique_by=lambda want: (want.topic, want.partition))


def identified(generated: list[FetchPartition]) -> list[FetchPartition]:
    return [want._replace(topic_id=uuid.uuid5(uuid.NAMESPACE_DNS, want.topic)) for want in generated]


@pytest.mark.parametrize("version", range(fetch.LOWEST_VERSION, fetch.HIGHEST_VERSION + 1))
@given(
    generated=wanted_lists,
    wait=st.integers(0, 2**31 - 1),
    least=st.integers(0, 2**31 - 1),
    most=st.integers(0, 2**31 - 1),
    isolation=st.sampled_from(list(Isolation)),
    rack=st.text(max_size=10),
    session=st.just(NO_SESSION) | st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1)),
    dropped=st.integers(0, 6),
)
@quick
def test_kio_reads_our_fetch_request(
    version: int,
    generated: list[FetchPartition],
    wait: int,
    least: int,
    most: int,
    isolation: Isolation,
    rack: str,
    session: tuple[int, int],
    dropped: int,
) -> None:
    generated = identified(generated)
    forgotten = [Forgotten(entry.topic, entry.partition, entry.topic_id) for entry in generated[:dropped]]
    body = fetch_request(
        generated,
        version=version,
        max_wait_ms=wait,
        min_bytes=least,
        max_bytes=most,
        isolation=isolation,
        rack=rack,
        session=session,
        forgotten=forgotten,
    )
    request = read_by_kio(load_request_schema(1, version), b"".join(body))
    assert (request.max_wait, request.min_bytes, request.max_bytes, request.isolation_level, request.rack_id) == (
        timedelta(milliseconds=wait),
        least,
        most,
        isolation,
        rack,
    )
    assert (request.replica_id, request.session_id, request.session_epoch) == (-1, *session)
    assert {
        (topic.topic_id if version >= 13 else topic.topic, partition)
        for topic in request.forgotten_topics_data
        for partition in topic.partitions
    } == {(entry.topic_id if version >= 13 else entry.topic, entry.partition) for entry in forgotten}
    asked = {
        (topic.topic_id if version >= 13 else topic.topic, p.partition): (
            p.fetch_offset,
            p.partition_max_bytes,
            p.current_leader_epoch,
            p.last_fetched_epoch,
            p.log_start_offset,
        )
        for topic in request.topics
        for p in topic.partitions
    }
    assert asked == {
        (w.topic_id if version >= 13 else w.topic, w.partition): (
            w.offset,
            w.max_bytes,
            w.leader_epoch,
            w.last_epoch,
            -1,
        )
        for w in generated
    }
    assert len(request.topics) == len({want.topic for want in generated})


def test_a_fetch_by_id_needs_the_id() -> None:
    with pytest.raises(InputError, match="Fetch version 13 needs the id of topic clicks"):
        fetch_request([FetchPartition("clicks", 0, 0, 1)], version=13, max_wait_ms=0, min_bytes=0, max_bytes=1)


fetched = st.builds(
    Fetched,
    topic=topics,
    partition=partitions,
    error_code=codes.map(int),
    high_watermark=int64,
    last_stable_offset=int64,
    log_start_offset=int64,
    aborted=st.lists(st.builds(Aborted, int64, int64), max_size=3).map(tuple),
    preferred_replica=st.integers(-1, 2**31 - 1),
    records=st.none() | st.binary(max_size=200),
    leader=leaders,
    diverging=st.none() | st.builds(Diverging, st.integers(0, 2**31 - 1), int64),
    records_end=st.just(0),
)
fetched_lists = st.lists(fetched, max_size=6, unique_by=lambda answer: (answer.topic, answer.partition))


def kio_fetch_response(version: int, generated: list[Fetched]) -> Any:
    def partition(answer: Fetched) -> dict[str, Any]:
        values: dict[str, Any] = {
            "partition_index": answer.partition,
            "error_code": ErrorCode(answer.error_code),
            "high_watermark": answer.high_watermark,
            "last_stable_offset": answer.last_stable_offset,
            "log_start_offset": answer.log_start_offset,
            "aborted_transactions": None
            if answer.aborted == ()
            else [
                {"producer_id": transaction.producer_id, "first_offset": transaction.first_offset}
                for transaction in answer.aborted
            ],
            "preferred_read_replica": answer.preferred_replica,
            "records": answer.records,
        }
        if answer.diverging is not None:
            values["diverging_epoch"] = answer.diverging._asdict()
        if answer.leader is not None:
            values["current_leader"] = {"leader_id": answer.leader.id, "leader_epoch": answer.leader.epoch}
        return values

    named = [
        {
            "topic": name,
            "topic_id": uuid.uuid5(uuid.NAMESPACE_DNS, str(name)),
            "partitions": [partition(answer) for answer in generated if answer.topic == name],
        }
        for name in dict.fromkeys(answer.topic for answer in generated)
    ]
    entity_type = load_response_schema(1, version)
    return of(entity_type, throttle_time=timedelta(0), error_code=ErrorCode.none, session_id=0, responses=named)


@pytest.mark.parametrize("version", range(fetch.LOWEST_VERSION, fetch.HIGHEST_VERSION + 1))
@given(generated=fetched_lists)
@thorough
def test_we_read_kios_fetch_response(version: int, generated: list[Fetched]) -> None:
    body = written_by_kio(kio_fetch_response(version, generated))
    answer = fetch_response(body, version=version)
    expected = [
        partition._replace(
            records=memoryview(partition.records or b""),
            topic=uuid.uuid5(uuid.NAMESPACE_DNS, str(partition.topic)) if version >= 13 else partition.topic,
        )
        for topic in dict.fromkeys(partition.topic for partition in generated)
        for partition in generated
        if partition.topic == topic
    ]
    assert answer.error_code == 0
    assert [partition._replace(records_end=0) for partition in answer.partitions] == expected
    assert [body[slice(*partition.span)] for partition in answer.partitions] == [
        partition.records for partition in expected
    ]


@pytest.mark.parametrize("version", range(fetch.LOWEST_VERSION, fetch.HIGHEST_VERSION + 1))
@pytest.mark.parametrize("count", [1, 3, 100])
@pytest.mark.parametrize("records", [None, b""])
def test_any_number_of_partitions_may_have_nothing(version: int, count: int, records: bytes | None) -> None:
    """The smallest possible response: no records, no aborted transactions, no tags."""
    quiet = [
        {
            "partition_index": i,
            "error_code": ErrorCode.none,
            "high_watermark": 5,
            "last_stable_offset": 5,
            "log_start_offset": 0,
            "aborted_transactions": None,
            "preferred_read_replica": -1,
            "records": records,
        }
        for i in range(count)
    ]
    named = [{"topic": "clicks", "topic_id": uuid.uuid5(uuid.NAMESPACE_DNS, "clicks"), "partitions": quiet}]
    entity_type = load_response_schema(1, version)
    body = written_by_kio(
        of(entity_type, throttle_time=timedelta(0), error_code=ErrorCode.none, session_id=0, responses=named)
    )
    answer = fetch_response(body, version=version)
    assert [(partition.partition, bytes(partition.records)) for partition in answer.partitions] == [
        (i, b"") for i in range(count)
    ]


@pytest.mark.parametrize("count", [1, 3, 100])
def test_any_number_of_partitions_may_have_little_to_say(count: int) -> None:
    brief = [Produced("t", i, 0, 0, -1, 0, None, (), None) for i in range(count)]
    assert produce_response(written_by_kio(kio_produce_response(9, brief))) == brief


def test_an_error_of_the_whole_fetch_is_reported() -> None:
    entity_type = load_response_schema(1, 12)
    code = ErrorCode.fetch_session_id_not_found
    body = written_by_kio(of(entity_type, throttle_time=timedelta(0), error_code=code, session_id=7, responses=[]))
    answer = fetch_response(body, version=12)
    assert answer == (int(code), [], 7)


def test_fetched_records_are_a_view_on_the_response() -> None:
    data = bytes(encoded([Row(b"k", b"v")])[0])
    answer = Fetched("t", 0, 0, 1, 1, 0, (), -1, memoryview(data), None)
    body = written_by_kio(kio_fetch_response(12, [answer._replace(records=data)]))  # type: ignore[arg-type]
    (partition,) = fetch_response(body, version=12).partitions
    assert partition.records == data
    assert partition.records.obj is body.obj


# What a broken response does


WHOLE_PRODUCE = Produced("clicks", 3, 6, 1, 2, 3, "why", ((0, "because"),), Leader(1, 2))
WHOLE_FETCH: Any = Fetched("clicks", 3, 0, 9, 9, 0, (Aborted(1, 2),), 4, b"records", Leader(1, 2))  # type: ignore[arg-type]


@pytest.mark.parametrize("version", [9, 10, 11])
def test_a_produce_response_cut_anywhere_is_refused(version: int) -> None:
    body = written_by_kio(kio_produce_response(version, [WHOLE_PRODUCE]))
    for size in range(len(body)):
        with pytest.raises(WireError, match=r"response|array|integer"):
            produce_response(body[:size])
    with pytest.raises(WireError, match="response has 1 bytes after its last field"):
        produce_response(memoryview(bytes(body) + b"\0"))


@pytest.mark.parametrize("version", [12, 13])
def test_a_fetch_response_cut_anywhere_is_refused(version: int) -> None:
    body = written_by_kio(kio_fetch_response(version, [WHOLE_FETCH]))
    for size in range(len(body)):
        with pytest.raises(WireError, match=r"response|array|integer"):
            fetch_response(body[:size], version=version)
    with pytest.raises(WireError, match="response has 1 bytes after its last field"):
        fetch_response(memoryview(bytes(body) + b"\0"), version=version)


@given(noise=st.binary(max_size=200), version=st.sampled_from([12, 13]))
@thorough
def test_noise_is_refused_or_read_but_nothing_else(noise: bytes, version: int) -> None:
    for read in (produce_response, lambda body: fetch_response(body, version=version).partitions):
        try:
            entries = len(read(memoryview(noise)))
        except WireError:
            continue
        assert entries <= len(noise)


# Primitives


@given(value=st.integers(0, 2**32 - 1))
@thorough
def test_unsigned_integers_come_back(value: int) -> None:
    cursor = ByteReader(memoryview(unsigned_varint(value)))
    assert cursor.unsigned_varint() == value
    cursor.finish()


@given(small=int16, middle=int32, large=int64, text=st.none() | st.text(), number=st.uuids(), data=st.binary())
@quick
def test_every_primitive_comes_back(
    small: int, middle: int, large: int, text: str | None, number: uuid.UUID, data: bytes
) -> None:
    encoding = struct.pack(">hiq", small, middle, large) + compact_string(text) + number.bytes
    encoding += compact_length(len(data)) + data + compact_length(-1)
    cursor = ByteReader(memoryview(encoding))
    assert (cursor.int16(), cursor.int32(), cursor.int64()) == (small, middle, large)
    assert (cursor.compact_string(), cursor.uuid(), bytes(cursor.compact_bytes() or b"")) == (text, number, data)
    assert cursor.compact_bytes() is None
    cursor.finish()


def test_unknown_tags_are_passed_over() -> None:
    tags = unsigned_varint(2) + b"\x05\x03abc" + b"\x07\x00"
    cursor = ByteReader(memoryview(tags + b"!"))
    cursor.skip_tags()
    assert cursor.int8() == ord("!")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "response ends at byte 0, but 1 bytes were due at byte 0"),
        (b"\xff\xff\xff\xff\xff\x01", "variable-length integer at byte 5 is too long"),
    ],
)
def test_a_broken_integer_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(WireError, match=words):
        ByteReader(memoryview(data)).unsigned_varint()


def test_an_array_that_cannot_fit_is_refused_before_it_is_read() -> None:
    with pytest.raises(WireError, match="an array of 268435454 entries cannot fit in the remaining 2 bytes"):
        ByteReader(memoryview(b"\xff\xff\xff\x7f\0\0")).compact_array(ByteReader.int8, smallest=1)


def test_text_that_is_none_is_replaced() -> None:
    assert ByteReader(memoryview(b"\x03a\xff")).compact_string() == "a\ufffd"
