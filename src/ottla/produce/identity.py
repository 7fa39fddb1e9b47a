"""Requests producer ids, under which batches are numbered.

A cluster comes in; an id that no other producer has goes out. A broker that is starting up may answer with an error and
the id -1, under which anything would be accepted twice: that counts as an error.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

from ottla.errors import BrokerError, ErrorCode
from ottla.net import Cluster
from ottla.net.connection import VersionOf
from ottla.net.targets import AnyBroker, CoordinatorKind, CoordinatorOf
from ottla.wire import messages

_INIT_PRODUCER_ID = 22
_HIGHEST_VERSION = 5
"""Version 6 is for transactions that other processes take part in (KIP-939)."""


class ProducerIdentity(NamedTuple):
    """A producer id with its epoch."""

    producer_id: int
    epoch: int


def new_producer_id(cluster: Cluster) -> int:
    """Request an id for a producer without transactions."""
    producer = cluster.call(
        AnyBroker(), lambda version_of: _request(version_of, None, 0.0), check=_check, what="requesting a producer id"
    )
    return producer.producer_id


def transactional_producer_id(
    cluster: Cluster, transactional_id: str, *, transaction_timeout: float, before: ProducerIdentity | None = None
) -> ProducerIdentity:
    """Request the id of a transactional producer with a new epoch.

    This fences its previous user and aborts its transaction.
    """
    return cluster.call(
        CoordinatorOf(CoordinatorKind.TRANSACTION, transactional_id),
        lambda version_of: _request(version_of, transactional_id, transaction_timeout, before),
        check=_check,
        what=f"requesting the producer id of transactional id {transactional_id}",
    )


def _request(
    version_of: VersionOf, transactional_id: str | None, timeout: float, previous: ProducerIdentity | None = None
) -> messages.Message:
    """An InitProducerId request. `previous` asks for the next epoch of that id (KIP-360)."""
    version = version_of(_INIT_PRODUCER_ID, highest=_HIGHEST_VERSION)
    fields = {
        "transactional_id": transactional_id,
        "transaction_timeout": timedelta(seconds=timeout),
        "producer_id": -1 if previous is None else previous.producer_id,
        "producer_epoch": -1 if previous is None else previous.epoch,
    }
    message: messages.Message = messages.compose(messages.request_type(_INIT_PRODUCER_ID, version), fields)
    return message


def _check(response: Any) -> ProducerIdentity:
    """The id in the answer. Raises `BrokerError`, a retriable one if the broker has no id yet."""
    if response.error_code is not ErrorCode.none:
        raise BrokerError(response.error_code, "InitProducerId")
    if response.producer_id < 0:
        raise BrokerError(ErrorCode.coordinator_load_in_progress, "InitProducerId", "the broker has no producer id yet")
    return ProducerIdentity(int(response.producer_id), int(response.producer_epoch))
