"""JoinGroup: makes the client a member and waits until the others have joined too (classic protocol)."""

from __future__ import annotations

from typing import Any

from ottla.errors import ErrorCode
from ottla.testing.fake.context import Context
from ottla.testing.fake.groups import Group, JoinRequest, Member
from ottla.testing.fake.log import Refused
from ottla.testing.fake.messages import Tree
from ottla.testing.fake.state import ClusterState

KEY = 11
VERSIONS = range(10)


def handle(request: Any, state: ClusterState, context: Context) -> Tree:
    """Return the generation, and for its leader all members with their subscriptions."""
    try:
        context.check()
        group = state.group(request.group_id, broker=context.broker)
        group.tick(context.now())
        if context.version >= 4 and not request.member_id and getattr(request, "group_instance_id", None) is None:
            return _error(ErrorCode.member_id_required, group.reserve_id(context.client_id), context)
        member = group.join(_join_request(request, context), context.now())
        while not group.has_generation(member):
            context.wait(group.next_due(context.now()))
            group.tick(context.now())
        if member.id not in group.members:
            raise Refused(ErrorCode.unknown_member_id)
    except Refused as refused:
        return _error(refused.code, request.member_id, context)
    return _joined(group, member)


def _join_request(request: Any, context: Context) -> JoinRequest:
    session = request.session_timeout.total_seconds()
    rebalance = getattr(request, "rebalance_timeout", request.session_timeout).total_seconds()
    return JoinRequest(
        client_id=context.client_id,
        member_id=request.member_id,
        instance_id=getattr(request, "group_instance_id", None),
        session_timeout=session,
        rebalance_timeout=rebalance if rebalance > 0 else session,
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols),
    )


def _error(code: ErrorCode, member_id: str, context: Context) -> Tree:
    protocol = None if context.version >= 7 else ""  # Nullable since version 7.
    return {
        "error_code": code,
        "generation_id": -1,
        "protocol_name": protocol,
        "leader": "",
        "member_id": member_id,
    }


def _joined(group: Group, member: Member) -> Tree:
    protocol = group.protocol or ""
    members = group.members.values() if member.id == group.leader else ()
    return {
        "error_code": ErrorCode.none,
        "generation_id": group.generation,
        "protocol_type": group.protocol_type,
        "protocol_name": protocol,
        "leader": group.leader or "",
        "member_id": member.id,
        "members": [
            {"member_id": m.id, "group_instance_id": m.request.instance_id, "metadata": m.metadata(protocol)}
            for m in members
        ],
    }
