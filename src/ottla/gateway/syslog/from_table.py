"""Settings of the syslog listener, from a table of a settings file."""

from __future__ import annotations

from ottla.gateway.receiving.cutting import Framing
from ottla.gateway.receiving.streams import StreamLimits
from ottla.gateway.syslog.rules import rule_of
from ottla.gateway.syslog.settings import SyslogSettings
from ottla.gateway.syslog.shapes import Key, Shape
from ottla.gateway.table_values import addresses, choice, flag, linger, mode, tables, whole, without_missing
from ottla.gateway.tls import ServerTls
from ottla.settings_table import Table

_KEYS = (
    *("topic", "rules", "udp", "tcp", "tls", "path", "stream_path", "mode"),
    *("cert_file", "key_file", "client_ca_file", "needs_certificate"),
    *("shape", "key", "headers", "framing", "timezone", "host"),
    "anyone_may_write",
    *("frame_bytes", "datagram_bytes", "record_bytes", "receive_buffer_bytes", "linger", "full_seconds", "reuse_port"),
    *("connections", "pending_bytes", "handshake_seconds", "idle_seconds"),
)
_SHAPES = {shape.value: shape for shape in Shape}
_RECORD_KEYS = {key.value: key for key in Key}
_FRAMINGS = {"detect": Framing.DETECT, "counted": Framing.COUNTED, "lines": Framing.LINES}


def syslog_settings(table: Table) -> SyslogSettings:
    """Return the settings of a table. Raises `ConfigError`."""
    table.refuse_unknown(_KEYS)
    topic = table.text("topic")
    if topic is None:
        table.fail("has no topic: name the one for messages that no rule fits")
    limits = without_missing(
        connections=whole(table, "connections"),
        pending_bytes=whole(table, "pending_bytes"),
        handshake_seconds=table.seconds("handshake_seconds"),
        idle_seconds=table.seconds("idle_seconds"),
    )
    values = without_missing(
        udp=addresses(table, "udp"),
        tcp=addresses(table, "tcp"),
        tls=addresses(table, "tls"),
        server_tls=_server_tls(table),
        path=table.path("path"),
        stream_path=table.path("stream_path"),
        mode=mode(table),
        shape=choice(table, "shape", _SHAPES),
        key=choice(table, "key", _RECORD_KEYS),
        headers=table.texts("headers") if "headers" in table.values else None,
        framing=choice(table, "framing", _FRAMINGS),
        frame_bytes=whole(table, "frame_bytes"),
        datagram_bytes=whole(table, "datagram_bytes"),
        record_bytes=whole(table, "record_bytes"),
        timezone=table.text("timezone"),
        linger=linger(table),
        full_seconds=table.seconds("full_seconds"),
        reuse_port=flag(table, "reuse_port"),
        receive_buffer_bytes=whole(table, "receive_buffer_bytes"),
        host=table.text("host"),
        anyone_may_write=flag(table, "anyone_may_write"),
    )
    rules = table.checked(lambda: tuple(map(rule_of, tables(table, "rules"))))
    return table.checked(lambda: SyslogSettings(topic=topic, rules=rules, streams=StreamLimits(**limits), **values))


def _server_tls(table: Table) -> ServerTls | None:
    cert_file, key_file, client_ca_file = (table.path(key) for key in ("cert_file", "key_file", "client_ca_file"))
    needs_certificate = flag(table, "needs_certificate") is True
    if cert_file is None and key_file is None and client_ca_file is None and not needs_certificate:
        return None
    if cert_file is None or key_file is None:
        table.fail("needs cert_file and key_file for TLS, both")
    return table.checked(
        lambda: ServerTls(
            cert_file=cert_file, key_file=key_file, client_ca_file=client_ca_file, needs_certificate=needs_certificate
        )
    )
