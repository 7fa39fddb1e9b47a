"""The routes of the REST Proxy's v3 API that write and describe: records as a stream of receipts, or as a batch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from ottla.gateway.access.gate import Gate
from ottla.gateway.access.rules import Verb
from ottla.gateway.http.answers import Outcome, by_row
from ottla.gateway.http.limits import Limits
from ottla.gateway.http.native import refuse_key, visible_topics
from ottla.gateway.http.problems import Problem
from ottla.gateway.http.producing import Producing
from ottla.gateway.http.request import Answer, ClientGone, Request, Send, as_json
from ottla.gateway.http.rest_bodies import Documents, from_v3, read_v3, read_v3_batch
from ottla.gateway.intake import Incoming

_UNDER_WAY = 500
"""Records of one stream that wait for their acknowledgement; then the stream is read no further."""
_END = None


class RestV3:
    """Handlers of v3."""

    def __init__(self, producing: Producing, gate: Gate) -> None:
        self._producing = producing
        self._gate = gate
        self._cluster_id = ""

    async def clusters(self, request: Request) -> Answer:
        """`GET /v3/clusters`."""
        cluster = await self._id()
        return as_json({"kind": "KafkaClusterList", "data": [{"kind": "KafkaCluster", "cluster_id": cluster}]})

    async def cluster(self, request: Request, cluster: str) -> Answer:
        """`GET /v3/clusters/{cluster}`."""
        await self._require(cluster)
        return as_json({"kind": "KafkaCluster", "cluster_id": cluster})

    async def topics(self, request: Request, cluster: str) -> Answer:
        """`GET /v3/clusters/{cluster}/topics`."""
        await self._require(cluster)
        names = await visible_topics(self._producing, self._gate, request.identity)
        directory = self._producing.directory
        described = await directory.ask(lambda: directory.describe(names)) if names else []
        return as_json({"kind": "KafkaTopicList", "data": [_topic(cluster, each) for each in described]})

    async def topic(self, request: Request, cluster: str, topic: str) -> Answer:
        """`GET /v3/clusters/{cluster}/topics/{topic}`."""
        await self._require(cluster)
        self._gate.check(request.identity, Verb.DESCRIBE, topic)
        directory = self._producing.directory
        await directory.require(topic)
        (described,) = await directory.ask(lambda: directory.describe([topic]))
        return as_json(_topic(cluster, described))

    async def batch(self, request: Request, cluster: str, topic: str) -> Answer:
        """`POST /v3/clusters/{cluster}/topics/{topic}/records:batch`."""
        await self._require(cluster)
        self._gate.check(request.identity, Verb.PRODUCE, topic)
        refuse_key(request)
        _check_json(request)
        body = await request.body()
        self._gate.charge(request.connection, request.identity, len(body))
        entries = read_v3_batch(body, request.limits)
        failures: list[dict[str, Any]] = []
        rows, receipts, names = [], [], []
        for name, entry in entries:
            try:
                row, receipt = from_v3(entry, request.limits)
            except Problem as problem:
                failures.append({"id": name, **self._failure(problem)})
                continue
            rows.append(row)
            receipts.append(receipt)
            names.append(name)
        successes: list[dict[str, Any]] = []
        if rows:
            outcome = await self._producing.produce(topic, rows)
            for name, receipt, each in zip(names, receipts, by_row(outcome), strict=True):
                if isinstance(each, Problem):
                    failures.append({"id": name, **self._failure(each)})
                else:
                    successes.append({"id": name, **_receipt(cluster, topic, each, receipt)})
        return as_json({"successes": successes, "failures": failures}, 207)

    async def stream(self, request: Request, send: Send, cluster: str, topic: str) -> int:
        """`POST /v3/clusters/{cluster}/topics/{topic}/records`: a receipt for each record, while records come."""
        await self._require(cluster)
        self._gate.check(request.identity, Verb.PRODUCE, topic)
        refuse_key(request)
        _check_json(request)
        if b"content-encoding" in request.headers:
            raise Problem(415, "a stream of records has no content encoding")
        await self._producing.directory.require(topic)
        request.connection.stream(True)
        pending: asyncio.Queue[asyncio.Task[dict[str, Any]] | Problem | None] = asyncio.Queue(_UNDER_WAY)
        reading = asyncio.ensure_future(self._read(request, cluster, topic, pending))
        started = False
        try:
            while (entry := await pending.get()) is not _END:
                receipt = await entry if isinstance(entry, asyncio.Task) else self._failure(entry)
                if not started:
                    headers = [(b"content-type", b"application/json"), (b"transfer-encoding", b"chunked")]
                    await send({"type": "http.response.start", "status": 200, "headers": headers})
                    started = True
                line = msgspec.json.encode(receipt) + b"\r\n"
                await send({"type": "http.response.body", "body": line, "more_body": True})
            await reading
        finally:
            reading.cancel()
            request.connection.stream(False)
        if not started:
            raise Problem(422, "the request has no records")
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return 200

    async def _read(
        self,
        request: Request,
        cluster: str,
        topic: str,
        pending: asyncio.Queue[asyncio.Task[dict[str, Any]] | Problem | None],
    ) -> None:
        """Start to write each record, in their order; the last entry is the end of the stream."""
        documents = Documents(request.limits.body_bytes)
        try:
            async for piece in self._pieces(request, documents):
                for document in documents.feed(piece):
                    await pending.put(self._start(cluster, topic, document, request.limits))
            documents.end()
        except Problem as problem:  # the records before it are not affected
            await pending.put(problem)
        except ClientGone:
            pass
        await pending.put(_END)

    def _start(
        self, cluster: str, topic: str, document: bytes, limits: Limits
    ) -> asyncio.Task[dict[str, Any]] | Problem:
        try:
            row, receipt = from_v3(read_v3(document, limits), limits)
        except Problem as problem:
            return problem
        return asyncio.ensure_future(self._write(cluster, topic, row, receipt))

    async def _write(self, cluster: str, topic: str, row: Incoming, receipt: dict[str, Any]) -> dict[str, Any]:
        try:
            outcome: Outcome = await self._producing.produce(topic, [row])
        except Problem as problem:
            return self._failure(problem)
        (each,) = by_row(outcome)
        return self._failure(each) if isinstance(each, Problem) else _receipt(cluster, topic, each, receipt)

    def _failure(self, problem: Problem) -> dict[str, Any]:
        """Return what the answer has for a record that is not written; its limit is counted."""
        self._producing.counters.refused(problem)
        return problem.fields()

    async def _pieces(self, request: Request, documents: Documents) -> AsyncIterator[bytes]:
        """Yield the stream piece by piece. Raises `Problem` if no record becomes whole in time, or it lasts too long.

        Time that passes while the caller is busy with a piece does not count.
        """
        limits, now = request.limits, asyncio.get_running_loop().time
        end, whole = now() + limits.write_stream_seconds, 0
        until = now() + limits.body_seconds
        pieces = request.pieces()
        while True:
            try:
                async with asyncio.timeout_at(min(until, end)):
                    piece = await anext(pieces, None)
            except TimeoutError as error:
                if now() >= end:
                    raise _too_long(limits) from error
                text = f"no whole record came within {limits.body_seconds:g} s"
                raise Problem(408, text, limit="body_seconds") from error
            if piece is None:
                return
            self._gate.charge(request.connection, request.identity, len(piece))
            began = now()
            yield piece
            if now() >= end:
                raise _too_long(limits)
            is_whole, whole = documents.count > whole, documents.count
            until = now() + limits.body_seconds if is_whole else until + (now() - began)

    async def _id(self) -> str:
        if not self._cluster_id:
            directory = self._producing.directory
            metadata = await directory.ask(lambda: directory.admin.cluster.metadata([]))
            self._cluster_id = metadata.cluster_id or "unknown"
        return self._cluster_id

    async def _require(self, cluster: str) -> None:
        if cluster != await self._id():
            raise Problem(404, "this gateway serves another cluster: GET /v3/clusters has its id", code=404)


def _too_long(limits: Limits) -> Problem:
    text = f"a stream of records ends after {limits.write_stream_seconds:g} s: begin another one"
    return Problem(408, text, limit="write_stream_seconds")


def _check_json(request: Request) -> None:
    if request.content_type != "application/json":
        raise Problem(415, f"the content type {request.content_type!r} is not supported; accepted is application/json")


def _receipt(cluster: str, topic: str, place: tuple[int, int], parts: dict[str, Any]) -> dict[str, Any]:
    return {
        "error_code": 200,
        "cluster_id": cluster,
        "topic_name": topic,
        "partition_id": place[0],
        "offset": place[1],
        "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        **parts,
    }


def _topic(cluster: str, described: Any) -> dict[str, Any]:
    return {
        "kind": "KafkaTopic",
        "cluster_id": cluster,
        "topic_name": described.name,
        "is_internal": described.internal,
        "replication_factor": described.replicas,
        "partitions_count": len(described.partitions),
    }
