"""InitProducerId: a new id for an idempotent producer; the next epoch for a transactional id."""

from __future__ import annotations

from typing import Any

from ottla.errors import ErrorCode
from ottla.testing.fake.context import Context
from ottla.testing.fake.log import Refused
from ottla.testing.fake.messages import Tree
from ottla.testing.fake.state import ClusterState, TransactionalId

KEY = 22
VERSIONS = range(6)  # 6 is known to kio, but brokers of Kafka 4.3 do not offer it yet


def handle(request: Any, state: ClusterState, context: Context) -> Tree:
    """With an error the id and epoch are -1 and must not be used."""
    try:
        context.check()
        given = _give(request, state, context)
    except Refused as refused:
        return {"error_code": refused.code, "producer_id": -1, "producer_epoch": -1}
    return {"error_code": ErrorCode.none, "producer_id": given.producer_id, "producer_epoch": given.epoch}


def _give(request: Any, state: ClusterState, context: Context) -> TransactionalId:
    name = request.transactional_id
    if name is None:
        return TransactionalId(state.new_producer_id())
    if not name:
        raise Refused(ErrorCode.invalid_request, "an empty transactional id")
    if state.coordinator(name) != context.broker:
        raise Refused(ErrorCode.not_coordinator)
    producer_id, epoch = getattr(request, "producer_id", -1), getattr(request, "producer_epoch", -1)
    return state.take_over(name, producer_id=producer_id, epoch=epoch)
