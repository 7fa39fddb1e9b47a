"""The messages that every client starts with, as tables of fields by version.

Comes in: an API and a version. Goes out: the class of its request or response; `entities` reads its fields and
`entity_writer` writes them. Names and values match kio's classes. All other messages come from kio (`schemas`), whose
import takes as long as everything else that a client needs for its first record.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any, ClassVar, Final, NamedTuple

__all__ = ["APIS", "REQUIRED", "Api", "Entity", "Field", "request_type", "response_type"]

REQUIRED: Final = object()
"""The default of a field that has none."""
_NEVER = 1 << 15  # beyond every version


class Field(NamedTuple):
    """A field of one version of a message."""

    name: str
    kind: str | type
    """The type of a single value: Kafka's name of a primitive type, or the class of an entity."""
    is_array: bool
    optional: bool
    """Whether the value, or the array, may be None."""
    tag: int | None
    """The number of a tagged field (KIP-482); None for a plain one."""
    default: Any
    """The value if it is not given, or `REQUIRED`."""


class Entity:
    """A message or a part of one. Each subclass has the fields of one version."""

    __fields__: ClassVar[tuple[Field, ...]] = ()
    __names__: ClassVar[frozenset[str]] = frozenset()
    __defaults__: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    __api_key__: ClassVar[int]
    __version__: ClassVar[int]
    __flexible__: ClassVar[bool]

    def __init__(self, **values: Any) -> None:
        if values.keys() != self.__names__:
            values = {**self.__defaults__, **values}
            if values.keys() != self.__names__:
                raise TypeError(self._misfit(values))
        self.__dict__.update(values)  # responses have thousands of entities: do no work per field

    def _misfit(self, values: Mapping[str, Any]) -> str:
        name = f"{type(self).__name__} v{self.__version__}"
        unknown = ", ".join(sorted(values.keys() - self.__names__))
        return f"{name} has no {unknown}" if unknown else f"{name} needs {', '.join(self.__names__ - values.keys())}"

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if type(other) is type(self) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in self.__fields__)
        return f"{type(self).__name__}({values})"


class Row(NamedTuple):
    """A field in the versions `[since, until)`. It may be null from version `nullable` on."""

    name: str
    kind: str | Part | list[str] | list[Part]
    """A list stands for an array of its element."""
    since: int = 0
    until: int = _NEVER
    nullable: int = _NEVER
    tag: int | None = None
    """The number of a tagged field (KIP-482); None for a plain one."""
    default: Any = REQUIRED


class Part(NamedTuple):
    """An entity inside a message."""

    name: str
    rows: tuple[Row, ...]


class Api(NamedTuple):
    """A request and its response in the versions `[lowest, highest]`; those from `flexible` on have tagged fields.

    Messages that are encoded by hand have no rows.
    """

    name: str
    lowest: int
    highest: int
    flexible: int = _NEVER
    """The first version with tagged fields and compact lengths (KIP-482)."""
    request: tuple[Row, ...] = ()
    response: tuple[Row, ...] = ()


def request_type(api_key: int, version: int) -> type[Entity]:
    """Build the class of a request; a new one at each call."""
    api = APIS[api_key]
    return _type(Part(f"{api.name}Request", api.request), api_key, version)


def response_type(api_key: int, version: int) -> type[Entity]:
    """Build the class of a response; a new one at each call."""
    api = APIS[api_key]
    return _type(Part(f"{api.name}Response", api.response), api_key, version)


def _type(part: Part, api_key: int, version: int) -> type[Entity]:
    """Build the class of a message or part, with the fields that this version has."""
    fields = tuple(_field(row, api_key, version) for row in part.rows if row.since <= version < row.until)
    content = {
        "__fields__": fields,
        "__names__": frozenset(field.name for field in fields),
        "__defaults__": {field.name: field.default for field in fields if field.default is not REQUIRED},
        "__api_key__": api_key,
        "__version__": version,
        "__flexible__": version >= APIS[api_key].flexible,
        "__module__": __name__,
    }
    return type(part.name, (Entity,), content)


def _field(row: Row, api_key: int, version: int) -> Field:
    is_array = isinstance(row.kind, list)
    element = row.kind[0] if isinstance(row.kind, list) else row.kind
    kind = _type(element, api_key, version) if isinstance(element, Part) else element
    return Field(row.name, kind, is_array, version >= row.nullable, row.tag, row.default)


