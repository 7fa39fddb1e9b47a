"""Requests to every broker of a cluster: returns each response, or waits until all brokers agree.

Comes in: a cluster and a function that builds the request. Goes out: each broker's response or error. All brokers are
asked at the same time, over the cluster's shared connections. It must not know any API.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ottla.errors import BrokerError, NetworkError, OttlaError
from ottla.net.cluster import Cluster
from ottla.net.connection import VersionOf
from ottla.net.deadline import Deadline
from ottla.net.metadata import Broker
from ottla.net.pending import Pending
from ottla.wire import messages

Build = Callable[[VersionOf], messages.Message]
Answers = dict[Broker, Any]
"""A response, or the `NetworkError` instead of it."""


def ask_each(cluster: Cluster, brokers: Iterable[Broker], build: Build, *, deadline: Deadline) -> Answers:
    """Return the response of each broker, or its `NetworkError`. Does not retry."""
    limit = deadline.sooner(cluster.timeouts.request)
    responses: Answers = {}
    requests: list[tuple[Broker, Pending]] = []
    for broker in brokers:
        try:
            connection = cluster.connection(broker, deadline=deadline)
            requests.append((broker, connection.submit_message(build(connection.version), deadline=limit)))
        except NetworkError as exc:
            responses[broker] = exc
    # All requests are on their way before the first response is awaited.
    for broker, pending in requests:
        try:
            responses[broker] = pending.response()
        except NetworkError as exc:
            responses[broker] = exc
    return responses


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
