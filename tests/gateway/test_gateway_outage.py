"""A broker dies while messages arrive: with a spool, each of them is in the log in the end, once; a stream goes on."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from tests.waiting import eventually

from ottla import Buffering, Spool
from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.gateway.datagram.format import Message, write
from ottla.gateway.datagram.listener import DatagramListener
from ottla.gateway.datagram.settings import DatagramSettings
from ottla.gateway.http.limits import Limits
from ottla.gateway.running import Gateway
from ottla.gateway.syslog.listener import SyslogListener
from ottla.gateway.syslog.settings import SyslogSettings

from .logs import intake, logged, new_topic
from .running import gateway, port_of
from .streaming import Client, Event, EventSource

pytestmark = pytest.mark.broker
_MESSAGES = 6000
_BYTES = 1000


class _Sending:
    """A thread that sends numbered messages to a unix socket as fast as they are taken."""

    def __init__(self, path: Path, form: bytes) -> None:
        self.sent = 0
        self.may_end = threading.Event()
        self._path, self._form = path, form
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(str(self._path))
            while self.sent < _MESSAGES or not self.may_end.is_set():
                sender.send(self._form % (self.sent, b"x" * _BYTES))
                self.sent += 1
                self.may_end.wait(0 if self.sent < _MESSAGES else 0.01)

    def end(self) -> int:
        self.may_end.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.sent


class _Reading:
    """A thread that reads a stream of the gateway, on one connection, until it has as many records as it should."""

    def __init__(self, port: int, topic: str) -> None:
        self.source = EventSource()
        self.events: list[Event] = []
        self._client = Client(port, f"/v1/topics/{topic}/records", {"Accept": "text/event-stream"})
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while events := self._client.events(self.source, 1):
            self.events += events

    def end(self, running: Gateway, count: int) -> None:
        eventually(lambda: len(self.events) >= count or not self._thread.is_alive(), "the stream has all records")
        running.stop()
        self._thread.join(30)
        self._client.close()
        assert [event.data.get("offset") for event in self.events] == list(range(count))


def _value(message: bytes | None) -> int:
    assert message is not None
    return int(message.removeprefix(b"<13>a: ").partition(b" ")[0])


def test_messages_survive_the_death_of_a_broker_in_the_spool(kafka: LocalCluster, tmp_path: Path) -> None:
    topics = [new_topic(kafka, f"outage-{kind}", partitions=1) for kind in ("datagrams", "syslog")]
    with Admin(kafka.bootstrap) as admin:
        leaders = {found.partitions[0].leader for found in admin.describe_topics(topics)}
    settings = {"spool": Spool(tmp_path / "spool"), "buffering": Buffering(bytes=2 << 20)}
    template = write(Message(topics[0].encode(), b"V" * (7 + 1 + _BYTES)))
    datagram = template.replace(b"V" * (7 + 1 + _BYTES), b"%07d %s")
    with (
        intake(kafka, **settings) as taker,
        closing(DatagramListener(DatagramSettings(path=tmp_path / "dory"), taker)) as datagrams,
        closing(SyslogListener(SyslogSettings(topic=topics[1], path=tmp_path / "log"), taker)) as syslog,
        gateway(kafka.bootstrap, limits=Limits(heartbeat_seconds=0.1), keeps_keys=False) as running,
    ):
        reading = _Reading(port_of(running), topics[0])
        listeners = datagrams, syslog
        for listener in listeners:
            listener.start()
        senders = _Sending(tmp_path / "dory", datagram), _Sending(tmp_path / "log", b"<13>a: %07d %s")
        eventually(lambda: all(sender.sent > 500 for sender in senders), "messages before the death")
        kafka.kill(*leaders)
        eventually(lambda: any(reading.source.comments), "the stream says that it waits")
        # More than the buffer holds: what goes on now is in the spool.
        eventually(lambda: all(sender.sent >= _MESSAGES for sender in senders), "messages during the outage")
        kafka.restart(*leaders)
        sent = [sender.end() for sender in senders]
        for listener in listeners:
            assert listener.drain(60)
        taker.producer.flush(120)
        counters = [entry for listener in listeners for entry in listener.counters()]
        assert not [entry for entry in counters if entry.name in ("discarded", "lost") and entry.value]
        reading.end(running, sent[0])
    for topic, number in zip(topics, sent, strict=True):
        found = Counter(_value(record.value) for record in logged(kafka, topic))
        assert found == Counter(range(number))
