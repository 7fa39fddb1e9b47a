"""Settings of the socket to write to and forget, from a table of a settings file."""

from __future__ import annotations

from ottla.gateway.datagram.settings import DatagramSettings
from ottla.gateway.receiving.streams import StreamLimits
from ottla.gateway.table_values import addresses, flag, linger, mode, whole, without_missing
from ottla.settings_table import Table

_KEYS = (
    *("path", "stream_path", "tcp", "mode", "datagram_bytes", "message_bytes", "record_bytes", "linger"),
    *("report_seconds", "reports", "samples", "held_bytes", "held_seconds", "full_seconds"),
    *("connections", "pending_bytes", "idle_seconds"),
)


def datagram_settings(table: Table) -> DatagramSettings:
    """Return the settings of a table. Raises `ConfigError`."""
    table.refuse_unknown(_KEYS)
    tcp = addresses(table, "tcp")
    if len(tcp) > 1:
        table.fail("tcp must be one HOST:PORT")
    limits = without_missing(
        connections=whole(table, "connections"),
        pending_bytes=whole(table, "pending_bytes"),
        idle_seconds=table.seconds("idle_seconds"),
    )
    values = without_missing(
        path=table.path("path"),
        stream_path=table.path("stream_path"),
        tcp=tcp[0] if tcp else None,
        mode=mode(table),
        datagram_bytes=whole(table, "datagram_bytes"),
        message_bytes=whole(table, "message_bytes"),
        record_bytes=whole(table, "record_bytes"),
        linger=linger(table),
        report_seconds=whole(table, "report_seconds"),
        reports=whole(table, "reports"),
        samples=flag(table, "samples"),
        held_bytes=whole(table, "held_bytes"),
        held_seconds=table.seconds("held_seconds"),
        full_seconds=table.seconds("full_seconds"),
    )
    return table.checked(lambda: DatagramSettings(**values, streams=StreamLimits(**limits)))
