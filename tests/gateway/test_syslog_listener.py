"""Syslog with real brokers and real senders: `logging`, `logger` and rsyslog; every line arrives, parsed or marked."""

from __future__ import annotations

import json
import logging
import logging.handlers
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.waiting import eventually

from ottla.cluster import LocalCluster
from ottla.errors import ConfigError, InputError
from ottla.gateway.intake import Intake
from ottla.gateway.syslog.listener import SyslogListener
from ottla.gateway.syslog.rules import Rule, rule_of
from ottla.gateway.syslog.settings import SyslogSettings
from ottla.gateway.syslog.shapes import HEADERS, Key, Shape
from ottla.gateway.tls import ServerTls

from .logs import Logged, intake, logged, new_topic
from .syslog_lines import SOUND

pytestmark = pytest.mark.broker
_HOST = "127.0.0.2"
"""Clients of brokers that are gone may try any port of 127.0.0.1, and whatever they say would be a record."""
_LOOPBACK = ((_HOST, 0),)


@contextmanager
def _listening(taker: Intake, **settings: Any) -> Iterator[SyslogListener]:
    with closing(SyslogListener(SyslogSettings(**{"host": "this-machine"} | settings), taker)) as listener:
        listener.start()
        yield listener


def _port(listener: SyslogListener, place: int = 0) -> int:
    return int(listener.addresses[place].rpartition(":")[2])


def _count(listener: SyslogListener, name: str, **labels: str) -> int:
    wanted = set(labels.items())
    return sum(entry.value for entry in listener.counters() if entry.name == name and wanted <= set(entry.labels))


def _records(
    kafka: LocalCluster, name: str, send: Callable[[SyslogListener], object], *, expected: int, **settings: Any
) -> list[Logged]:
    """What is in the topic after `send`, in the order of arrival."""
    topic = new_topic(kafka, f"syslog-{name}", partitions=1)
    with intake(kafka) as taker, _listening(taker, topic=topic, **settings) as listener:
        send(listener)
        eventually(lambda: _count(listener, "messages") >= expected, "all messages")
        assert listener.drain(30)
        taker.producer.flush(30)
        assert _count(listener, "lost") == _count(listener, "handler_errors") == 0
    return logged(kafka, topic)


def _send_udp(lines: list[bytes]) -> Callable[[SyslogListener], None]:
    def send(listener: SyslogListener) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for line in lines:
                sender.sendto(line, (_HOST, _port(listener)))

    return send


def test_every_line_arrives_as_it_came_with_its_fields_as_headers(kafka: LocalCluster) -> None:
    lines = [line for line in SOUND if line.strip(b"\n\0")]
    records = _records(kafka, "udp", _send_udp([*lines, b"", b"\n"]), expected=len(lines), udp=_LOOPBACK)
    assert [record.value for record in records] == [line.rstrip(b"\n\0") for line in lines]
    by_value = {record.value: record for record in records}
    ietf = by_value[SOUND[2]]
    assert ietf.key == b"host"
    assert ietf.headers == (
        ("syslog.pri", b"165"),
        ("syslog.app", b"evntslog"),
        ("syslog.msgid", b"ID47"),
        ("syslog.src", b"127.0.0.1"),
    )
    assert by_value[b"<14>myapp: hello"].key == b"127.0.0.1", "a message without a host has the sender's address"
    assert dict(by_value[b"plain text"].headers) == {"syslog.src": b"127.0.0.1", "syslog.error": b"no-priority"}
    errors = {dict(record.headers).get("syslog.error") for record in records}
    assert errors == {None, b"no-priority", b"priority", b"version", b"time", b"structured-data", b"header"}


def test_a_record_has_the_time_of_its_message_if_that_is_of_today(kafka: LocalCluster) -> None:
    began = time.time()
    hour_ago = time.strftime("%Y-%m-%dT%H:%M:%S.123Z", time.gmtime(began - 3600))
    lines = [f"<13>1 {hour_ago} h a - - - recent".encode(), b"<13>1 2003-10-11T22:14:15.003Z h a - - - old"]
    recent, old = _records(kafka, "times", _send_udp(lines), expected=2, udp=_LOOPBACK)
    assert recent.time_ms == (int(began) - 3600) * 1000 + 123
    assert began * 1000 - 1 <= old.time_ms <= time.time() * 1000


