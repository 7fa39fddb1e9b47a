"""The routes of the REST Proxy's v2 API that write and describe, with what its users miss.

Text keys and values, headers and timestamps, `?async=true` and plain `application/json` come from its relatives. If all
records of a request failed, the status says so, unless the gateway is set to be as v2 was. Consumer instances are in
`rest_consumers.py`.
"""

from __future__ import annotations

from typing import Any

from ottla.admin import TopicDescription
from ottla.gateway.access.gate import Gate
from ottla.gateway.access.rules import Verb
from ottla.gateway.http.answers import Outcome
from ottla.gateway.http.native import (
    KEY_HEADER,
    digest_of,
    key_name,
    refuse_key,
    refuse_unknown,
    retry_headers,
    visible_topics,
)
from ottla.gateway.http.problems import Problem, unknown_partition
from ottla.gateway.http.producing import Ack, Producing
from ottla.gateway.http.request import Answer, Request, as_json
from ottla.gateway.http.rest_bodies import V2, names_of, read_v2, v2_answer, v2_format
from ottla.model import TopicPartition

_ASK_SECONDS = 10.0


class Rest:
    """Handlers of v2."""

    def __init__(self, producing: Producing, gate: Gate, *, is_honest: bool = True) -> None:
        self._producing = producing
        self._gate = gate
        self._is_honest = is_honest

    async def produce(self, request: Request, topic: str) -> Answer:
        """`POST /topics/{topic}`."""
        return await self._produce(request, topic, None)

    async def produce_to(self, request: Request, topic: str, partition: str) -> Answer:
        """`POST /topics/{topic}/partitions/{partition}`."""
        return await self._produce(request, topic, parse_partition(partition))

    async def _produce(self, request: Request, topic: str, partition: int | None) -> Answer:
        self._gate.check(request.identity, Verb.PRODUCE, topic)
        form = v2_format(request.content_type)
        query = request.query
        if query:
            refuse_unknown(query, ("async",))
        is_async = query.get("async") == "true"
        if is_async:
            refuse_key(request)
        body = await request.body()
        self._gate.charge(request.connection, request.identity, len(body))
        rows = read_v2(body, form, partition=partition, limits=request.limits)
        if is_async:
            await self._producing.produce(topic, rows, Ack.NONE)
            return Answer(204)
        if KEY_HEADER in request.headers:
            outcome = await self._producing.produce_once(
                topic, rows, key_name(request), digest_of(request, topic, body)
            )
        else:
            outcome = await self._producing.produce(topic, rows)
        return self._answer(outcome)

    def _answer(self, outcome: Outcome) -> Answer:
        body = v2_answer(outcome)
        worst = outcome.worst
        if worst is None:
            return Answer(200, body, V2)
        headers = ((b"ottla-failed-records", b"%d" % outcome.failed),)
        status = worst.status if worst.status in (401, 403) or (self._is_honest and not outcome.landed) else 200
        return Answer(status, body, V2, headers + retry_headers(status))

    async def topics(self, request: Request) -> Answer:
        """`GET /topics`."""
        return Answer(200, names_of(await visible_topics(self._producing, self._gate, request.identity)), V2)

    async def topic(self, request: Request, topic: str) -> Answer:
        """`GET /topics/{topic}`."""
        described = await self._described(request, topic)
        directory = self._producing.directory
        settings = await directory.ask(lambda: directory.admin.settings(topic, timeout=_ASK_SECONDS))
        return _v2(
            {
                "name": topic,
                "configs": {name: each.value for name, each in settings[topic].items() if each.value is not None},
                "partitions": partitions_of(described),
            }
        )

    async def partitions(self, request: Request, topic: str) -> Answer:
        """`GET /topics/{topic}/partitions`."""
        return _v2(partitions_of(await self._described(request, topic)))

    async def partition(self, request: Request, topic: str, partition: str) -> Answer:
        """`GET /topics/{topic}/partitions/{partition}`."""
        number = parse_partition(partition)
        for each in partitions_of(await self._described(request, topic)):
            if each["partition"] == number:
                return _v2(each)
        raise unknown_partition(topic, number)

    async def offsets(self, request: Request, topic: str, partition: str) -> Answer:
        """`GET /topics/{topic}/partitions/{partition}/offsets`."""
        number = parse_partition(partition)
        described = await self._described(request, topic)
        if all(each["partition"] != number for each in partitions_of(described)):
            raise unknown_partition(topic, number)
        directory = self._producing.directory
        (found,) = (
            await directory.ask(
                lambda: directory.admin.log_ranges([TopicPartition(topic, number)], timeout=_ASK_SECONDS)
            )
        ).values()
        return _v2({"beginning_offset": found.start, "end_offset": found.stop})

    async def brokers(self, request: Request) -> Answer:
        """`GET /brokers`."""
        directory = self._producing.directory
        metadata = await directory.ask(lambda: directory.admin.cluster.metadata([]))
        return _v2({"brokers": sorted(metadata.brokers)})

    async def _described(self, request: Request, topic: str) -> TopicDescription:
        self._gate.check(request.identity, Verb.DESCRIBE, topic)
        directory = self._producing.directory
        await directory.require(topic)
        (described,) = await directory.ask(lambda: directory.describe([topic]))
        return described


def partitions_of(described: TopicDescription) -> list[dict[str, Any]]:
    """Return partitions as v2 has them."""
    return [
        {
            "partition": each.index,
            "leader": each.leader,
            "replicas": [
                {"broker": broker, "leader": broker == each.leader, "in_sync": broker in each.isr}
                for broker in each.replicas
            ],
        }
        for each in described.partitions
    ]


def parse_partition(text: str) -> int:
    """Return the number of a partition. Raises `Problem`."""
    if not text.isascii() or not text.isdecimal() or len(text) > 10:
        raise Problem(404, f"{text[:50]!r} is not a partition", code=40402)
    return int(text)


def _v2(value: object) -> Answer:
    answer = as_json(value)
    answer.content_type = V2
    return answer
