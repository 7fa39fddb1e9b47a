"""InitProducerId: returns a new id for an idempotent producer, or the next epoch for a transactional id."""

from __future__ import annotations

from typing import Any

from ottla.errors import ErrorCode
from ottla.testing.fake.context import Context
from ottla.testing.fake.log import Refused
from ottla.testing.fake.messages import Tree
from ottla.testing.fake.state import ClusterState, TransactionalId

KEY = 22
VERSIONS = range(6)  # kio knows version 6, but brokers of Kafka 4.3 do not offer it yet.


def handle(request: Any, state: ClusterState, context: Context) -> Tree:
    """Return an id and an epoch; both are -1 with an error."""
    try:
        context.check()
        producer = _producer(request, state, context)
    except Refused as refused:
        return {"error_code": refused.code, "producer_id": -1, "producer_epoch": -1}
    return {"error_code": ErrorCode.none, "producer_id": producer.producer_id, "producer_epoch": producer.epoch}


def _producer(request: Any, state: ClusterState, context: Context) -> TransactionalId:
    transactional_id = request.transactional_id
    if transactional_id is None:
        return TransactionalId(state.new_producer_id())
    if not transactional_id:
        raise Refused(ErrorCode.invalid_request, "an empty transactional id")
    if state.coordinator(transactional_id) != context.broker:
        raise Refused(ErrorCode.not_coordinator)
    producer_id, epoch = getattr(request, "producer_id", -1), getattr(request, "producer_epoch", -1)
    return state.take_over(transactional_id, producer_id=producer_id, epoch=epoch)
