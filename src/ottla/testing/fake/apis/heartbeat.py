"""Heartbeat: keeps a member's session alive and reports when it must rejoin (classic protocol)."""

from __future__ import annotations

from typing import Any

from ottla.errors import ErrorCode
from ottla.testing.fake.context import Context
from ottla.testing.fake.log import Refused
from ottla.testing.fake.messages import Tree
from ottla.testing.fake.state import ClusterState

KEY = 12
VERSIONS = range(5)


def handle(request: Any, state: ClusterState, context: Context) -> Tree:
    """Return only an error code."""
    try:
        context.check()
        group = state.group(request.group_id, broker=context.broker)
        group.tick(context.now())
        instance_id = getattr(request, "group_instance_id", None)
        member = group.member(request.member_id, request.generation_id, instance_id=instance_id)
        group.heartbeat(member, context.now())
    except Refused as refused:
        return {"error_code": refused.code}
    return {"error_code": ErrorCode.none}
