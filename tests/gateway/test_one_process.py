"""One process for all listeners: one producer, one spool, one page of metrics; a restart keeps every socket."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections import Counter
from pathlib import Path

import pytest
from tests.cli.commands import run
from tests.gateway.logs import count, logged
from tests.gateway.running import ask, gateway, new_topic, post, program
from tests.waiting import eventually

from ottla.cluster import LocalCluster
from ottla.errors import ConfigError
from ottla.gateway.datagram.format import Message, write
from ottla.gateway.datagram.settings import DatagramSettings
from ottla.gateway.passing import for_socket, for_syslog
from ottla.gateway.running import Gateway
from ottla.gateway.settings import Settings
from ottla.gateway.settings_file import read_settings
from ottla.gateway.syslog.settings import SyslogSettings
from ottla.net.access import ClusterAccess

_CLUSTER = '[cluster]\nbootstrap = "localhost:9092"\n'


class _Numbers:
    """A thread that sends numbered messages to a unix datagram socket until it is told to end."""

    def __init__(self, path: Path, prefix: bytes) -> None:
        self.sent = 0
        self.errors: list[OSError] = []
        self._path, self._prefix = path, prefix
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(str(self._path))
            while not self._is_over.wait(0.001):
                try:
                    sender.send(self._prefix + b"%07d" % self.sent)
                except OSError as error:
                    self.errors.append(error)
                    return
                self.sent += 1

    def end(self) -> int:
        self._is_over.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.sent


def _datagram(topic: str) -> bytes:
    """A message of dory's format, up to the seven bytes that end its value."""
    return write(Message(topic.encode(), b"0" * 7))[:-7]


@pytest.mark.broker
def test_all_listeners_share_a_process(kafka: LocalCluster, tmp_path: Path) -> None:
    topic, logs = new_topic(kafka.bootstrap, "shared"), new_topic(kafka.bootstrap, "shared-logs")
    settings = {
        "socket": DatagramSettings(path=tmp_path / "dory"),
        "syslog": SyslogSettings(topic=logs, path=tmp_path / "log", udp=(("127.0.0.1", 0),)),
    }
    with gateway(kafka.bootstrap, **settings) as running:
        assert running.ops_address is not None
        ops = running.ops_address.port
        assert post(running, f"/v1/topics/{topic}/records", b"1").status == 200
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(_datagram(topic) + b"0000002", str(tmp_path / "dory"))
            sender.sendto(b"garbage", str(tmp_path / "dory"))
            sender.sendto(b"<13>app: hello", str(tmp_path / "log"))
        eventually(lambda: (count(kafka, topic), count(kafka, logs)) == (2, 1), "all three are written")
        metrics = ask(ops, "GET", "/metrics").body.decode()
        assert f'\nottla_gateway_socket_messages_total{{topic="{topic}"}} 1\n' in metrics
        assert "ottla_gateway_socket_messages_total 0" not in metrics
        assert 'ottla_gateway_socket_discarded_total{reason="malformed"' in metrics
        assert "\nottla_gateway_syslog_messages_total" in metrics
        assert f'ottla_gateway_http_records_total{{topic="{topic}"}} 1' in metrics
        assert ask(ops, "GET", "/discards/json").json["pid"]
        assert b"version" in ask(ops, "GET", "/server_info/plain").body
        assert b"initiated" in ask(ops, "POST", "/metadata_update").body
    assert {record.value for record in logged(kafka, topic)} == {b"1", b"0000002"}
    assert not (tmp_path / "dory").exists()
    assert not (tmp_path / "log").exists()


@pytest.mark.broker
def test_a_restart_loses_no_datagram_and_refuses_no_sender(kafka: LocalCluster, tmp_path: Path) -> None:
    topic, logs = new_topic(kafka.bootstrap, "handed-over"), new_topic(kafka.bootstrap, "handed-over-logs")
    sockets = ("--socket", str(tmp_path / "dory"), "--syslog", f"unix:{tmp_path / 'log'}", "--syslog-topic", logs)
    with program(kafka.bootstrap, tmp_path, *sockets, "--spool", str(tmp_path / "spool"), "--name", topic) as running:
        senders = _Numbers(tmp_path / "dory", _datagram(topic)), _Numbers(tmp_path / "log", b"<13>a: ")
        try:
            for _ in range(2):
                before = [sender.sent for sender in senders]
                eventually(lambda: all(s.sent > b + 50 for s, b in zip(senders, before, strict=True)), "messages")  # noqa: B023
                starts = running.log.count("/v1/topics")
                running.process.send_signal(signal.SIGUSR2)
                running.await_start(starts)
            before = [sender.sent for sender in senders]
            eventually(lambda: all(s.sent > b + 50 for s, b in zip(senders, before, strict=True)), "messages go on")
        finally:
            sent = [sender.end() for sender in senders]
        assert [sender.errors for sender in senders] == [[], []]
        assert running.stop() == 0, running.log
    assert not (tmp_path / "dory").exists()  # the last process owns the files
    assert not (tmp_path / "log").exists()
    for name, number in zip((topic, logs), sent, strict=True):
        found = Counter(int((record.value or b"")[-7:]) for record in logged(kafka, name))
        assert found == Counter(range(number)), running.log