def _list_offsets() -> Api:
    """Versions 1 to 11. Version 0 returned several offsets per partition and is obsolete."""
    partition_request = Part(
        "ListOffsetsPartition",
        (
            Row("partition_index", "int32"),
            Row("current_leader_epoch", "int32", since=4, default=-1),
            Row("timestamp", "int64"),
        ),
    )
    partition_response = Part(
        "ListOffsetsPartitionResponse",
        (
            Row("partition_index", "int32"),
            Row("error_code", "error_code"),
            Row("timestamp", "int64", default=-1),
            Row("offset", "int64", default=-1),
            Row("leader_epoch", "int32", since=4, default=-1),
        ),
    )
    return Api(
        "ListOffsets",
        lowest=1,
        highest=11,
        flexible=6,
        request=(
            Row("replica_id", "int32"),
            Row("isolation_level", "int8", since=2),
            Row("topics", [Part("ListOffsetsTopic", (Row("name", "string"), Row("partitions", [partition_request])))]),
            Row("timeout", "timedelta_i32", since=10),
        ),
        response=(
            Row("throttle_time", "timedelta_i32", since=2),
            Row(
                "topics",
                [Part("ListOffsetsTopicResponse", (Row("name", "string"), Row("partitions", [partition_response])))],
            ),
        ),
    )


def _metadata() -> Api:
    """Versions 0 to 13. Topics have ids from version 10 on."""
    topic_request = Part(
        "MetadataRequestTopic",
        (Row("topic_id", "uuid", since=10, nullable=10), Row("name", "string", nullable=10)),
    )
    broker = Part(
        "MetadataResponseBroker",
        (
            Row("node_id", "int32"),
            Row("host", "string"),
            Row("port", "int32"),
            Row("rack", "string", since=1, nullable=1, default=None),
        ),
    )
    partition = Part(
        "MetadataResponsePartition",
        (
            Row("error_code", "error_code"),
            Row("partition_index", "int32"),
            Row("leader_id", "int32"),
            Row("leader_epoch", "int32", since=7, default=-1),
            Row("replica_nodes", ["int32"], default=()),
            Row("isr_nodes", ["int32"], default=()),
            Row("offline_replicas", ["int32"], since=5, default=()),
        ),
    )
    topic = Part(
        "MetadataResponseTopic",
        (
            Row("error_code", "error_code"),
            Row("name", "string", nullable=12),
            Row("topic_id", "uuid", since=10, nullable=10),
            Row("is_internal", "bool", since=1, default=False),
            Row("partitions", [partition]),
            Row("topic_authorized_operations", "int32", since=8, default=-(1 << 31)),
        ),
    )
    return Api(
        "Metadata",
        lowest=0,
        highest=13,
        flexible=9,
        request=(
            Row("topics", [topic_request], nullable=1),
            Row("allow_auto_topic_creation", "bool", since=4, default=True),
            Row("include_cluster_authorized_operations", "bool", since=8, until=11),
            Row("include_topic_authorized_operations", "bool", since=8),
        ),
        response=(
            Row("throttle_time", "timedelta_i32", since=3),
            Row("brokers", [broker]),
            Row("cluster_id", "string", since=2, nullable=2, default=None),
            Row("controller_id", "int32", since=1, default=-1),
            Row("topics", [topic]),
            Row("cluster_authorized_operations", "int32", since=8, until=11, default=-(1 << 31)),
            Row("error_code", "error_code", since=13),
        ),
    )


def _find_coordinator() -> Api:
    """Versions 0 to 6. From version 4 on, a request asks for several keys (KIP-699)."""
    coordinator = Part(
        "Coordinator",
        (
            Row("key", "string"),
            Row("node_id", "int32"),
            Row("host", "string"),
            Row("port", "int32"),
            Row("error_code", "error_code"),
            Row("error_message", "string", nullable=4),
        ),
    )
    return Api(
        "FindCoordinator",
        lowest=0,
        highest=6,
        flexible=3,
        request=(
            Row("key", "string", until=4),
            Row("key_type", "int8", since=1, default=0),
            Row("coordinator_keys", ["string"], since=4, default=()),
        ),
        response=(
            Row("throttle_time", "timedelta_i32", since=1),
            Row("error_code", "error_code", until=4),
            Row("error_message", "string", since=1, until=4, nullable=1),
            Row("node_id", "int32", until=4),
            Row("host", "string", until=4),
            Row("port", "int32", until=4),
            Row("coordinators", [coordinator], since=4),
        ),
    )


