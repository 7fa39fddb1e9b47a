"""The OpenAPI page: the routes that this gateway serves, as a value. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeAlias

from ottla.gateway.http.app import Path, StreamPath
from ottla.gateway.http.bodies import ARROW, BINARY, JSON, NDJSON
from ottla.gateway.http.reading import FORMS
from ottla.gateway.http.rest_bodies import FORMATS
from ottla.gateway.reading.frames import EVENTS

_PARAMETER = re.compile(r"\{(\w+)\}")
_NATIVE = "/v1/topics/{topic}/records"
_PARTITION = "/v1/topics/{topic}/partitions/{partition}/records"
_Queries: TypeAlias = dict[str, tuple[str, list[str] | None]]
_QUERIES: _Queries = {
    "ack": ("all, spool or none: what the answer waits for", ["all", "spool", "none"]),
    "detail": ("record: the answer has partition and offset of each record", ["record"]),
    "shape": ("of a line or body: a value, or a record with key, headers and so on", ["value", "record"]),
    "key": ("the key of the records", None),
}
_READ_QUERIES: _Queries = {
    "from": ("earliest, latest or a time: where a read of a topic begins", None),
    "offset": ("a number, earliest or latest: where a read of a partition begins", None),
    "timestamp": ("seconds or ISO 8601: where a read of a partition begins", None),
    "cursor": ("continues where an earlier answer ended", None),
    "until": ("latest or a time: where a read ends", None),
    "stream": ("true: records as they come, as NDJSON or server-sent events", ["true", "false"]),
    "max_bytes": ("of a page, or between two cursors of a stream", None),
    "max_records": ("of a page, or between two cursors of a stream", None),
    "max_wait_ms": ("of a page: how long to wait for a record", None),
    "isolation": ("which records of transactions come", ["read_committed", "read_uncommitted"]),
    "values": ("how values are shown", ["json", "text", "base64"]),
}
_OF_TOPIC, _OF_PARTITION = {"from"}, {"offset", "timestamp"}
_STATUSES = {
    "200": "every record is acknowledged; what was asked for",
    "202": "the records are on disk",
    "204": "the records were taken; the answer waits for nothing",
    "207": "some records failed; the body says which",
    "400": "the request cannot be read",
    "401": "a login is needed",
    "403": "no rule allows it",
    "404": "no such topic or partition",
    "413": "a limit of size; the body names it",
    "415": "a content type or encoding that is not supported",
    "422": "the request can be read and is refused",
    "429": "the client sends too much",
    "503": "not written; try again after Retry-After",
    "504": "the outcome is unknown",
}
_READS = ("200", "400", "401", "403", "404", "503")


def document(paths: Iterable[Path | StreamPath], *, version: str) -> dict[str, Any]:
    """Return the description of routes."""
    described: dict[str, dict[str, Any]] = {}
    for path in paths:
        described.setdefault(path.template, {})[path.method.lower()] = _operation(path)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Ottla gateway", "version": version},
        "paths": dict(sorted(described.items())),
        "components": {"securitySchemes": {name: {"type": "http", "scheme": name} for name in ("basic", "bearer")}},
        "security": [{}, {"basic": []}, {"bearer": []}],
    }


def _operation(path: Path | StreamPath) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(path.template)
    ]
    for name, (text, values) in _queries(path).items():
        schema = {"type": "string", **({"enum": values} if values else {})}
        parameters.append({"name": name, "in": "query", "description": text, "schema": schema})
    writes = path.method == "POST"
    if writes:
        parameters.append({"name": "Idempotency-Key", "in": "header", "schema": {"type": "string", "maxLength": 200}})
    operation: dict[str, Any] = {
        "summary": path.summary,
        "parameters": parameters,
        "responses": {status: {"description": _STATUSES[status]} for status in (_STATUSES if writes else _READS)},
    }
    if _is_read(path):
        parameters.append({"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"}})
        operation["responses"]["200"]["content"] = {name: {} for name in (*FORMS, EVENTS)}
    if writes:
        operation["requestBody"] = {"required": True, "content": {name: {} for name in _content_types(path)}}
    return operation


def _queries(path: Path | StreamPath) -> _Queries:
    if _is_read(path):
        others = _OF_PARTITION if path.template == _NATIVE else _OF_TOPIC
        return {name: entry for name, entry in _READ_QUERIES.items() if name not in others}
    return _QUERIES if path.template == _NATIVE else {}


def _is_read(path: Path | StreamPath) -> bool:
    return path.method == "GET" and path.template in (_NATIVE, _PARTITION)


def _content_types(path: Path | StreamPath) -> list[str]:
    if path.template == _NATIVE:
        return [JSON, *NDJSON, *BINARY, ARROW]
    if path.template.startswith("/topics/"):
        return [name for name in FORMATS if name]
    return [JSON]
