"""Group reads: a unit of records is leased to a client, and done once the client says so in a second request.

`fetch` hands out, `acknowledge`, `release` and `extend` end or prolong a lease. An answer that gets lost loses nothing:
its unit comes again, to this client or another one. Handlers only; `reading.groups` does the work.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

import msgspec

from ottla.gateway.http.bodies import check_utf8
from ottla.gateway.http.native import refuse_unknown
from ottla.gateway.http.problems import Problem
from ottla.gateway.http.reading import FORMS, Reading, accepted, whole
from ottla.gateway.http.reads import SIZES, body_of, when
from ottla.gateway.http.request import Answer, ClientGone, Request, as_json
from ottla.gateway.reading import tokens
from ottla.gateway.reading.groups import Group, Groups, Terms, Unit, full_name, partitions_of
from ottla.gateway.reading.tokens import Token

T = TypeVar("T")
_FETCH = ("start", "lease_seconds", "max_attempts", "ordered", *SIZES)
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_THREADS = 8
_SHORTEST_NAP, _LONGEST_NAP = 0.02, 0.25
_MOST_ENDED = 10_000
_MOST_SHOWN = 100


class _Lease(msgspec.Struct, forbid_unknown_fields=True):
    lease: str
    upto: int | None = None
    failed: str | None = None


class GroupReads:
    """Handlers of `/v1/groups`. For one event loop."""

    def __init__(self, reading: Reading, groups: Groups) -> None:
        self._reading = reading
        self._groups = groups
        self._threads = ThreadPoolExecutor(_THREADS, "ottla-gateway-groups")
        self._ended: OrderedDict[tuple[str, str], int] = OrderedDict()
        """Leases that were acknowledged here, with their groups: a client that did not get the answer asks again."""

    async def fetch(self, request: Request, group: str, topic: str) -> Answer:
        """`POST /v1/groups/{group}/topics/{topic}/fetch`."""
        reading, query = self._reading, request.query
        reading.admit(request, topic)
        refuse_unknown(query, _FETCH)
        kind = accepted(request, *FORMS)
        wish = reading.wish(query)
        found = await self._open(request, group, topic, _terms(query))
        with ExitStack() as held:
            ticket = await reading.hold(wish.size)
            held.callback(ticket.free)
            take = partial(self._groups.take, found, wish.size, wish.isolation)
            unit = await self._next(request, found, take, time.monotonic() + wish.wait_seconds)
            if unit is None:
                halted = await self._run(partial(self._groups.halted, found))
                if halted:
                    raise Problem(410, f"nothing is handed out: {halted}", code=41003)
                return Answer(204)
            head = {
                "lease": unit.token.text(),
                "lease_seconds": found.charter.lease_seconds,
                "attempt": unit.attempt,
                "topic": topic,
                "partition": unit.token.unit.partition,
                "start": unit.token.unit.start,
                "stop": unit.token.reached,
            }
            render = partial(body_of, kind, unit.taken.batches, head, wish.shape)
            body = await self._run(render)
            reading.counters.read(topic, unit.taken.rows, unit.taken.size_bytes)
            reading.gate.spend(request.connection, request.identity, unit.taken.size_bytes)
            ticket.resize(len(body))
            headers = ((b"ottla-lease", unit.token.text().encode()), (b"ottla-attempt", b"%d" % unit.attempt))
            answer = Answer(200, body, kind.encode(), headers)
            answer.release = held.pop_all().close
            return answer

    async def acknowledge(self, request: Request, group: str, topic: str) -> Answer:
        """`POST /v1/groups/{group}/topics/{topic}/acknowledge`."""
        lease, token = await self._lease(request, topic)
        if lease.failed is not None:
            raise Problem(400, "failed belongs to release")
        upto = token.reached if lease.upto is None else lease.upto
        if not token.unit.start <= upto <= token.reached:
            raise Problem(400, f"upto is {upto}; accepted are {token.unit.start} to {token.reached}")
        ended = (full_name(group, topic), lease.lease)
        if self._ended.get(ended) == upto:
            return Answer(204)
        found = await self._find(group, topic)
        if found is None or not await self._run(partial(self._groups.acknowledge, found, token, upto)):
            raise _expired()
        self._ended[ended] = upto
        if len(self._ended) > _MOST_ENDED:
            self._ended.popitem(last=False)
        return Answer(204)

    async def release(self, request: Request, group: str, topic: str) -> Answer:
        """`POST /v1/groups/{group}/topics/{topic}/release`."""
        lease, token = await self._lease(request, topic)
        found = await self._find(group, topic)
        if found is None or not await self._run(partial(self._groups.release, found, token, lease.failed)):
            raise _expired()
        return Answer(204)

    async def extend(self, request: Request, group: str, topic: str) -> Answer:
        """`POST /v1/groups/{group}/topics/{topic}/extend`."""
        _, token = await self._lease(request, topic)
        found = await self._find(group, topic)
        if found is None or not await self._run(partial(self._groups.extend, found, token)):
            raise _expired()
        return as_json({"lease_seconds": found.charter.lease_seconds})

    async def state(self, request: Request, group: str, topic: str) -> Answer:
        """`GET /v1/groups/{group}/topics/{topic}`."""
        self._reading.admit(request, topic)
        found = await self._find(group, topic)
        if found is None:
            raise Problem(404, f"no group {group!r} on topic {topic!r}: the first fetch creates it", code=40406)
        snapshot, failures = await self._run(partial(self._groups.look, found))
        charter = found.charter
        return as_json(
            {
                "group": group,
                "topic": topic,
                "name": found.name,
                "lease_seconds": charter.lease_seconds,
                "max_attempts": charter.max_attempts,
                "ordered": charter.ordered,
                "partitions": partitions_of(snapshot),
                "counts": snapshot.counts._asdict(),
                "halted": snapshot.halted,
                "failures": [
                    {
                        "partition": each.range.partition,
                        "start": each.range.start,
                        "stop": each.range.stop,
                        "attempts": each.attempts,
                        "reason": each.reason,
                    }
                    for each in failures[:_MOST_SHOWN]
                ],
            }
        )

    async def delete(self, request: Request, group: str, topic: str) -> Answer:
        """`DELETE /v1/groups/{group}/topics/{topic}`."""
        self._reading.admit(request, topic)
        _check_name(group)
        await self._run(partial(self._groups.forget, group, topic))
        return Answer(204)

    def close(self) -> None:
        """End all threads; leases stay."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._groups.close()

    async def _open(self, request: Request, group: str, topic: str, terms: Terms) -> Group:
        """Return a group, created if it is new."""
        _check_name(group)
        await self._reading.directory.require(topic)
        return await self._run(partial(self._groups.open, group, topic, terms, request.identity))

    async def _find(self, group: str, topic: str) -> Group | None:
        """Return a group that exists, None for any other."""
        _check_name(group)
        await self._reading.directory.require(topic)
        return await self._run(partial(self._groups.find, group, topic))

    async def _next(self, request: Request, group: Group, take: Callable[[], Unit | None], until: float) -> Unit | None:
        """Return the next unit, None if none comes in time. Raises `ClientGone`; then nothing stays leased."""
        run = self._reading.pages.readers.run
        unit = await run(group.topic, -1, take)
        if unit is not None or until <= time.monotonic():
            return unit
        gone = asyncio.ensure_future(request.gone())
        try:
            # One client of a group asks its store again and again; the others wait behind it.
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + until - time.monotonic()):
                await group.turn.acquire()
        except TimeoutError:
            gone.cancel()
            return None
        try:
            nap = _SHORTEST_NAP
            while unit is None and until > time.monotonic() and not self._reading.is_stopping and not gone.done():
                await asyncio.sleep(nap)
                nap = min(_LONGEST_NAP, nap * 2)
                unit = await run(group.topic, -1, take)
            if gone.done():
                if unit is not None:
                    await self._run(partial(self._groups.release, group, unit.token, None))
                raise ClientGone
            return unit
        finally:
            group.turn.release()
            gone.cancel()

    async def _lease(self, request: Request, topic: str) -> tuple[_Lease, Token]:
        self._reading.admit(request, topic)
        refuse_unknown(request.query, ())
        body = await request.body()
        check_utf8(body)
        try:
            lease = msgspec.json.decode(body, type=_Lease)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Problem(400, f'the body must be {{"lease": "..."}}: {error}') from error
        try:
            return lease, tokens.parse(lease.lease, topic)
        except ValueError as error:
            raise Problem(400, f"the lease is not one of a gateway: {error}") from error

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _terms(query: object) -> Terms:
    given: dict[str, str] = dict(query)  # type: ignore[call-overload]
    seconds = whole(given, "lease_seconds", 86_400)
    ordered = given.get("ordered")
    if ordered not in (None, "true", "false"):
        raise Problem(400, f"ordered is {ordered[:50]!r}; accepted are true and false")
    return Terms(
        start=when(given.get("start", "earliest"), "start"),
        lease_seconds=None if seconds is None else float(seconds),
        max_attempts=whole(given, "max_attempts", 1_000),
        is_ordered=None if ordered is None else ordered == "true",
    )


def _check_name(group: str) -> None:
    if not _NAME.fullmatch(group):
        raise Problem(400, "the name of a group has 1 to 100 of a-z A-Z 0-9 . _ -")


def _expired() -> Problem:
    text = "the lease is not held any more: it has expired, and the records are handed out again, or they are done"
    return Problem(409, text, code=40904)
