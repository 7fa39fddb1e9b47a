"""Settings of the listeners come from tables of a file; what is wrong in one is named with its place."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from ottla.errors import ConfigError
from ottla.gateway.datagram.from_table import datagram_settings
from ottla.gateway.datagram.settings import DatagramSettings
from ottla.gateway.receiving.cutting import Framing
from ottla.gateway.receiving.streams import StreamLimits
from ottla.gateway.syslog.from_table import syslog_settings
from ottla.gateway.syslog.rules import Rule
from ottla.gateway.syslog.settings import SyslogSettings
from ottla.gateway.syslog.shapes import Key, Shape
from ottla.gateway.tls import ServerTls
from ottla.settings_table import Table

_FOLDER = Path("/etc/ottla")


def _table(text: str) -> Table:
    return Table(tomllib.loads(text), "[it]", _FOLDER)


def test_a_table_of_the_socket() -> None:
    text = """
    path = "/run/ottla/gateway.sock"
    stream_path = "stream.sock"
    tcp = "127.0.0.1:9091"
    mode = "0220"
    linger = 0
    samples = false
    connections = 5
    """
    assert datagram_settings(_table(text)) == DatagramSettings(
        path=Path("/run/ottla/gateway.sock"),
        stream_path=_FOLDER / "stream.sock",
        tcp=("127.0.0.1", 9091),
        mode=0o220,
        linger=0.0,
        samples=False,
        streams=StreamLimits(connections=5),
    )


def test_a_table_of_syslog() -> None:
    text = """
    topic = "logs"
    udp = ["0.0.0.0:514", "[::1]:514"]
    tls = "0.0.0.0:6514"
    cert_file = "cert.pem"
    key_file = "/keys/key.pem"
    client_ca_file = "ca.pem"
    shape = "json"
    key = "source"
    framing = "lines"
    headers = ["syslog.pri"]
    timezone = "Europe/Prague"
    idle_seconds = 600
    host = "here"

    [[rules]]
    topic = "auth"
    facility = ["auth", "authpriv"]
    """
    assert syslog_settings(_table(text)) == SyslogSettings(
        topic="logs",
        udp=(("0.0.0.0", 514), ("::1", 514)),
        tls=(("0.0.0.0", 6514),),
        server_tls=ServerTls(
            cert_file=_FOLDER / "cert.pem", key_file=Path("/keys/key.pem"), client_ca_file=_FOLDER / "ca.pem"
        ),
        shape=Shape.JSON,
        key=Key.SOURCE,
        framing=Framing.LINES,
        headers=("syslog.pri",),
        timezone="Europe/Prague",
        streams=StreamLimits(idle_seconds=600.0),
        host="here",
        rules=(Rule(topic="auth", facilities=("auth", "authpriv")),),
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("pathh = 's'", r"\[it\] has an unknown key 'pathh': did you mean 'path'\?"),
        ("path = 5", r"\[it\] path must be a text, got 5"),
        ("tcp = '127.0.0.1'", r"\[it\] tcp must be HOST:PORT, got '127.0.0.1'"),
        ("tcp = ['127.0.0.1:1', '127.0.0.1:2']", r"\[it\] tcp must be one HOST:PORT"),
        ("tcp = '0.0.0.0:1'", r"\[it\] is invalid: .*authentication"),
        ("mode = '0999'", r"\[it\] mode must be octal digits"),
        ("mode = 222", r"\[it\] mode must be a text"),
        ("connections = true", r"\[it\] connections must be a whole number, got true"),
        ("linger = -1", r"\[it\] linger must be seconds from 0, got -1"),
    ],
)
def test_what_is_wrong_with_the_socket_is_named(text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        datagram_settings(_table(text))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("udp = '1.2.3.4:514'", r"\[it\] has no topic"),
        ("topic = 't'\nshape = 'xml'", r"\[it\] shape is 'xml'; accepted are raw, json"),
        ("topic = 't'\ncert_file = 'c'", r"\[it\] needs cert_file and key_file"),
        ("topic = 't'\ntls = '1.2.3.4:514'", r"\[it\] is invalid: .*needs a certificate"),
        ("topic = 't'\nrules = 'x'", r"\[it\] rules must be a list of tables"),
        ("topic = 't'\n[[rules]]\nfacility = 'auth'", r"\[it\] is invalid: a rule needs exactly one topic"),
        ("topic = 't'\nudp = [5]", r"\[it\] udp must be a list of texts"),
        ("topic = 't'\nudp = ['a:99999']", r"\[it\] udp must be HOST:PORT"),
    ],
)
def test_what_is_wrong_with_syslog_is_named(text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        syslog_settings(_table(text))
