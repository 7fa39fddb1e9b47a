"""A minimal client for the tests of the fake: any request of any version, by kio, over one socket."""

from __future__ import annotations

import io
import socket
import struct
from types import TracebackType
from typing import Any, Self

import crc32c
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from ottla.config import Address
from ottla.testing.fake.messages import api_key, build
from ottla.wire.batch import CRC_START, HEADER


class RawClient:
    """Sends any request and reads one response for each."""

    def __init__(self, address: Address, timeout: float = 10.0) -> None:
        self._socket = socket.create_connection(address, timeout)
        self._sent = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._socket.close()

    def send(self, api: str, version: int, **tree: Any) -> None:
        """Send a request without waiting for its response."""
        schema: Any = load_request_schema(api_key(api), version)
        header = build(
            schema.__header_schema__,
            {
                "request_api_key": api_key(api),
                "request_api_version": version,
                "correlation_id": self._sent,
                "client_id": "raw",
            },
        )
        self._sent += 1
        buffer = io.BytesIO()
        entity_writer(type(header))(buffer, header)
        entity_writer(schema)(buffer, build(schema, tree))
        self.send_bytes(buffer.getvalue())

    def send_bytes(self, frame: bytes) -> None:
        """Send a frame, prefixed by its length."""
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self, api: str, version: int) -> Any:
        """Return the next response, which must be of this API and leave no byte unread."""
        frame = self.receive_bytes()
        schema: Any = load_response_schema(api_key(api), version)
        header, size = entity_reader(schema.__header_schema__)(frame, 0)
        assert header.correlation_id == self._sent - 1
        body, body_size = entity_reader(schema)(frame, size)
        assert size + body_size == len(frame)
        return body

    def receive_bytes(self) -> bytes:
        """Return the next frame. Raises `ConnectionError` if there is none."""
        return self._read(struct.unpack(">i", self._read(4))[0])

    def ask(self, api: str, version: int, **tree: Any) -> Any:
        """Send and receive."""
        self.send(api, version, **tree)
        return self.receive(api, version)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise ConnectionError(f"closed after {len(data)} of {size} bytes")
            data += more
        return data


def make_batch(
    count: int = 1,
    *,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    base_offset: int = 0,
    attributes: int = 0,
    timestamp: int = 1_700_000_000_000,
    delta: int | None = None,
) -> bytes:
    """Return a batch of up to 64 records without key, value "hi"; `delta` sets a different last offset delta."""
    records = b"".join(bytes([16, 0, 0, 2 * i, 1, 4]) + b"hi\x00" for i in range(count))
    last = count - 1 if delta is None else delta
    fields = (attributes, last, timestamp, timestamp, producer_id, epoch, sequence, count)
    body = struct.pack(">hiqqqhii", *fields) + records
    head = HEADER.pack(base_offset, CRC_START - 12 + len(body), -1, 2, crc32c.crc32c(body), *fields)
    return head + records


def produce(client: RawClient, records: bytes, *, topic: str = "t", partition: int = 0, version: int = 9) -> Any:
    """Produce with acks=all and return the response for the partition."""
    data = [{"name": topic, "partition_data": [{"index": partition, "records": records}]}]
    answer = client.ask("Produce", version, acks=-1, topic_data=data)
    return answer.responses[0].partition_responses[0]
