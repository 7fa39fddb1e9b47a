"""The native routes: records in whatever form a client has them, and what is known about topics."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ottla.gateway.access.gate import Gate
from ottla.gateway.access.rules import Verb
from ottla.gateway.http import answers
from ottla.gateway.http.bodies import read_rows
from ottla.gateway.http.problems import Problem
from ottla.gateway.http.producing import Ack, Producing, parse_ack
from ottla.gateway.http.request import Answer, Request, as_json

KEY_HEADER = b"idempotency-key"
_LONGEST_KEY = 200
_PARAMETERS = ("ack", "detail", "shape", "key")


class Native:
    """Handlers of `/v1`."""

    def __init__(self, producing: Producing, gate: Gate) -> None:
        self._producing = producing
        self._gate = gate

    async def produce(self, request: Request, topic: str) -> Answer:
        """`POST /v1/topics/{topic}/records`."""
        self._gate.check(request.identity, Verb.PRODUCE, topic)
        query = request.query
        if query:
            refuse_unknown(query, _PARAMETERS)
        ack = parse_ack(query.get("ack", ""), has_spool=self._producing.has_spool)
        body = await request.body()
        self._gate.charge(request.connection, request.identity, len(body))
        rows = read_rows(body, request.header(b"content-type"), query, limits=request.limits)
        if KEY_HEADER in request.headers:
            if ack is not Ack.ALL:
                raise Problem(400, f"an Idempotency-Key needs ack=all, not ack={ack.value}")
            outcome = await self._producing.produce_once(
                topic, rows, key_name(request), digest_of(request, topic, body)
            )
        else:
            outcome = await self._producing.produce(topic, rows, ack)
        if ack is Ack.NONE:
            return Answer(204)
        status, text = answers.native(outcome, detail=query.get("detail") == "record")
        if ack is Ack.SPOOL and not outcome.missed:
            return as_json({"records": outcome.count, "ack": "spool"}, 202)
        return Answer(status, text, headers=retry_headers(status))

    async def topics(self, request: Request) -> Answer:
        """`GET /v1/topics`."""
        return as_json({"topics": await visible_topics(self._producing, self._gate, request.identity)})

    async def topic(self, request: Request, topic: str) -> Answer:
        """`GET /v1/topics/{topic}`."""
        self._gate.check(request.identity, Verb.DESCRIBE, topic)
        directory = self._producing.directory
        await directory.require(topic)
        ranges = await directory.ask(lambda: directory.admin.log_ranges(topic, timeout=10.0))
        partitions = [
            {"partition": tp.partition, "begin_offset": found.start, "end_offset": found.stop}
            for tp, found in sorted(ranges.items())
        ]
        return as_json({"name": topic, "partitions": partitions})


def refuse_unknown(query: object, accepted: Sequence[str]) -> None:
    """Raise `Problem` for a parameter that a route does not have."""
    for name in query:  # type: ignore[attr-defined]
        if name not in accepted:
            raise Problem(400, f"no parameter {name!r}; accepted are {', '.join(accepted)}")


def retry_headers(status: int) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers that say when to try again."""
    return ((b"retry-after", b"1"),) if status == 503 else ()


def key_name(request: Request) -> str:
    """Return the idempotency key of a request, which belongs to its client alone. Raises `Problem`."""
    key = request.header(KEY_HEADER)
    if not 0 < len(key) <= _LONGEST_KEY or not key.isascii() or not key.isprintable():
        raise Problem(400, f"an Idempotency-Key has 1 to {_LONGEST_KEY} printable ASCII characters")
    return f"{request.identity}/{key}"


def refuse_key(request: Request) -> None:
    """Raise `Problem` for a key on a route that keeps none: its client would repeat the request and write twice."""
    if KEY_HEADER in request.headers:
        raise Problem(400, "an Idempotency-Key is not served here: use POST /v1/topics/{topic}/records, or v2")


def digest_of(request: Request, topic: str, body: bytes) -> bytes:
    """Return what tells one request from another under the same key."""
    digest = hashlib.sha256()
    for part in (request.path.encode(), topic.encode(), request.content_type.encode(), request.scope["query_string"]):
        digest.update(b"%d:" % len(part) + part)
    digest.update(body)
    return digest.digest()


async def visible_topics(producing: Producing, gate: Gate, identity: str) -> list[str]:
    """Return the names of the topics that a client may know about."""
    directory = producing.directory
    await directory.ask(directory.refresh)
    if not directory.topics and not directory.is_fresh:
        raise Problem(503, "no broker has answered yet", code=50302, retry_after=1)
    return [name for name in sorted(directory.topics) if gate.may(identity, Verb.DESCRIBE, name)]
