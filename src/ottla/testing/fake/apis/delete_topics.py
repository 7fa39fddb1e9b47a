"""DeleteTopics: by name, or by id in newer versions; deletes at once, with records and committed offsets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ottla.errors import ErrorCode
from ottla.testing.fake.context import Context
from ottla.testing.fake.log import Refused
from ottla.testing.fake.messages import Tree
from ottla.testing.fake.state import ClusterState

KEY = 20
VERSIONS = range(1, 7)


def handle(request: Any, state: ClusterState, context: Context) -> Tree:
    """Return one result for each topic."""
    by_name = [SimpleNamespace(name=name, topic_id=None) for name in getattr(request, "topic_names", ())]
    return {"responses": [_delete(state, context, item) for item in (*by_name, *getattr(request, "topics", ()))]}


def _delete(state: ClusterState, context: Context, item: Any) -> Tree:
    try:
        topic = state.topic(item)
        context.check(topic.name)
    except Refused as refused:
        error = {"error_code": refused.code, "error_message": refused.message}
        return {"name": item.name, "topic_id": item.topic_id} | error
    del state.topics[topic.name]
    for group in state.groups.values():
        group.offsets = {tp: offset for tp, offset in group.offsets.items() if tp.topic != topic.name}
    return {"name": topic.name, "topic_id": topic.id, "error_code": ErrorCode.none}
