"""Settings of the socket to write to and forget, from a table of a settings file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ottla.errors import OttlaError
from ottla.gateway.datagram.settings import DatagramSettings
from ottla.gateway.given import Given, without_missing
from ottla.gateway.receiving.streams import StreamLimits


def datagram_settings(table: Mapping[str, Any], *, place: str, folder: Path) -> DatagramSettings:
    """Return the settings of a table. `place` is for errors, relative paths are relative to `folder`.

    Raises `ConfigError`.
    """
    given = Given(table, place, folder=folder)
    tcp = given.addresses("tcp")
    if tcp is not None and len(tcp) != 1:
        given.fail("tcp must be one HOST:PORT")
    values = {
        "path": given.path("path"),
        "stream_path": given.path("stream_path"),
        "tcp": None if tcp is None else tcp[0],
        "mode": given.mode("mode"),
        "datagram_bytes": given.whole("datagram_bytes"),
        "message_bytes": given.whole("message_bytes"),
        "record_bytes": given.whole("record_bytes"),
        "linger": given.seconds("linger"),
        "report_seconds": given.whole("report_seconds"),
        "reports": given.whole("reports"),
        "samples": given.flag("samples"),
        "held_bytes": given.whole("held_bytes"),
        "held_seconds": given.seconds("held_seconds"),
    }
    limits = {
        "connections": given.whole("connections"),
        "pending_bytes": given.whole("pending_bytes"),
        "idle_seconds": given.seconds("idle_seconds"),
    }
    given.refuse_others()
    try:
        return DatagramSettings(**without_missing(values), streams=StreamLimits(**without_missing(limits)))
    except OttlaError as error:
        given.fail(f"is invalid: {error}")