def test_whatever_is_received_is_a_message_or_empty(kafka: LocalCluster) -> None:
    topic = new_topic(kafka, "syslog-empty", partitions=1)
    with intake(kafka) as taker, _listening(taker, topic=topic, udp=_LOOPBACK, tcp=_LOOPBACK) as listener:
        _send_udp([b"", b"\n", b"\0", b"<13>a", b"<", b"<13>b\n"])(listener)
        with socket.create_connection((_HOST, _port(listener, 1))) as sender:
            sender.sendall(b"\r\n\r\n<13>c\n0 2 \r\n")
        eventually(lambda: _count(listener, "messages") >= 4 and _count(listener, "received") >= 7, "all messages")
        assert listener.drain(30)
        assert _count(listener, "empty") >= 3
        assert _count(listener, "received") == _count(listener, "messages") + _count(listener, "empty")


def test_one_flat_json_object_for_each_message(kafka: LocalCluster) -> None:
    lines = [SOUND[2], b"<14>myapp[7]: not UTF-8: \xff", b"plain text"]
    settings = {"udp": _LOOPBACK, "shape": Shape.JSON, "key": Key.APP, "headers": ()}
    records = _records(kafka, "json", _send_udp(lines), expected=3, **settings)
    ietf, bsd, plain = (json.loads(record.value or b"") for record in records)
    assert ietf == {
        "message": "BOM",
        "timestamp": "2003-10-11T22:14:15.003Z",
        "source_type": "syslog",
        "facility": "local4",
        "severity": "notice",
        "version": 1,
        "hostname": "host",
        "host": "host",
        "appname": "evntslog",
        "msgid": "ID47",
        "source_ip": "127.0.0.1",
        "exampleSDID@32473.iut": "3",
        "exampleSDID@32473.eventSource": 'App]"x',
    }
    assert (bsd["message"], bsd["procid"], bsd["host"]) == ("not UTF-8: \N{REPLACEMENT CHARACTER}", "7", "127.0.0.1")
    assert (plain["message"], plain["error"]) == ("plain text", "no-priority")
    assert [(record.key, record.headers) for record in records] == [(b"evntslog", ()), (b"myapp", ()), (None, ())]


def test_rules_choose_the_topic(kafka: LocalCluster) -> None:
    topics = {name: new_topic(kafka, f"rule-{name}", partitions=1) for name in ("auth", "web", "other")}
    rules = (
        rule_of({"topic": topics["auth"], "facility": ["auth", "authpriv"]}),
        rule_of({"topic": topics["web"], "app": ["nginx*", "HTTPD"], "host": "web-*"}),
    )
    lines = {
        b"<34>Oct 11 22:14:15 h su: auth": "auth",
        b"<13>Oct 11 22:14:15 web-1 nginx-7: web": "web",
        b"<13>Oct 11 22:14:15 web-2 httpd[3]: web": "web",
        b"<13>Oct 11 22:14:15 db-1 nginx: other": "other",
        b"no priority": "other",
    }
    with (
        intake(kafka) as taker,
        _listening(taker, topic=topics["other"], rules=rules, udp=_LOOPBACK) as listener,
    ):
        _send_udp(list(lines))(listener)
        eventually(lambda: _count(listener, "messages") == len(lines), "all lines")
        taker.producer.flush(30)
    for name, topic in topics.items():
        assert {record.value for record in logged(kafka, topic)} == {line for line, to in lines.items() if to == name}


def test_frames_of_both_kinds_and_what_is_left_of_them(kafka: LocalCluster) -> None:
    long = b"<13>" + b"x" * 1000

    def send(listener: SyslogListener) -> None:
        with socket.create_connection((_HOST, _port(listener))) as tcp:
            tcp.sendall(b"<13>a: line\r\n16 <13>a: two\nlines" + long + b"\n<13>a: half")
        with socket.create_connection((_HOST, _port(listener))) as lost:
            lost.sendall(b"<13>a: fine\n99999999 wrong count")
            assert lost.recv(1) == b""

    records = _records(kafka, "frames", send, expected=6, tcp=_LOOPBACK, frame_bytes=480)
    found = {(record.value, dict(record.headers).get("syslog.error")) for record in records}
    assert found == {
        (b"<13>a: line", None),
        (b"<13>a: two\nlines", None),
        (long[:480], b"truncated"),
        (b"<13>a: half", b"cut"),
        (b"<13>a: fine", None),
        (b"99999999 wrong count", b"framing"),
    }


