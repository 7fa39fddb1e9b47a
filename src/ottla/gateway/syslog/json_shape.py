"""A syslog message as one flat JSON object, with the names that vector gives to fields.

Parameters of structured data become fields `ID.NAME`. Bytes that are not UTF-8 become U+FFFD. A field that the message
does not have is left out. Parsed messages come in, bytes go out. Pure.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from ottla.gateway.syslog.parsing import ERROR_NAMES, Numbers, Parsed
from ottla.gateway.syslog.rules import FACILITIES, SEVERITIES
from ottla.wire.kernels import syslog as k

_ELEMENT = re.compile(r'\[([^ =\]"]+)((?: [^ =\]"]+="(?:\\.|[^"\\\]])*")*)\]', re.DOTALL)
_PARAMETER = re.compile(r' ([^ =\]"]+)="((?:\\.|[^"\\\]])*)"', re.DOTALL)
_ESCAPED = re.compile(r'\\(["\\\]])')
_encode = msgspec.json.Encoder().encode
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_800_000
"""The years that a timestamp can have: 1 to 9999."""


def values(parsed: Parsed, rows: Numbers, *, host: str) -> list[bytes]:
    """Return an object for each message. `host` stands for messages without a host from this machine."""
    data = parsed.arrivals.data.data
    sources = parsed.arrivals.sources
    received_ms = parsed.arrivals.received_ms
    numbers = parsed.source_of[rows].tolist()
    return [
        _encode(_fields(data, row, received_ms, sources[number], host))
        for row, number in zip(parsed.table[rows].tolist(), numbers, strict=True)
    ]


def _fields(data: memoryview, row: list[int], received_ms: int, source: str, host: str) -> dict[str, Any]:
    def text(start: int, stop: int) -> str:
        return str(data[row[start] : row[stop]], "utf-8", "replace")

    time_ms = row[k.TIME] if _FIRST_MS <= row[k.TIME] < _LAST_MS else received_ms
    fields: dict[str, Any] = {"message": text(k.MESSAGE, k.STOP), "timestamp": _iso(time_ms), "source_type": "syslog"}
    if row[k.PRI] >= 0:
        fields["facility"] = FACILITIES[row[k.PRI] >> 3]
        fields["severity"] = SEVERITIES[row[k.PRI] & 7]
    if row[k.KIND] == k.IETF:
        fields["version"] = 1
    for name, (start, stop) in _PLACES.items():
        if row[stop] > row[start]:
            fields[name] = text(start, stop)
    fields["host"] = fields.get("hostname") or source or host
    if source:
        fields["source_ip"] = source
    if row[k.ERROR]:
        fields["error"] = ERROR_NAMES[row[k.ERROR]]
    if row[k.DATA_STOP] > row[k.DATA]:
        _add_parameters(fields, text(k.DATA, k.DATA_STOP))
    return fields


def _add_parameters(fields: dict[str, Any], structured: str) -> None:
    """Add the parameters of structured data. A name that comes twice has a list."""
    for identity, parameters in _ELEMENT.findall(structured):
        for name, escaped in _PARAMETER.findall(parameters):
            key = f"{identity}.{name}"
            content = _ESCAPED.sub(r"\1", escaped)
            if key not in fields:
                fields[key] = content
            elif isinstance(fields[key], list):
                fields[key].append(content)
            else:
                fields[key] = [fields[key], content]


def _iso(time_ms: int) -> str:
    moment = _EPOCH + timedelta(milliseconds=time_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


_PLACES = {
    "hostname": (k.HOST, k.HOST_STOP),
    "appname": (k.APP, k.APP_STOP),
    "procid": (k.PROCID, k.PROCID_STOP),
    "msgid": (k.MSGID, k.MSGID_STOP),
}
