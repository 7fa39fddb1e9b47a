"""LeaveGroup: removes one member, or several since version 3 (classic protocol)."""

from __future__ import annotations

from typing import Any

from ottla.errors import ErrorCode
from ottla.testing.fake.context import Context
from ottla.testing.fake.log import Refused
from ottla.testing.fake.messages import Tree
from ottla.testing.fake.state import ClusterState

KEY = 13
VERSIONS = range(6)


def handle(request: Any, state: ClusterState, context: Context) -> Tree:
    """Return an error code, since version 3 one for each member."""
    leaving = getattr(request, "members", None)
    if leaving is None:
        return {"error_code": _leave(state, context, request.group_id, request.member_id, None)}
    members = [
        {
            "member_id": member.member_id,
            "group_instance_id": member.group_instance_id,
            "error_code": _leave(state, context, request.group_id, member.member_id, member.group_instance_id),
        }
        for member in leaving
    ]
    return {"error_code": ErrorCode.none, "members": members}


def _leave(state: ClusterState, context: Context, group_id: str, member_id: str, instance_id: str | None) -> ErrorCode:
    try:
        context.check()
        state.group(group_id, broker=context.broker).leave(member_id, instance_id, context.now())
    except Refused as refused:
        return refused.code
    return ErrorCode.none
