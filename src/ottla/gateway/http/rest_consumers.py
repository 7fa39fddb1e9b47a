"""The routes of the REST Proxy's v2 API for consumer instances: members of real groups, kept by the gateway.

Handlers only: bodies are read in `rest_consumer_bodies`, instances live in `reading.instances`. An instance belongs to
the login that created it, and reads topics that a rule lets this login consume.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from urllib.parse import quote

from ottla.config import check_group
from ottla.errors import ConfigError
from ottla.gateway.access.rules import Verb
from ottla.gateway.http import rest_consumer_bodies as bodies
from ottla.gateway.http.native import refuse_unknown
from ottla.gateway.http.problems import Problem, unknown_partition
from ottla.gateway.http.reading import Reading, accepted
from ottla.gateway.http.request import Answer, ClientGone, Request, as_json
from ottla.gateway.http.rest_bodies import V2, v2_format
from ottla.gateway.reading.instance import Instance, Place
from ottla.gateway.reading.instances import Held, Instances, Key, matching
from ottla.gateway.reading.log_reader import Size
from ottla.gateway.reading.pages import READ_SECONDS
from ottla.model import TopicPartition
from ottla.net.deadline import Deadline

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_LONGEST_GROUP = 255
_SLICE_SECONDS = 0.2
"""How long a read keeps a thread before it lets others have one."""


class RestConsumers:
    """Handlers of `/consumers`. For one event loop."""

    def __init__(
        self, reading: Reading, instances: Instances, *, base_uri: str = "", commits_next: bool = False
    ) -> None:
        self._reading = reading
        self._instances = instances
        self._base_uri = base_uri
        self._commits_next = commits_next

    async def create(self, request: Request, group: str) -> Answer:
        """`POST /consumers/{group}`."""
        self._admit(request)
        if not self._reading.gate.may_somewhere(request.identity, Verb.CONSUME):
            raise Problem(403, f"{request.identity} may consume no topic: no rule allows it", code=40301)
        body = await _body(request)
        name, terms = bodies.read_terms(body, longest_wait=self._reading.limits.read_wait_seconds)
        try:
            check_group("the group", group)
        except ConfigError as error:
            raise Problem(422, str(error), code=42204) from error
        name = name or f"rest-consumer-{uuid.uuid4()}"
        if not _NAME.fullmatch(name) or len(group) > _LONGEST_GROUP or not group.isprintable():
            raise Problem(422, "a name has 1 to 200 of a-z A-Z 0-9 . _ -, a group up to 255 characters", code=42204)
        self._instances.create(Key(request.identity, group, name), terms)
        return _v2({"instance_id": name, "base_uri": self._uri(request, group, name)})

    def _uri(self, request: Request, group: str, name: str) -> str:
        path = f"/consumers/{quote(group, safe='')}/instances/{name}"
        if self._base_uri == "relative":
            return path
        host = request.header(b"host")  # the guard has checked its form
        if self._base_uri or not host:
            return self._base_uri.rstrip("/") + path
        return f"{request.scope.get('scheme') or 'http'}://{host}{path}"

    async def delete(self, request: Request, group: str, instance: str) -> Answer:
        """`DELETE /consumers/{group}/instances/{instance}`."""
        self._admit(request)
        await self._instances.delete(Key(request.identity, group, instance))
        return Answer(204)

    async def subscribe(self, request: Request, group: str, instance: str) -> Answer:
        """`POST .../subscription`."""
        key = self._key(request, group, instance)
        topics, pattern = bodies.read_subscription(await _body(request))
        if pattern:
            try:
                topics = await self._instances.in_thread(lambda: self.match(key.identity, pattern))
            except ValueError as error:
                raise Problem(422, f"topic_pattern: {error}", code=42206) from error
        for topic in topics:
            self._reading.gate.check(request.identity, Verb.CONSUME, topic)
            await self._reading.directory.require(topic)
        await self._instances.run(key, lambda each: each.subscribe(topics, pattern))
        return Answer(204)

    def match(self, identity: str, pattern: str) -> frozenset[str]:
        """Return the topics that an identity may read and that match a pattern. Raises `ValueError`."""
        directory, gate = self._reading.directory, self._reading.gate
        directory.refresh()
        found = matching(directory.topics, pattern)
        return frozenset(name for name in found if gate.may(identity, Verb.CONSUME, name))

    async def subscription(self, request: Request, group: str, instance: str) -> Answer:
        """`GET .../subscription`."""
        key = self._key(request, group, instance)
        topics = await self._instances.run(key, lambda each: each.topics)
        return _v2({"topics": sorted(topics)})

    async def unsubscribe(self, request: Request, group: str, instance: str) -> Answer:
        """`DELETE .../subscription`."""
        await self._instances.run(self._key(request, group, instance), Instance.unsubscribe)
        return Answer(204)

    async def assign(self, request: Request, group: str, instance: str) -> Answer:
        """`POST .../assignments`."""
        key = self._key(request, group, instance)
        partitions = bodies.read_partitions(await _body(request))
        await self._check(request, partitions)
        await self._instances.in_thread(lambda: self._require(partitions))
        await self._instances.run(key, lambda each: each.assign(frozenset(partitions)))
        return Answer(204)

    def _require(self, partitions: Iterable[TopicPartition]) -> None:
        """Raise `Problem` for a partition that does not exist. Blocks."""
        log, deadline = self._reading.pages.log, Deadline.after(READ_SECONDS)
        topics = {tp.topic for tp in partitions}
        known = {name: log.topic(name, topic_id=None, deadline=deadline) for name in topics}
        for tp in partitions:
            if known[tp.topic].partition(tp.partition) is None:
                raise unknown_partition(*tp)

    async def assignment(self, request: Request, group: str, instance: str) -> Answer:
        """`GET .../assignments`."""
        key = self._key(request, group, instance)
        return _v2(bodies.partitions_body(await self._instances.run(key, Instance.assignment)))

    async def commit(self, request: Request, group: str, instance: str) -> Answer:
        """`POST .../offsets`."""
        key = self._key(request, group, instance)
        offsets = bodies.read_offsets(await _body(request), is_next=self._commits_next)
        await self._check(request, offsets or ())
        await self._instances.run(key, lambda each: each.commit(offsets))
        return _v2([])

    async def committed(self, request: Request, group: str, instance: str) -> Answer:
        """`GET .../offsets`, with a body."""
        key = self._key(request, group, instance)
        partitions = bodies.read_partitions(await _body(request))
        await self._check(request, partitions)
        committed = await self._instances.run(key, lambda each: each.committed(partitions))
        return _v2(bodies.committed_body(committed))

    async def seek(self, request: Request, group: str, instance: str) -> Answer:
        """`POST .../positions`."""
        key = self._key(request, group, instance)
        return await self._seek(request, key, bodies.read_positions(await _body(request)))

    async def seek_to_beginning(self, request: Request, group: str, instance: str) -> Answer:
        """`POST .../positions/beginning`."""
        key = self._key(request, group, instance)
        return await self._seek(request, key, dict.fromkeys(bodies.read_partitions(await _body(request)), "earliest"))

    async def seek_to_end(self, request: Request, group: str, instance: str) -> Answer:
        """`POST .../positions/end`."""
        key = self._key(request, group, instance)
        return await self._seek(request, key, dict.fromkeys(bodies.read_partitions(await _body(request)), "latest"))

    async def _seek(self, request: Request, key: Key, places: Mapping[TopicPartition, Place]) -> Answer:
        await self._check(request, places)
        await self._instances.run(key, lambda each: each.seek(places))
        return Answer(204)

    async def records(self, request: Request, group: str, instance: str) -> Answer:
        """`GET .../records`."""
        key = self._key(request, group, instance)
        query = request.query
        refuse_unknown(query, ("timeout", "max_bytes"))
        held = self._instances.get(key)
        form = held.instance.terms.form
        kind = bodies.FORMS[form]
        accepted(request, kind, V2.decode(), "application/json")
        limits = self._reading.limits
        wait_ms = _number(query, "timeout")
        size = Size(min(_number(query, "max_bytes") or limits.read_bytes, limits.read_most_bytes), limits.read_records)
        seconds = held.instance.terms.wait_seconds if not wait_ms else min(wait_ms / 1000, limits.read_wait_seconds)
        async with held.reading:
            await self._instances.run(key, Instance.begin_read)
            await self._gather(request, key, held, size, seconds, is_patient=not wait_ms)
            return await self._take(request, key, size, form)

    async def _gather(
        self, request: Request, key: Key, held: Held, size: Size, seconds: float, *, is_patient: bool
    ) -> None:
        """Wait until there are enough records, or the time is over. Raises `ClientGone`."""
        began = time.monotonic()
        wanted = min(held.instance.terms.min_bytes, size.bytes, self._reading.limits.read_bytes)
        while not self._reading.is_stopping:
            left = began + seconds - time.monotonic()
            if is_patient:  # a first read that is empty only because the group takes a moment would surprise
                left = max(left, held.instance.joining_seconds())
            wait = max(0.0, min(_SLICE_SECONDS, left))
            before = time.monotonic()
            if await self._instances.run(key, lambda each: each.gather(wanted, wait)) >= wanted or left <= 0:  # noqa: B023
                break
            if request.connection.is_lost:
                raise ClientGone
            await asyncio.sleep(max(0.0, before + wait - time.monotonic()))  # it may have nothing to wait for

    async def _take(self, request: Request, key: Key, size: Size, form: str) -> Answer:
        """Return the answer. Records of a client that has gone stay."""
        with ExitStack() as stack:
            ticket = await self._reading.hold(size)
            stack.callback(ticket.free)

            def take(instance: Instance) -> tuple[bytes, Counter[str], int]:
                records = instance.peek(size)
                body, count = bodies.records_body(records, form)
                if request.connection.is_lost:
                    raise ClientGone
                instance.take(count)
                size_bytes = sum(len(each.key or b"") + len(each.value or b"") for each in records[:count])
                return body, Counter(each.topic for each in records[:count]), size_bytes

            body, topics, size_bytes = await self._instances.run(key, take)
            ticket.resize(len(body))
            for topic, rows in topics.items():
                self._reading.counters.read(topic, rows, size_bytes * rows // topics.total())
            self._reading.gate.spend(request.connection, request.identity, size_bytes)
            answer = Answer(200, body, bodies.FORMS[form].encode())
            answer.release = stack.pop_all().close
            return answer

    def _admit(self, request: Request) -> None:
        self._reading.charge(request)

    def _key(self, request: Request, group: str, instance: str) -> Key:
        """Return what stands for an instance. Raises `Problem` if this client has none of that name."""
        self._admit(request)
        key = Key(request.identity, group, instance)
        self._instances.get(key)
        return key

    async def _check(self, request: Request, partitions: Iterable[TopicPartition]) -> None:
        for topic in {tp.topic for tp in partitions}:
            self._reading.gate.check(request.identity, Verb.CONSUME, topic)
            await self._reading.directory.require(topic)


async def _body(request: Request) -> bytes:
    body = await request.body()
    if body:
        v2_format(request.content_type)
    return body


def _number(query: Mapping[str, str], name: str) -> int:
    """Return a parameter, 0 if it is missing or says that the default is wanted. Raises `Problem`."""
    text = query.get(name, "-1")
    if not text.isascii() or not text.removeprefix("-").isdecimal() or len(text) > 19:
        raise Problem(400, f"{name} is {text[:50]!r}: write a whole number", code=40002)
    return max(0, int(text))


def _v2(value: object) -> Answer:
    answer = as_json(value)
    answer.content_type = V2
    return answer
