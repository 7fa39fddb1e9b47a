"""CreatePartitions: grows a topic; the fake places the new partitions, whatever assignment the request has."""

from __future__ import annotations

from typing import Any

from ottla.errors import ErrorCode
from ottla.testing.fake.context import Context
from ottla.testing.fake.log import Refused
from ottla.testing.fake.messages import Tree
from ottla.testing.fake.state import ClusterState

KEY = 37
VERSIONS = range(4)


def handle(request: Any, state: ClusterState, context: Context) -> Tree:
    """Return one result for each topic."""
    return {"results": [_grow(state, context, item, only_check=request.validate_only) for item in request.topics]}


def _grow(state: ClusterState, context: Context, item: Any, *, only_check: bool) -> Tree:
    try:
        context.check(item.name)
        topic = state.topic(item)
        if not only_check:
            state.add_partitions(topic, item.count)
        elif item.count <= len(topic.partitions):
            raise Refused(ErrorCode.invalid_partitions)
    except Refused as refused:
        return {"name": item.name, "error_code": refused.code, "error_message": refused.message}
    return {"name": item.name, "error_code": ErrorCode.none}
