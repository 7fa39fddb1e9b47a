"""Messages of the socket to write to and forget: dory's bytes, written, read one by one and read many at once."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import ConfigError, InputError
from ottla.gateway.datagram.format import Fault, Message, read, write
from ottla.gateway.datagram.partition_keys import chosen_partitions
from ottla.gateway.datagram.reading import columns, read_all
from ottla.gateway.datagram.settings import DatagramSettings
from ottla.gateway.receiving.arrivals import of_messages
from ottla.produce.route import Partitions
from ottla.wire.kernels import datagrams as k

from .parser_fuzz import _datagram

NOW = 1_795_000_000_000
_payload = st.none() | st.binary(max_size=30)
_plain = st.builds(
    Message,
    topic=st.binary(min_size=1, max_size=20),
    value=st.binary(max_size=30),
    key=st.none() | st.binary(min_size=1, max_size=9),
    timestamp_ms=st.integers(-(2**63), 2**63 - 1) | st.integers(NOW - 7_200_000, NOW + 7_200_000),
    partition_key=st.none() | st.integers(0, 2**32 - 1),
)
_rich = st.builds(
    Message,
    topic=st.binary(min_size=1, max_size=20),
    value=_payload,
    key=_payload,
    timestamp_ms=st.integers(0, NOW),
    headers=st.lists(st.tuples(st.binary(max_size=5), _payload), max_size=3).map(tuple),
)


def test_the_bytes_are_those_of_dory() -> None:
    any_partition = write(Message(b"clicks", b"value", b"key", 1234567890123))
    expected = struct.pack(">ihhh", 42, 256, 0, 0) + struct.pack(
        ">h6sqi3si5s", 6, b"clicks", 1234567890123, 3, b"key", 5, b"value"
    )
    assert any_partition == expected
    keyed = write(Message(b"t", b"", None, 7, partition_key=0xFFFFFFFE))
    assert keyed == struct.pack(">ihhhihcqii", 33, 257, 0, 0, -2, 1, b"t", 7, 0, 0)


def test_a_message_with_headers_is_ours() -> None:
    message = Message(b"t", None, b"", 7, headers=((b"a", b"1"), (b"b", None)))
    assert write(message) == (
        struct.pack(">ihhhhcqh", 46, 258, 0, 1, 1, b"t", 7, 2)
        + struct.pack(">hcic", 1, b"a", 1, b"1")
        + struct.pack(">hci", 1, b"b", -1)
        + struct.pack(">ii", 0, -1)
    )
    assert read(write(message)) == message


@given(_plain | _rich)
def test_what_is_written_is_read_again(message: Message) -> None:
    assert read(write(message)) == message


@given(st.lists(_plain | _rich, max_size=6))
def test_many_at_once_are_read_as_one_by_one(messages: list[Message]) -> None:
    arrivals = of_messages([write(message) for message in messages], received_ms=NOW)
    reading = read_all(arrivals)
    assert not reading.table[:, k.CODE].any()
    for number, topic in enumerate(reading.topics):
        rows = reading.rows_of(number)
        records = columns(arrivals, reading.table[rows]).to_pylist()
        expected = [messages[row] for row in rows.tolist()]
        assert {message.topic for message in expected} == {topic}
        for record, message in zip(records, expected, strict=True):
            assert (record["key"], record["value"]) == (message.key, message.value)
            headers = [(header["key"], header["value"]) for header in record.get("headers", ())]
            assert headers == list(message.headers)
            is_accepted = 0 <= message.timestamp_ms <= NOW + 55 * 60_000
            assert record["timestamp"] == (message.timestamp_ms if is_accepted else NOW)


def test_the_kernel_and_the_reader_agree_on_ten_thousand_changed_messages() -> None:
    chance = random.Random(5)
    messages = [_datagram(chance) for _ in range(10_000)]
    reading = read_all(of_messages(messages, received_ms=NOW))
    codes = set()
    for message, row in zip(messages, reading.table.tolist(), strict=True):
        one = read(message)
        expected = int(one) if isinstance(one, Fault) else k.SOUND
        assert row[k.CODE] == expected, message
        codes.add(expected)
        if isinstance(one, Message):
            assert reading.topics[row[k.TOPIC]] == one.topic
            assert (row[k.TIME], row[k.HEADER_COUNT]) == (one.timestamp_ms, len(one.headers))
            assert (row[k.PARTITION_KEY] if row[k.HAS_PARTITION_KEY] else None) == one.partition_key
    assert codes == {k.SOUND, *map(int, Fault)}


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_a_fault_for_both(data: bytes) -> None:
    data = len(data).to_bytes(4, "big") + data[4:] if len(data) >= 4 else data
    one = read(data)
    (code,) = read_all(of_messages([data], received_ms=NOW)).table[:, k.CODE].tolist()
    assert code == (int(one) if isinstance(one, Fault) else k.SOUND)


def test_hundreds_of_topics_in_one_batch_are_told_apart() -> None:
    names = [f"topic-{number % 300}".encode() for number in range(1000)]
    reading = read_all(of_messages([write(Message(name, b"v")) for name in names], received_ms=NOW))
    assert [reading.topics[number] for number in reading.table[:, k.TOPIC].tolist()] == names


@pytest.mark.parametrize(
    "message",
    [
        Message(b"", b""),
        Message(b"t" * 40_000, b""),
        Message(b"t", None, partition_key=1),
        Message(b"t", b"", partition_key=1, headers=((b"a", b""),)),
        Message(b"t", b"", headers=((b"a", b""),) * 1001),
    ],
)
def test_what_the_format_cannot_say_is_refused(message: Message) -> None:
    with pytest.raises(InputError):
        write(message)


def test_a_partition_key_counts_all_partitions_and_passes_over_those_without_a_leader() -> None:
    keys = np.array([0, 1, 2, 3, 4, 5, 0xFFFFFFFF], np.int64)
    assert chosen_partitions(keys, Partitions(4, (0, 1, 2, 3))).tolist() == [0, 1, 2, 3, 0, 1, 3]
    assert chosen_partitions(keys, Partitions(4, (0, 2))).tolist() == [0, 2, 2, 0, 0, 2, 0]
    assert chosen_partitions(keys, Partitions(4, ())).tolist() == [0, 1, 2, 3, 0, 1, 3]


def test_the_socket_does_not_listen_where_other_machines_can_reach_it() -> None:
    DatagramSettings(tcp=("127.0.0.1", 0))
    DatagramSettings(tcp=("::1", 0))
    for host in ("0.0.0.0", "::", "192.168.1.4", "kafka.example.com"):
        with pytest.raises(ConfigError, match="authentication"):
            DatagramSettings(tcp=(host, 9000))
