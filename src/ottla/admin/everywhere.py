"""Questions to every broker of a cluster: what each one answers, or waiting until all of them agree.

A cluster and a function that builds the request come in; each broker's answer or error goes out. Brokers are asked at
the same time, over the connections that everybody shares; nothing here knows an API.
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
"""A response, or the NetworkError that came instead."""


def ask_each(cluster: Cluster, brokers: Iterable[Broker], build: Build, *, deadline: Deadline) -> Answers:
    """What each broker answers, or the error of the network that came instead, which is not tried again."""
    limit = deadline.sooner(cluster.timeouts.request)
    answers: Answers = {}
    asked: list[tuple[Broker, Pending]] = []
    for broker in brokers:
        try:
            connection = cluster.connection(broker, deadline=deadline)
            asked.append((broker, connection.submit_message(build(connection.version), deadline=limit)))
        except NetworkError as exc:
            answers[broker] = exc
    for broker, pending in asked:
        try:
            answers[broker] = pending.response()
        except NetworkError as exc:
            answers[broker] = exc
    return answers


def await_everywhere(
    cluster: Cluster,
    build: Build,
    *,
    judge: Callable[[Any], BrokerError | None],
    what: str,
    deadline: Deadline,
) -> None:
    """Waits until the answer of every broker passes `judge`; a broker that is gone is not listed for long."""
    effort = cluster.attempts(what, deadline)
    while (objection := _objection(cluster, build, judge, deadline)) is not None:
        effort.failed(objection)


def _objection(
    cluster: Cluster, build: Build, judge: Callable[[Any], BrokerError | None], deadline: Deadline
) -> OttlaError | None:
    brokers = cluster.metadata(deadline=deadline).brokers.values()
    for answer in ask_each(cluster, brokers, build, deadline=deadline).values():
        if isinstance(answer, NetworkError):
            return answer
        try:
            objection = judge(answer)
        except BrokerError as exc:
            return exc
        if objection is not None:
            return objection
    return None
