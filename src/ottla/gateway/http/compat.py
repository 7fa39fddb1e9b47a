"""The surfaces of kafboy and flasfka that write, for programs that cannot be changed; each is switched on by name.

kafboy takes forms, each pair a key and a value, and JSON objects, which its README promised. flasfka takes
`{"messages": [...]}`. Their answers are kept; what they claimed before it was true is claimed here when it is.
"""

from __future__ import annotations

import socket
from urllib.parse import parse_qsl

import msgspec

from ottla.gateway.access.gate import Gate
from ottla.gateway.access.rules import Verb
from ottla.gateway.http.answers import Outcome, by_row
from ottla.gateway.http.bodies import check_count, check_utf8
from ottla.gateway.http.limits import Limits
from ottla.gateway.http.native import refuse_key
from ottla.gateway.http.problems import Problem
from ottla.gateway.http.producing import Ack, Producing
from ottla.gateway.http.request import Answer, Request, as_json
from ottla.gateway.intake import Incoming

_SIGNS = 10
"""How often a record may have the sign that separates records."""
FLASFKA_VERSION = b"0.1.0"


class _Messages(msgspec.Struct):
    messages: list[str]


class Kafboy:
    """Handlers of kafboy."""

    def __init__(self, producing: Producing, gate: Gate) -> None:
        self._producing = producing
        self._gate = gate

    async def send_async(self, request: Request, topic: str) -> Answer:
        """`POST /async/{topic}`, `POST /batch/async/{topic}`."""
        rows = await self._rows(request, topic)
        if isinstance(rows, Answer):
            return rows
        await self._producing.produce(topic, rows, Ack.NONE)
        return as_json({"ok": 1})

    async def send_sync(self, request: Request, topic: str) -> Answer:
        """`POST /sync/{topic}`, `POST /batch/sync/{topic}`."""
        rows = await self._rows(request, topic)
        if isinstance(rows, Answer):
            return rows
        outcome = await self._producing.produce(topic, rows)
        entries = [{"error": each.code} if isinstance(each, Problem) else {"ok": True} for each in by_row(outcome)]
        return as_json(entries, _status(outcome))

    async def refuse(self, request: Request, topic: str) -> Answer:
        """`GET` on any of them."""
        return as_json({"error": "invalid"}, 400)

    async def disco(self, request: Request) -> Answer:
        """`GET /disco`."""
        return as_json([f"ottla@{socket.gethostname()}"])

    async def _rows(self, request: Request, topic: str) -> list[Incoming] | Answer:
        self._gate.check(request.identity, Verb.PRODUCE, topic)
        refuse_key(request)
        body = await request.body()
        self._gate.charge(request.connection, request.identity, len(body))
        if not body:
            return as_json({"error": "no_body"}, 400)
        _check_items(body, b"&" if is_form(body, request.content_type) else b":", request.limits)
        rows = read_kafboy(body, request.content_type)
        if not rows:
            return as_json({"error": "empty" if rows is not None else "unexp"}, 400)
        check_count(len(rows), request.limits)
        return rows


class Flasfka:
    """The handler of flasfka."""

    def __init__(self, producing: Producing, gate: Gate) -> None:
        self._producing = producing
        self._gate = gate

    async def send(self, request: Request, topic: str, key: str | None = None) -> Answer:
        """`POST /{topic}/` and `POST /{topic}/{key}/`."""
        self._gate.check(request.identity, Verb.PRODUCE, topic)
        refuse_key(request)
        body = await request.body()
        self._gate.charge(request.connection, request.identity, len(body))
        version = ((b"x-flasfka-version", FLASFKA_VERSION),)
        _check_items(body, b",", request.limits)
        try:
            check_utf8(body)
            messages = msgspec.json.decode(body, type=_Messages).messages
        except (Problem, msgspec.MsgspecError, RecursionError):
            text = b'The body must be {"messages": ["text", ...]}'
            return Answer(400, text, b"text/plain; charset=utf-8", version)
        if messages:
            check_count(len(messages), request.limits)
            key_bytes = None if key is None else key.encode()
            outcome = await self._producing.produce(topic, [Incoming(text.encode(), key_bytes) for text in messages])
            if outcome.worst is not None:
                raise outcome.worst
        return Answer(204, headers=version)


def read_kafboy(body: bytes, content_type: str) -> list[Incoming] | None:
    """Return the pairs of a form or a JSON object; None for anything else."""
    try:
        if not is_form(body, content_type):
            check_utf8(body)
            pairs = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
            return [Incoming(_plain(bytes(value)), key.encode()) for key, value in pairs.items()]
        form = parse_qsl(body.decode("utf-8"), keep_blank_values=True, errors="strict")
    except (Problem, msgspec.MsgspecError, RecursionError, ValueError):
        return None
    return [Incoming(value.encode(), key.encode()) for key, value in form]


def is_form(body: bytes, content_type: str) -> bool:
    """Whether kafboy takes a body as a form."""
    return content_type != "application/json" and body.lstrip()[:1] != b"{"


def _check_items(body: bytes, sign: bytes, limits: Limits) -> None:
    """Raise `Problem` for a body that may have far too many records, before each of them takes memory."""
    if body.count(sign) > _SIGNS * limits.records:
        raise Problem(413, f"the request has more than {limits.records:,} records", limit="records")


def _plain(raw: bytes) -> bytes:
    """A JSON text without its quotes, any other JSON as it is."""
    return msgspec.json.decode(raw, type=str).encode() if raw.startswith(b'"') else raw


def _status(outcome: Outcome) -> int:
    worst = outcome.worst
    if worst is None:
        return 200
    return 207 if outcome.landed else worst.status
