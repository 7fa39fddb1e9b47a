"""The brokers of a cluster as its controller registered them, and what each of them speaks.

Comes in: a cluster. Goes out: `RegisteredBroker` values, also of brokers that are fenced because they are down, and
`BrokerVersions`: protocol versions and features by broker. A broker that does not answer must not spoil the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ottla.admin.all_brokers import ask_each
from ottla.errors import BrokerError, ErrorCode, NetworkError
from ottla.net.cluster import Cluster
from ottla.net.deadline import Deadline
from ottla.net.metadata import Broker
from ottla.net.targets import AnyBroker, Target
from ottla.wire import messages

API_VERSIONS, DESCRIBE_CLUSTER = 18, 60
_ANY = AnyBroker()


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """A broker that the controller knows. A fenced one serves nothing: it is down, starting, or cut off."""

    id: int
    host: str
    port: int
    rack: str | None = None
    is_fenced: bool = False


@dataclass(frozen=True, slots=True)
class BrokerVersions:
    """What one broker speaks. Features are pairs of lowest and highest level."""

    apis: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """The lowest and highest version of each API, by its key."""
    supported: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    finalized: Mapping[str, int] = field(default_factory=dict)
    """The level of each feature that the whole cluster uses, such as metadata.version."""
    finalized_epoch: int = -1


def registered_brokers(cluster: Cluster, *, via: Target = _ANY, deadline: Deadline) -> dict[int, RegisteredBroker]:
    """Return all registered brokers by id; fenced ones since Kafka 4.0 (KIP-1073). Raises as `Cluster.call` does."""

    def check(response: Any) -> dict[int, RegisteredBroker]:
        if response.error_code is not ErrorCode.none:
            raise BrokerError(response.error_code, "describing the cluster", response.error_message)
        return {int(row.broker_id): _registered(row) for row in response.brokers}

    fields = {"include_cluster_authorized_operations": False, "include_fenced_brokers": True, "endpoint_type": 1}
    return cluster.call(
        via,
        lambda version_of: messages.compose(
            messages.request_type(DESCRIBE_CLUSTER, version_of(DESCRIBE_CLUSTER)), fields
        ),
        check=check,
        what="describing the cluster",
        deadline=deadline,
    )


def find_versions(
    cluster: Cluster, brokers: Iterable[Broker], *, deadline: Deadline
) -> dict[int, BrokerVersions | NetworkError]:
    """Return what each broker speaks, or why it did not answer. The smallest request shows that a broker answers."""
    fields = {"client_software_name": "ottla", "client_software_version": "0"}
    responses = ask_each(
        cluster,
        brokers,
        lambda version_of: messages.compose(messages.request_type(API_VERSIONS, version_of(API_VERSIONS)), fields),
        deadline=deadline,
    )
    return {
        broker.id: response if isinstance(response, NetworkError) else read_versions(response)
        for broker, response in responses.items()
    }


def read_versions(response: Any) -> BrokerVersions:
    """Return the versions and features in a response to ApiVersions; features since version 3."""
    return BrokerVersions(
        apis={int(row.api_key): (int(row.min_version), int(row.max_version)) for row in response.api_keys},
        supported={
            row.name: (int(row.min_version), int(row.max_version))
            for row in getattr(response, "supported_features", ())
        },
        finalized={row.name: int(row.max_version_level) for row in getattr(response, "finalized_features", ())},
        finalized_epoch=int(getattr(response, "finalized_features_epoch", -1)),
    )


def _registered(row: Any) -> RegisteredBroker:
    return RegisteredBroker(
        int(row.broker_id), row.host, int(row.port), getattr(row, "rack", None), bool(getattr(row, "is_fenced", False))
    )