def test_sockets_that_were_passed_on_take_the_place_of_addresses(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as unix, socket.socket() as tcp:
        unix.bind(str(tmp_path / "x"))
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        found = for_socket(DatagramSettings(path=tmp_path / "y"), {"own-socket": [unix.dup(), tcp.dup()]})
        assert found is not None
        assert (found.path, len(found.datagram_descriptors), len(found.stream_descriptors)) == (None, 1, 1)
        assert found.owns_files
        logs = for_syslog(None, {"syslog": [unix.dup(), tcp.dup()]}, is_insecure=False)
        assert logs is not None
        assert (logs.topic, len(logs.datagram_descriptors), len(logs.tcp_descriptors)) == ("syslog", 1, 1)
        assert not logs.owns_files
        assert for_socket(None, {"http": [tcp]}) is None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as exposed:
        exposed.bind(("0.0.0.0", 0))
        with pytest.raises(ConfigError, match="can be reached from other machines"):
            for_syslog(None, {"syslog": [exposed]}, is_insecure=False)
        assert for_syslog(None, {"syslog": [exposed.dup()]}, is_insecure=True) is not None


def test_every_socket_that_is_passed_on_is_looked_at(tmp_path: Path) -> None:
    with socket.socket() as local, socket.socket() as exposed:
        for sock, host in ((local, "127.0.0.1"), (exposed, "0.0.0.0")):
            sock.bind((host, 0))
            sock.listen()
        gateway = Gateway(
            Settings(cluster=ClusterAccess(bootstrap="localhost:1")), sockets={"http": [local.dup(), exposed.dup()]}
        )
        with pytest.raises(ConfigError, match="can be reached from other machines"):
            gateway.start()


def test_syslog_beyond_this_machine_needs_certificates_or_words(tmp_path: Path) -> None:
    cluster = ClusterAccess(bootstrap="localhost:9092")
    exposed = SyslogSettings(topic="logs", udp=(("0.0.0.0", 5514),))
    with pytest.raises(ConfigError, match=r"syslog at 0\.0\.0\.0:5514 can be reached from other machines"):
        Settings(cluster=cluster, syslog=exposed)
    Settings(cluster=cluster, syslog=exposed, is_insecure=True)
    file = tmp_path / "gateway.toml"
    file.write_text(_CLUSTER + '[syslog]\ntopic = "logs"\nudp = ["0.0.0.0:5514"]\nanyone_may_write = true\n')
    assert read_settings(file).syslog is not None


def test_a_file_names_all_listeners(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(
        _CLUSTER
        + '[socket]\npath = "dory"\ntcp = "127.0.0.1:9091"\n[syslog]\ntopic = "logs"\ntcp = ["127.0.0.1:601"]\n'
    )
    report = json.loads(run("gateway", "check", str(file), "--json").stdout)
    assert report["socket"] == [f"unix:{tmp_path / 'dory'}", "tcp:127.0.0.1:9091"]
    assert report["syslog"] == ["tcp:127.0.0.1:601"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "nothing to listen on: pass --http PORT, --socket PATH or --syslog PLACE"),
        (["--syslog", "5514"], "'5514' is not a place for syslog: write udp:PORT, tcp:HOST:PORT or unix:PATH"),
        (["--syslog", "udp:nowhere"], "'nowhere' is not a place to listen"),
        (["--http", "0", "--syslog-topic", "logs"], "--syslog-topic needs --syslog"),
        (["--syslog", "unix:/a", "--syslog", "unix:/b"], "--syslog takes one unix:PATH"),
        (["--syslog", "udp:0.0.0.0:5514"], "can be reached from other machines"),
    ],
)
def test_wrong_uses_are_one_line(options: list[str], message: str) -> None:
    result = run("gateway", "run", "--bootstrap", "localhost:1", *options)
    assert result.exit_code in (1, 2)
    assert message in result.stderr
    assert "Traceback" not in result.stderr