@pytest.mark.parametrize("kind", ["path", "stream_path"])
def test_programs_of_this_machine_write_to_a_unix_socket(kafka: LocalCluster, tmp_path: Path, kind: str) -> None:
    def send(_: SyslogListener) -> None:
        form = socket.SOCK_DGRAM if kind == "path" else socket.SOCK_STREAM
        with socket.socket(socket.AF_UNIX, form) as sender:
            sender.connect(str(tmp_path / "log"))
            sender.send(b"<13>Oct 11 22:14:15 su[12]: from here\0")

    (record,) = _records(kafka, kind.replace("_", "-"), send, expected=1, **{kind: tmp_path / "log"})
    assert (record.key, record.value) == (b"this-machine", b"<13>Oct 11 22:14:15 su[12]: from here")
    assert "syslog.src" not in dict(record.headers)


def test_tls_with_a_client_certificate(kafka: LocalCluster, tmp_path: Path) -> None:
    authority = trustme.CA()
    cert = authority.issue_cert("localhost")
    cert.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    server_tls = ServerTls(
        cert_file=tmp_path / "server.pem",
        key_file=tmp_path / "server.pem",
        client_ca_file=tmp_path / "ca.pem",
        needs_certificate=True,
    )

    def send(listener: SyslogListener) -> None:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        authority.issue_cert("client").configure_cert(context)
        plain = socket.create_connection((_HOST, _port(listener)))
        with context.wrap_socket(plain, server_hostname="localhost") as secure:
            secure.sendall(b"14 <13>a: secured")
            eventually(lambda: _count(listener, "messages") == 1, "it is taken")

    (record,) = _records(kafka, "tls", send, expected=1, tls=_LOOPBACK, server_tls=server_tls)
    assert record.value == b"<13>a: secured"


# Real senders


@pytest.mark.parametrize("kind", ["udp", "tcp", "unix"])
def test_pythons_handler(kafka: LocalCluster, tmp_path: Path, kind: str) -> None:
    def send(listener: SyslogListener) -> None:
        address: Any = str(tmp_path / "log") if kind == "unix" else (_HOST, _port(listener))
        form = socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM
        handler = logging.handlers.SysLogHandler(address, facility="local3", socktype=form)
        handler.ident = "myapp: "
        with closing(handler):
            for number in range(3):
                handler.handle(logging.LogRecord("x", logging.WARNING, "f", 1, "text %d", (number,), None))

    settings = {"path": tmp_path / "log"} if kind == "unix" else {kind: _LOOPBACK}
    records = _records(kafka, f"handler-{kind}", send, expected=3, **settings)
    assert [record.value for record in records] == [b"<156>myapp: text %d" % number for number in range(3)]
    for record in records:
        assert dict(record.headers)["syslog.app"] == b"myapp"
        assert "syslog.error" not in dict(record.headers)


_LOGGER = shutil.which("logger")


@pytest.mark.skipif(_LOGGER is None, reason="no logger(1) on this machine: apt install bsdutils")
@pytest.mark.parametrize(
    "options",
    [
        ["--udp", "--rfc5424"],
        ["--udp", "--rfc3164"],
        ["--tcp", "--rfc5424"],
        ["--tcp", "--rfc5424", "--octet-count"],
        ["--socket"],
    ],
    ids=" ".join,
)
def test_logger(kafka: LocalCluster, tmp_path: Path, options: list[str]) -> None:
    def send(listener: SyslogListener) -> None:
        port = [] if "--socket" in options else ["--server", _HOST, "--port", str(_port(listener))]
        place = [str(tmp_path / "log")] if "--socket" in options else []
        command = [
            str(_LOGGER),
            *options,
            *place,
            *port,
            "--tag",
            "mytag",
            "--id=77",
            "-p",
            "local0.err",
            "the message",
        ]
        subprocess.run(command, check=True, timeout=30)

    settings: dict[str, Any] = {"path": tmp_path / "log"} if "--socket" in options else {}
    settings |= {"udp": _LOOPBACK} if "--udp" in options else {}
    settings |= {"tcp": _LOOPBACK} if "--tcp" in options else {}
    name = "logger" + "".join(options).replace("--", "-")
    (record,) = _records(kafka, name, send, expected=1, shape=Shape.JSON, **settings)
    fields = json.loads(record.value or b"")
    assert (fields["message"], fields["appname"], fields["procid"]) == ("the message", "mytag", "77")
    assert (fields["facility"], fields["severity"]) == ("local0", "err")
    assert "error" not in fields
    assert abs(record.time_ms / 1000 - time.time()) < 3600


_RSYSLOG = shutil.which("rsyslogd") or shutil.which("rsyslogd", path="/usr/sbin:/sbin")


