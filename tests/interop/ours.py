"""Writes and reads batch by batch with the wire and net rooms: what later rooms do, in the fewest lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from ottla.errors import BrokerError
from ottla.model import TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.deadline import Deadline
from ottla.produce.identity import ProducerIdentity, new_producer_id
from ottla.wire import fetch, produce
from ottla.wire.batch import Batch, Codec, split
from ottla.wire.columns import from_arrow
from ottla.wire.decode import SCHEMA, Decoder
from ottla.wire.encode import BatchLimits, NewBatch, encode
from ottla.wire.restamp import restamp

from .samples import Sent

SECONDS = 30.0
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def encoded(records: Iterable[Sent], codec: str = "none", *, in_one_batch: int = 1000) -> list[NewBatch]:
    """Return the records in our batches."""
    listed = list(records)
    columns = from_arrow(
        pa.array([record.value for record in listed], pa.binary()),
        key=pa.array([record.key for record in listed], pa.binary()),
        headers=pa.array([[{"key": k, "value": v} for k, v in record.headers] for record in listed], HEADERS),
        timestamp=pa.array([record.time for record in listed], pa.int64()),
    )
    limits = BatchLimits(max_records=in_one_batch)
    return list(encode(columns, now_ms=0, codec=Codec[codec.upper()], limits=limits))


def send(cluster: Cluster, tp: TopicPartition, batch: NewBatch) -> produce.Produced:
    """Send one batch to the leader of its partition and return the broker's response."""
    deadline = Deadline.after(SECONDS)
    connection = cluster.connection(cluster.leader(*tp, deadline=deadline), channel="produce", deadline=deadline)
    version = connection.version(produce.API_KEY, highest=produce.HIGHEST_VERSION)
    body = produce.produce_request({tp: batch.parts()}, acks=-1, timeout_ms=10_000)
    pending = connection.submit(produce.API_KEY, version, body, deadline=deadline)
    (answer,) = produce.produce_response(pending.result())
    return answer


def write(cluster: Cluster, tp: TopicPartition, batches: Iterable[NewBatch]) -> list[int]:
    """Send batches one after the other and return their offsets."""
    offsets = []
    for batch in batches:
        answer = send(cluster, tp, batch)
        if answer.error_code:
            raise BrokerError(answer.error_code, f"producing to {tp}", answer.message)
        offsets.append(answer.base_offset)
    return offsets


def fetched(cluster: Cluster, tp: TopicPartition, start: int = 0, *, highest: int = 13) -> Iterator[Batch]:
    """Yield all batches of a partition from `start` to its end, as the broker stores them."""
    deadline = Deadline.after(SECONDS)
    topic = cluster.topic(tp.topic, deadline=deadline)
    connection = cluster.connection(cluster.leader(*tp, deadline=deadline), channel="fetch", deadline=deadline)
    version = connection.version(fetch.API_KEY, highest=highest)
    offset, end = start, start + 1
    while offset < end:
        partition = fetch.FetchPartition(tp.topic, tp.partition, offset, 1 << 20, topic_id=topic.id)
        body = fetch.fetch_request([partition], version=version, max_wait_ms=500, min_bytes=1, max_bytes=8 << 20)
        pending = connection.submit(fetch.API_KEY, version, body, deadline=deadline)
        (answer,) = fetch.fetch_response(pending.result(), version=version).partitions
        if answer.error_code:
            raise BrokerError(answer.error_code, f"fetching {tp} from {offset}")
        end = answer.high_watermark
        for batch in split(answer.records):
            offset = batch.header.next_offset
            yield batch


def read(batches: Iterable[Batch]) -> list[Sent]:
    """Decode with our decoder, with checksums verified."""
    chunks = [chunk.records for chunk in Decoder().decode(batches)]
    table = pa.Table.from_batches(chunks, SCHEMA)
    table.validate(full=True)
    times = [time // 1000 for time in table["timestamp"].cast(pa.int64()).to_pylist()]
    columns = (table[name].to_pylist() for name in ("key", "value", "headers"))
    return [
        Sent(key, value, tuple((h["key"], h["value"]) for h in headers or ()), time)
        for key, value, headers, time in zip(*columns, times, strict=True)
    ]


def new_producer(cluster: Cluster) -> ProducerIdentity:
    """Return a producer id for idempotent sending."""
    return ProducerIdentity(new_producer_id(cluster), 0)


def stamped(batch: NewBatch, producer: ProducerIdentity, sequence: int) -> NewBatch:
    """Return the batch with a producer id and sequence; its records are not touched."""
    header = restamp(
        batch.header, producer_id=producer.producer_id, producer_epoch=producer.epoch, base_sequence=sequence
    )
    return NewBatch(header, batch.records)
