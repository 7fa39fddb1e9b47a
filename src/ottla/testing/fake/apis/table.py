"""The protocol table of the fake: one module per message, each with its key, its versions and `handle`.

A handler gets a parsed request of any of its versions. It returns a tree of plain values with the fields of all
versions (`messages.build` picks those of the version), or None if the request expects no response.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ottla.testing.fake.apis import (
    api_versions,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    fetch,
    find_coordinator,
    heartbeat,
    init_producer_id,
    join_group,
    leave_group,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
)
from ottla.testing.fake.context import Context
from ottla.testing.fake.messages import Tree
from ottla.testing.fake.state import ClusterState

Handler = Callable[[Any, ClusterState, Context], Tree | None]


@dataclass(frozen=True, slots=True)
class Api:
    """One row: an API, its implemented versions, and their handler."""

    key: int
    versions: range
    handle: Handler


_ROWS = (
    Api(produce.KEY, produce.VERSIONS, produce.handle),
    Api(fetch.KEY, fetch.VERSIONS, fetch.handle),
    Api(list_offsets.KEY, list_offsets.VERSIONS, list_offsets.handle),
    Api(metadata.KEY, metadata.VERSIONS, metadata.handle),
    Api(offset_commit.KEY, offset_commit.VERSIONS, offset_commit.handle),
    Api(offset_fetch.KEY, offset_fetch.VERSIONS, offset_fetch.handle),
    Api(find_coordinator.KEY, find_coordinator.VERSIONS, find_coordinator.handle),
    Api(join_group.KEY, join_group.VERSIONS, join_group.handle),
    Api(heartbeat.KEY, heartbeat.VERSIONS, heartbeat.handle),
    Api(leave_group.KEY, leave_group.VERSIONS, leave_group.handle),
    Api(sync_group.KEY, sync_group.VERSIONS, sync_group.handle),
    Api(create_topics.KEY, create_topics.VERSIONS, create_topics.handle),
    Api(delete_topics.KEY, delete_topics.VERSIONS, delete_topics.handle),
    Api(delete_records.KEY, delete_records.VERSIONS, delete_records.handle),
    Api(init_producer_id.KEY, init_producer_id.VERSIONS, init_producer_id.handle),
    Api(offset_for_leader_epoch.KEY, offset_for_leader_epoch.VERSIONS, offset_for_leader_epoch.handle),
    Api(describe_configs.KEY, describe_configs.VERSIONS, describe_configs.handle),
    Api(create_partitions.KEY, create_partitions.VERSIONS, create_partitions.handle),
    Api(describe_cluster.KEY, describe_cluster.VERSIONS, describe_cluster.handle),
)


def _api_versions(request: Any, state: ClusterState, context: Context) -> Tree:
    return api_versions.handle(request, context, {row.key: row.versions for row in TABLE.values()})


TABLE = {row.key: row for row in (*_ROWS, Api(api_versions.KEY, api_versions.VERSIONS, _api_versions))}