@pytest.mark.skipif(_RSYSLOG is None, reason="no rsyslogd on this machine: apt install rsyslog")
def test_a_real_rsyslog_forwards_every_line_in_four_ways(kafka: LocalCluster, tmp_path: Path) -> None:
    lines = 500

    def send(listener: SyslogListener) -> None:
        udp, tcp = _port(listener, 0), _port(listener, 1)
        ways = [
            f'protocol="udp" port="{udp}" template="RSYSLOG_SyslogProtocol23Format"',
            f'protocol="tcp" port="{tcp}" template="RSYSLOG_SyslogProtocol23Format" TCP_Framing="octet-counted"',
            f'protocol="tcp" port="{tcp}" template="RSYSLOG_SyslogProtocol23Format" TCP_Framing="traditional"',
            f'protocol="tcp" port="{tcp}" template="RSYSLOG_TraditionalForwardFormat" TCP_Framing="octet-counted"',
        ]
        actions = "\n".join(f'action(type="omfwd" target="{_HOST}" {way})' for way in ways)
        config = (
            f'module(load="imuxsock" SysSock.Use="off")\ninput(type="imuxsock" Socket="{tmp_path}/in")\n{actions}\n'
        )
        (tmp_path / "rsyslog.conf").write_text(config)
        command = [str(_RSYSLOG), "-n", "-f", str(tmp_path / "rsyslog.conf"), "-i", str(tmp_path / "pid")]
        with ExitStack() as running:
            daemon = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            running.callback(daemon.wait, 30)
            running.callback(daemon.terminate)
            eventually((tmp_path / "in").exists, "rsyslog's socket")
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.connect(str(tmp_path / "in"))
                stamp = time.strftime("%b %e %H:%M:%S")
                for number in range(lines):
                    sender.send(f"<134>{stamp} app[{number}]: line {number}".encode())
            eventually(lambda: _count(listener, "messages") >= 4 * lines, "every line four times")

    settings = {"udp": _LOOPBACK, "tcp": _LOOPBACK, "shape": Shape.JSON}
    records = _records(kafka, "rsyslog", send, expected=4 * lines, **settings)
    # rsyslog also says of itself that it has started.
    fields = [found for record in records if (found := json.loads(record.value or b"")).get("appname") == "app"]
    assert sorted(int(found["procid"]) for found in fields) == sorted(4 * list(range(lines)))
    assert {found["message"].strip() == f"line {found['procid']}" for found in fields} == {True}
    assert {(found["facility"], found["severity"], "error" in found) for found in fields} == {("local0", "info", False)}


# Settings


def test_what_is_lost_is_counted_by_topic(kafka: LocalCluster) -> None:
    with intake(kafka) as taker, _listening(taker, topic="closed-producer", udp=_LOOPBACK) as listener:
        taker.producer.close()
        _send_udp([SOUND[0]] * 3)(listener)
        eventually(lambda: _count(listener, "lost", topic="closed-producer") == 3, "the loss")


@pytest.mark.parametrize(
    "settings",
    [
        {"topic": "no/topic"},
        {"topic": "t", "timezone": "Mars/Olympus"},
        {"topic": "t", "tls": _LOOPBACK},
        {"topic": "t", "headers": ("syslog.nothing",)},
        {"topic": "t", "frame_bytes": 100},
        {"topic": "t", "frame_bytes": 500_000},
        {"topic": "t", "frame_bytes": 100_000, "shape": Shape.JSON},
        {"topic": "t", "shape": "json"},
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, InputError)):
        SyslogSettings(**settings)


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"topic": ["a", "b"]},
        {"topic": "t", "facility": "none"},
        {"topic": "t", "severity": ["loud"]},
        {"topic": "t", "hosts": "web"},
        {"topic": "t", "app": 5},
    ],
)
def test_wrong_rules_are_refused(table: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, InputError)):
        rule_of(table)


def test_a_rule_of_a_file_is_a_rule() -> None:
    table = {"topic": "t", "facility": "auth", "severity": ["err", "crit"], "app": ["a*"], "host": "h"}
    assert rule_of(table) == Rule(
        topic="t", facilities=("auth",), severities=("err", "crit"), apps=("a*",), hosts=("h",)
    )
    assert set(HEADERS) >= {"syslog.error"}


def test_a_listener_needs_a_place(kafka: LocalCluster) -> None:
    with intake(kafka) as taker, pytest.raises(ConfigError, match="no place to listen"):
        SyslogListener(SyslogSettings(topic="t"), taker).start()
