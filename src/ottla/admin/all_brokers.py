"""Requests to many brokers at once: returns each response, or waits until all brokers agree.

Comes in: a cluster, brokers, and a function that builds the request of each. Goes out: each broker's response or error.
All requests are sent before the first response is awaited, over the cluster's shared connections. It must not know any
API.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ottla.errors import BrokerError, NetworkError, OttlaError
from ottla.net.cluster import Cluster
from ottla.net.connection import VersionOf
from ottla.net.deadline import Deadline
from ottla.net.metadata import Broker
from ottla.net.pending import Pending
from ottla.wire import messages

Build = Callable[[VersionOf], messages.Message | messages.Encoded]
Answers = dict[Broker, Any]
"""A response, or the `NetworkError` instead of it."""


@dataclass(slots=True)
class Traffic:
    """How many requests were sent, and how large the responses were."""

    requests: int = 0
    size_bytes: int = 0


def ask_each(cluster: Cluster, brokers: Iterable[Broker], build: Build, *, deadline: Deadline) -> Answers:
    """Return the response of each broker, or its `NetworkError`. Does not retry. Raises any other error."""
    asked = list(brokers)
    answers = ask_all(cluster, [(broker, build) for broker in asked], deadline=deadline)
    return {broker: network_only(answer) for broker, answer in zip(asked, answers, strict=True)}


def network_only(answer: Any) -> Any:
    """Return a response or a `NetworkError`. Raises any other error."""
    if isinstance(answer, OttlaError) and not isinstance(answer, NetworkError):
        raise answer
    return answer


def ask_all(
    cluster: Cluster,
    requests: Sequence[tuple[Broker, Build]],
    *,
    deadline: Deadline,
    traffic: Traffic | None = None,
    read: Callable[[Pending], Any] = Pending.response,
) -> list[Any]:
    """Return the response to each request, or the `OttlaError` instead of it, in the order of the requests.

    `read` turns a completed request into its response. A broker may get several requests. Once one has failed to
    connect, its other requests fail at once. Does not retry.
    """
    limit = deadline.sooner(cluster.timeouts.request)
    responses: list[Any] = [None] * len(requests)
    pending: list[tuple[int, Pending]] = []
    unreachable: dict[int, NetworkError] = {}
    for number, (broker, build) in enumerate(requests):
        if broker.id in unreachable:
            responses[number] = unreachable[broker.id]
            continue
        try:
            connection = cluster.connection(broker, deadline=deadline)
            pending.append((number, connection.submit_message(build(connection.version), deadline=limit)))
        except NetworkError as exc:
            responses[number] = unreachable[broker.id] = exc
        except OttlaError as exc:  # the broker is too old for this request
            responses[number] = exc
    # All requests are on their way before the first response is awaited.
    for number, request in pending:
        try:
            responses[number] = read(request)
            count(traffic, request)
        except OttlaError as exc:
            responses[number] = exc
    return responses


def count(traffic: Traffic | None, request: Pending) -> None:
    """Add a request that was answered."""
    if traffic is not None:
        traffic.requests += 1
        traffic.size_bytes += len(request.result())


def await_everywhere(
    cluster: Cluster,
    build: Build,
    *,
    judge: Callable[[Any], BrokerError | None],
    what: str,
    deadline: Deadline,
) -> None:
    """Wait until the response of every broker passes `judge`. A broker that is gone soon drops out of the metadata."""
    attempts = cluster.attempts(what, deadline)
    while (objection := _objection(cluster, build, judge, deadline)) is not None:
        attempts.failed(objection)


def _objection(
    cluster: Cluster, build: Build, judge: Callable[[Any], BrokerError | None], deadline: Deadline
) -> OttlaError | None:
    """Return the first error or objection of any broker."""
    brokers = cluster.metadata(deadline=deadline).brokers.values()
    for response in ask_each(cluster, brokers, build, deadline=deadline).values():
        if isinstance(response, NetworkError):
            return response
        try:
            objection = judge(response)
        except BrokerError as exc:
            return exc
        if objection is not None:
            return objection
    return None
