"""Settings of the syslog listener, from a table of a settings file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ottla.errors import OttlaError
from ottla.gateway.given import Given, without_missing
from ottla.gateway.receiving.cutting import Framing
from ottla.gateway.receiving.streams import StreamLimits
from ottla.gateway.receiving.tls import ServerTls
from ottla.gateway.syslog.rules import rule_of
from ottla.gateway.syslog.settings import SyslogSettings
from ottla.gateway.syslog.shapes import Key, Shape

_SHAPES = {shape.value: shape for shape in Shape}
_KEYS = {key.value: key for key in Key}
_FRAMINGS = {"detect": Framing.DETECT, "counted": Framing.COUNTED, "lines": Framing.LINES}


def syslog_settings(table: Mapping[str, Any], *, place: str, folder: Path) -> SyslogSettings:
    """Return the settings of a table. `place` is for errors, relative paths are relative to `folder`.

    Raises `ConfigError`.
    """
    given = Given(table, place, folder=folder)
    topic = given.text("topic")
    if topic is None:
        given.fail("has no topic: name the one for messages that no rule fits")
    values = {
        "udp": given.addresses("udp"),
        "tcp": given.addresses("tcp"),
        "tls": given.addresses("tls"),
        "server_tls": _server_tls(given),
        "path": given.path("path"),
        "stream_path": given.path("stream_path"),
        "mode": given.mode("mode"),
        "shape": given.choice("shape", Shape, _SHAPES),
        "key": given.choice("key", Key, _KEYS),
        "headers": given.texts("headers"),
        "framing": given.choice("framing", Framing, _FRAMINGS),
        "frame_bytes": given.whole("frame_bytes"),
        "datagram_bytes": given.whole("datagram_bytes"),
        "record_bytes": given.whole("record_bytes"),
        "timezone": given.text("timezone"),
        "linger": given.seconds("linger"),
        "reuse_port": given.flag("reuse_port"),
        "receive_buffer_bytes": given.whole("receive_buffer_bytes"),
        "host": given.text("host"),
    }
    limits = {
        "connections": given.whole("connections"),
        "pending_bytes": given.whole("pending_bytes"),
        "handshake_seconds": given.seconds("handshake_seconds"),
        "idle_seconds": given.seconds("idle_seconds"),
    }
    rules = given.tables("rules")
    given.refuse_others()
    try:
        return SyslogSettings(
            topic=topic,
            rules=tuple(map(rule_of, rules)),
            streams=StreamLimits(**without_missing(limits)),
            **without_missing(values),
        )
    except OttlaError as error:
        given.fail(f"is invalid: {error}")


def _server_tls(given: Given) -> ServerTls | None:
    cert_file, key_file = given.path("cert_file"), given.path("key_file")
    client_ca_file, is_optional = given.path("client_ca_file"), given.flag("clients_optional")
    if cert_file is None or key_file is None:
        if (cert_file, key_file, client_ca_file) != (None, None, None):
            given.fail("needs cert_file and key_file for TLS")
        return None
    return ServerTls(
        cert_file=cert_file, key_file=key_file, client_ca_file=client_ca_file, clients_optional=bool(is_optional)
    )
