"""SyncGroup: the leader sends the assignments, every member gets its own (classic protocol)."""

from __future__ import annotations

from typing import Any

from ottla.errors import ErrorCode
from ottla.testing.fake.context import Context
from ottla.testing.fake.groups import Group
from ottla.testing.fake.log import Refused
from ottla.testing.fake.messages import Tree
from ottla.testing.fake.state import ClusterState

KEY = 14
VERSIONS = range(6)


def handle(request: Any, state: ClusterState, context: Context) -> Tree:
    """Wait until the leader has sent the assignments, or a new generation is being prepared."""
    try:
        context.check()
        group = state.group(request.group_id, broker=context.broker)
        group.tick(context.now())
        assignment = _assignment(request, group, context)
    except Refused as refused:
        return {"error_code": refused.code, "assignment": b""}
    protocol_fields = {"protocol_type": group.protocol_type, "protocol_name": group.protocol}
    return {"error_code": ErrorCode.none, "assignment": assignment, **protocol_fields}


def _assignment(request: Any, group: Group, context: Context) -> bytes:
    instance_id = getattr(request, "group_instance_id", None)
    member = group.member(request.member_id, request.generation_id, instance_id=instance_id)
    group.sync(member, {a.member_id: bytes(a.assignment) for a in request.assignments}, context.now())
    try:
        while (assignment := group.synced(member, request.generation_id, context.now())) is None:
            context.wait(group.next_due(context.now()))
            group.tick(context.now())
    finally:
        member.syncing = False
    return assignment
