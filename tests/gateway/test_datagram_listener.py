"""The socket to write to and forget, with real brokers: what is written arrives, what cannot is counted."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import eventually

from ottla.cluster import LocalCluster
from ottla.errors import ConfigError, OttlaError
from ottla.gateway.datagram.format import Message, write
from ottla.gateway.datagram.listener import DatagramListener
from ottla.gateway.datagram.pages import respond
from ottla.gateway.datagram.settings import DatagramSettings
from ottla.gateway.intake import Intake

from .logs import count, intake, logged, new_topic

pytestmark = pytest.mark.broker
_TIME = 1_755_000_000_123


@contextmanager
def _listening(taker: Intake, **settings: Any) -> Iterator[DatagramListener]:
    with closing(DatagramListener(DatagramSettings(**settings), taker)) as listener:
        listener.start()
        yield listener


@contextmanager
def _to(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(str(path))
        yield sender


def _count(listener: DatagramListener, name: str, **labels: str) -> int:
    wanted = set(labels.items())
    return sum(entry.value for entry in listener.counters() if entry.name == name and wanted <= set(entry.labels))


def _discards(listener: DatagramListener) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(respond("GET", "/discards/json", listener.snapshot()).body)["unfinished_report"]
    return report


def test_every_kind_of_message_arrives_as_it_was_written(kafka: LocalCluster, tmp_path: Path) -> None:
    topic = new_topic(kafka, "kinds")
    name = topic.encode()
    messages = [
        Message(name, b"plain", None, _TIME),
        Message(name, b"keyed", b"key", _TIME + 1),
        Message(name, None, b"key", _TIME + 2),
        Message(name, b"rich", b"", _TIME + 3, headers=((b"a", b"1"), ("é".encode(), None))),
        Message(name, b"x" * 50_000, b"large", _TIME + 4),
    ]
    with intake(kafka) as taker, _listening(taker, path=tmp_path / "s") as listener, _to(tmp_path / "s") as sender:
        for message in messages:
            sender.send(write(message))
        assert listener.drain(30)
        taker.producer.flush(30)
        assert not (tmp_path / "s").exists()
    expected = {
        (message.key, message.value, tuple((n.decode(), v) for n, v in message.headers), message.timestamp_ms)
        for message in messages
    }
    assert {record[:4] for record in logged(kafka, topic)} == expected


def test_a_message_of_a_wrong_clock_has_the_time_of_its_receipt(kafka: LocalCluster, tmp_path: Path) -> None:
    topic = new_topic(kafka, "datagram-clocks")
    now = int(time.time() * 1000)
    wrong = {b"ahead": now + 7_200_000, b"microseconds": now * 1000, b"9000": 221_845_392_000_000, b"before": -1}
    right = {b"old": 1, b"now": now, b"soon": now + 3_000_000}
    with intake(kafka) as taker, _listening(taker, path=tmp_path / "s") as listener, _to(tmp_path / "s") as sender:
        for value, time_ms in (wrong | right).items():
            sender.send(write(Message(topic.encode(), value, None, time_ms)))
        assert listener.drain(30)
        taker.producer.flush(30)
        assert _count(listener, "discarded") == 0
    times = {record.value: record.time_ms for record in logged(kafka, topic)}
    assert {value: times[value] for value in right} == right
    assert all(now <= times[value] <= time.time() * 1000 for value in wrong)


def test_streams_by_unix_and_tcp_carry_the_same_messages(kafka: LocalCluster, tmp_path: Path) -> None:
    topic = new_topic(kafka, "streams")
    settings = {"stream_path": tmp_path / "s", "tcp": ("127.0.0.2", 0)}
    with intake(kafka) as taker, _listening(taker, **settings) as listener:
        port = int(listener.addresses[1].rpartition(":")[2])
        assert listener.addresses[0] == f"unix:{tmp_path / 's'}"
        unix = socket.socket(socket.AF_UNIX)
        unix.connect(str(tmp_path / "s"))
        with unix, socket.create_connection(("127.0.0.2", port)) as tcp:
            for number in range(1000):
                sender = (unix, tcp)[number % 2]
                sender.sendall(write(Message(topic.encode(), b"%d" % number, timestamp_ms=_TIME)))
        eventually(lambda: _count(listener, "messages") == 1000, "all of them")
        taker.producer.flush(30)
        assert _count(listener, "discarded") == 0
    assert sorted(int(record.value or b"") for record in logged(kafka, topic)) == list(range(1000))


def test_messages_with_partition_keys_go_where_dory_sends_them(kafka: LocalCluster, tmp_path: Path) -> None:
    topic = new_topic(kafka, "partition-keys", partitions=3)
    with intake(kafka) as taker, _listening(taker, path=tmp_path / "s") as listener, _to(tmp_path / "s") as sender:
        for key in (0, 1, 2, 3, 7, 0xFFFFFFFF):
            # The first ones wait until the partitions are known.
            sender.send(write(Message(topic.encode(), b"%d" % key, None, _TIME, partition_key=key)))
        eventually(lambda: listener.drain(1), "nothing is held")
        taker.producer.flush(30)
    found = {int(record.value or b""): record.partition for record in logged(kafka, topic)}
    assert found == {key: key % 3 for key in (0, 1, 2, 3, 7, 0xFFFFFFFF)}


def test_bad_messages_are_counted_by_their_kind_and_take_no_others_with_them(
    kafka: LocalCluster, tmp_path: Path
) -> None:
    topic = new_topic(kafka, "bad")
    sound = write(Message(topic.encode(), b"sound", None, _TIME))
    bad = [
        sound[:-1],
        b"",
        b"\xff" * 30,
        sound[:4] + (300).to_bytes(2, "big") + sound[6:],
        sound[:6] + (9).to_bytes(2, "big") + sound[8:],
        write(Message(b"no/such topic", b"v", None, _TIME)),
        write(Message(b"\xff\xfe", b"v", None, _TIME)),
        write(Message(topic.encode(), b"v", None, _TIME, headers=((b"\xff", b"v"),))),
        write(Message(topic.encode(), b"v" * 60_000, None, _TIME + 7)),
        sound + b"x" * 70_000,
    ]
    settings = {"path": tmp_path / "s", "record_bytes": 50_000}
    with intake(kafka) as taker, _listening(taker, **settings) as listener, _to(tmp_path / "s") as sender:
        for message in bad:
            sender.send(message)
            sender.send(sound)
        eventually(lambda: _count(listener, "messages") == len(bad), "the sound ones")
        eventually(lambda: _count(listener, "discarded") == len(bad), "the bad ones")
        taker.producer.flush(30)
        report = _discards(listener)
    assert report["malformed_msg_count"] == 5
    assert report["unsupported_api_key_msg_count"] == 1
    assert report["unsupported_msg_version"] == [{"version": 9, "count": 1}]
    assert (report["bad_topic_msg_count"], report["recent_bad_topic"]) == (2, ["\\xff\\xfe", "no/such topic"])
    assert report["discard_topic"] == [
        {"topic": topic, "min_timestamp": _TIME + 7, "max_timestamp": _TIME + 7, "count": 1}
    ]
    assert count(kafka, topic) == len(bad)
    assert _count(listener, "discarded") == len(bad)


def test_streams_that_end_badly_are_counted(kafka: LocalCluster, tmp_path: Path) -> None:
    topic = new_topic(kafka, "unclean")
    sound = write(Message(topic.encode(), b"sound", None, _TIME))
    settings = {"stream_path": tmp_path / "s", "tcp": ("127.0.0.2", 0), "message_bytes": 1000}
    with intake(kafka) as taker, _listening(taker, **settings) as listener:
        port = int(listener.addresses[1].rpartition(":")[2])
        with socket.create_connection(("127.0.0.2", port)) as tcp:
            tcp.sendall(sound + sound[:10])
        with socket.socket(socket.AF_UNIX) as unix:
            unix.connect(str(tmp_path / "s"))
            unix.sendall(sound + sound[:11])
        with socket.create_connection(("127.0.0.2", port)) as large:
            large.sendall(sound + (1001).to_bytes(4, "big"))
            assert large.recv(1) == b"", "too large a message closes the connection"
        eventually(lambda: _count(listener, "discarded") == 3, "three bad ends")
        eventually(lambda: _count(listener, "messages") == 3, "three sound messages")
        taker.producer.flush(30)
        report = _discards(listener)
    unclean = (report["tcp_unclean_disconnect_count"], report["unix_stream_unclean_disconnect_count"])
    assert (unclean, report["malformed_msg_count"]) == ((1, 1), 1)
    assert count(kafka, topic) == 3


@pytest.mark.parametrize("partition_key", [None, 5])
def test_an_unknown_topic_is_a_bad_topic_and_holds_up_no_other(
    kafka: LocalCluster, tmp_path: Path, partition_key: int | None
) -> None:
    topic = new_topic(kafka, f"good-{partition_key}")
    with intake(kafka) as taker, _listening(taker, path=tmp_path / "s") as listener, _to(tmp_path / "s") as sender:
        for _ in range(3):
            sender.send(write(Message(b"no-such-topic", b"v", None, _TIME, partition_key=partition_key)))
        sender.send(write(Message(topic.encode(), b"v", None, _TIME)))
        eventually(lambda: count(kafka, topic) == 1, "the other topic does not wait")
        eventually(lambda: _discards(listener)["bad_topic_msg_count"] == 3, "the unknown topic is counted")
        assert listener.snapshot().queues == ()
        assert _count(listener, "discarded", reason="bad_topic", topic="no-such-topic") == 3
        if partition_key is None:
            with pytest.raises(OttlaError):
                taker.producer.flush(10)


def test_what_waits_for_partitions_is_limited_and_counted_at_the_end(kafka: LocalCluster, tmp_path: Path) -> None:
    settings = {"path": tmp_path / "s", "held_bytes": 0}
    with intake(kafka) as taker, _listening(taker, **settings) as listener, _to(tmp_path / "s") as sender:
        sender.send(write(Message(b"any-topic", b"v", None, _TIME, partition_key=1)))
        eventually(lambda: _discards(listener)["discard_topic"] != [], "it is discarded")
        assert _discards(listener)["discard_topic"][0]["count"] == 1


def test_sockets_from_systemd_are_used(kafka: LocalCluster, tmp_path: Path) -> None:
    topic = new_topic(kafka, "activated")
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
        socket.create_server(("127.0.0.1", 0)) as stream,
    ):
        datagrams.bind(str(tmp_path / "s"))
        message = write(Message(topic.encode(), b"v", None, _TIME))
        with _to(tmp_path / "s") as sender:
            sender.send(message)  # before the gateway runs
        descriptors = os.dup(datagrams.fileno()), os.dup(stream.fileno())
        settings = {"datagram_descriptors": descriptors[:1], "stream_descriptors": descriptors[1:]}
        with intake(kafka) as taker, _listening(taker, **settings) as listener:
            with socket.create_connection(stream.getsockname()) as connection:
                connection.sendall(message)
            eventually(lambda: _count(listener, "messages") == 2, "both")
            assert listener.drain(30)
            taker.producer.flush(30)
            assert (tmp_path / "s").exists(), "the file belongs to systemd"
    assert count(kafka, topic) == 2


def test_a_second_gateway_is_refused_and_leaves_the_first_alone(kafka: LocalCluster, tmp_path: Path) -> None:
    with intake(kafka) as taker, _listening(taker, path=tmp_path / "s") as listener:
        second = DatagramListener(DatagramSettings(tcp=("127.0.0.1", 0), path=tmp_path / "s"), taker)
        with pytest.raises(OttlaError, match="another process listens there"):
            second.start()
        with _to(tmp_path / "s") as sender:
            sender.send(b"")
        eventually(lambda: _count(listener, "discarded", reason="malformed") == 1, "the first one still receives")
        with pytest.raises(ConfigError, match="no place to listen"):
            DatagramListener(DatagramSettings(), taker).start()


def test_every_limit_of_the_buffer_is_counted_as_a_discard(kafka: LocalCluster, tmp_path: Path) -> None:
    topic = new_topic(kafka, "closed")
    with intake(kafka) as taker, _listening(taker, path=tmp_path / "s") as listener, _to(tmp_path / "s") as sender:
        taker.producer.close()
        began = time.time()
        sender.send(write(Message(topic.encode(), b"v", None, -5)))
        eventually(lambda: _discards(listener)["discard_topic"] != [], "it is counted")
        (found,) = _discards(listener)["discard_topic"]
        assert found["count"] == 1
        assert found["min_timestamp"] >= began * 1000, "a time that no record can have is that of the receipt"