def _list_groups() -> Api:
    """Versions 0 to 5. A shell that completes the name of a group waits for the answer."""
    group = Part(
        "ListedGroup",
        (
            Row("group_id", "string"),
            Row("protocol_type", "string"),
            Row("group_state", "string", since=4),
            Row("group_type", "string", since=5),
        ),
    )
    return Api(
        "ListGroups",
        lowest=0,
        highest=5,
        flexible=3,
        request=(
            Row("states_filter", ["string"], since=4, default=()),
            Row("types_filter", ["string"], since=5, default=()),
        ),
        response=(
            Row("throttle_time", "timedelta_i32", since=1),
            Row("error_code", "error_code"),
            Row("groups", [group]),
        ),
    )


def _api_versions() -> Api:
    """Versions 0 to 4. The request names the client from version 3 on (KIP-511)."""
    api = Part("ApiVersion", (Row("api_key", "int16"), Row("min_version", "int16"), Row("max_version", "int16")))
    supported = Part(
        "SupportedFeatureKey", (Row("name", "string"), Row("min_version", "int16"), Row("max_version", "int16"))
    )
    finalized = Part(
        "FinalizedFeatureKey",
        (Row("name", "string"), Row("max_version_level", "int16"), Row("min_version_level", "int16")),
    )
    return Api(
        "ApiVersions",
        lowest=0,
        highest=4,
        flexible=3,
        request=(
            Row("client_software_name", "string", since=3),
            Row("client_software_version", "string", since=3),
        ),
        response=(
            Row("error_code", "error_code"),
            Row("api_keys", [api]),
            Row("throttle_time", "timedelta_i32", since=1),
            Row("supported_features", [supported], since=3, tag=0, default=()),
            Row("finalized_features_epoch", "int64", since=3, tag=1, default=-1),
            Row("finalized_features", [finalized], since=3, tag=2, default=()),
            Row("zk_migration_ready", "bool", since=3, tag=3, default=False),
        ),
    )


APIS: Final = {
    0: Api("Produce", lowest=3, highest=13, flexible=9),
    1: Api("Fetch", lowest=4, highest=18, flexible=12),
    2: _list_offsets(),
    3: _metadata(),
    10: _find_coordinator(),
    16: _list_groups(),
    17: Api(
        "SaslHandshake",
        lowest=0,
        highest=1,
        request=(Row("mechanism", "string"),),
        response=(Row("error_code", "error_code"), Row("mechanisms", ["string"], default=())),
    ),
    18: _api_versions(),
    22: Api(
        "InitProducerId",
        lowest=0,
        highest=6,
        flexible=2,
        request=(
            Row("transactional_id", "string", nullable=0),
            Row("transaction_timeout", "timedelta_i32"),
            Row("producer_id", "int64", since=3, default=-1),
            Row("producer_epoch", "int16", since=3, default=-1),
            Row("enable2_pc", "bool", since=6, default=False),
            Row("keep_prepared_txn", "bool", since=6, default=False),
        ),
        response=(
            Row("throttle_time", "timedelta_i32"),
            Row("error_code", "error_code"),
            Row("producer_id", "int64", default=-1),
            Row("producer_epoch", "int16"),
            Row("ongoing_txn_producer_id", "int64", since=6, default=-1),
            Row("ongoing_txn_producer_epoch", "int16", since=6, default=-1),
        ),
    ),
    36: Api(
        "SaslAuthenticate",
        lowest=0,
        highest=2,
        flexible=2,
        request=(Row("auth_bytes", "bytes"),),
        response=(
            Row("error_code", "error_code"),
            Row("error_message", "string", nullable=0),
            Row("auth_bytes", "bytes"),
            Row("session_lifetime", "timedelta_i64", since=1, default=timedelta(0)),
        ),
    ),
}
"""The APIs whose versions are known here, by key."""
