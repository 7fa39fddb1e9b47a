"""FindCoordinator: the broker that coordinates a group or a transactional id; several keys since version 4."""

from __future__ import annotations

from typing import Any

from ottla.errors import ErrorCode
from ottla.testing.fake.apis.metadata import broker
from ottla.testing.fake.context import Context
from ottla.testing.fake.log import Refused
from ottla.testing.fake.messages import Tree
from ottla.testing.fake.state import ClusterState

KEY = 10
VERSIONS = range(7)


def handle(request: Any, state: ClusterState, context: Context) -> Tree:
    """Return the coordinators. Groups and transactional ids are spread over the live brokers in the same way."""
    keys = getattr(request, "coordinator_keys", None)
    if keys is None:
        return _find(state, context, request.key)
    return {"coordinators": [_find(state, context, key) for key in keys]}


def _find(state: ClusterState, context: Context, key: str) -> Tree:
    try:
        context.check()
    except Refused as refused:
        no_broker = {"node_id": -1, "host": "", "port": -1}
        return {"key": key, "error_code": refused.code, "error_message": refused.message, **no_broker}
    return {"key": key, "error_code": ErrorCode.none, **broker(state, state.coordinator(key))}
