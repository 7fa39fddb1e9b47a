"""CreateTopics: creates topics, or only checks that they could be created."""

from __future__ import annotations

from typing import Any

from ottla.errors import ErrorCode
from ottla.testing.fake.context import Context
from ottla.testing.fake.log import Refused
from ottla.testing.fake.messages import Tree
from ottla.testing.fake.state import ClusterState

KEY = 19
VERSIONS = range(2, 8)


def handle(request: Any, state: ClusterState, context: Context) -> Tree:
    """Return one result for each topic; a refused one does not affect the others."""
    return {"topics": [_create(state, context, item, only_check=request.validate_only) for item in request.topics]}


def _create(state: ClusterState, context: Context, item: Any, *, only_check: bool) -> Tree:
    by_index = sorted(item.assignments, key=lambda a: a.partition_index)
    assignment = [tuple(a.broker_ids) for a in by_index] or None
    # -1 asks for the broker's defaults, and is required with a manual assignment.
    partitions = len(assignment) if assignment else 1 if item.num_partitions == -1 else item.num_partitions
    replicas = None if item.replication_factor == -1 else item.replication_factor
    try:
        context.check(item.name)
        state.check_new_topic(item.name, partitions, replicas=replicas, assignment=assignment)
        if only_check:
            return {
                "name": item.name,
                "error_code": ErrorCode.none,
                "num_partitions": partitions,
                "configs": (),
            }
        configs = {config.name: config.value for config in item.configs if config.value is not None}
        topic = state.create_topic(item.name, partitions, replicas=replicas, assignment=assignment, configs=configs)
    except Refused as refused:
        return {"name": item.name, "error_code": refused.code, "error_message": refused.message}
    return {
        "name": item.name,
        "topic_id": topic.id,
        "error_code": ErrorCode.none,
        "num_partitions": len(topic.partitions),
        "replication_factor": len(topic.partitions[0].replicas),
        "configs": [{"name": name, "value": value, "config_source": 1} for name, value in topic.configs.items()],
    }
