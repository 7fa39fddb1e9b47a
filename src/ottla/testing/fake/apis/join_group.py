"""JoinGroup: become a member and wait until the others have joined too (classic protocol)."""

from __future__ import annotations

from typing import Any

from ottla.errors import ErrorCode
from ottla.testing.fake.context import Context
from ottla.testing.fake.groups import Group, Joining, Member
from ottla.testing.fake.log import Refused
from ottla.testing.fake.messages import Tree
from ottla.testing.fake.state import ClusterState

KEY = 11
VERSIONS = range(10)


def handle(request: Any, state: ClusterState, context: Context) -> Tree:
    """The generation, and for its leader all members with what they want."""
    try:
        context.check()
        group = state.group(request.group_id, broker=context.broker)
        group.tick(context.now())
        if context.version >= 4 and not request.member_id and getattr(request, "group_instance_id", None) is None:
            return _refusal(ErrorCode.member_id_required, group.promise_id(context.client_id), context)
        member = group.join(_joining(request, context), context.now())
        while not group.has_generation(member):
            context.wait(group.next_due(context.now()))
            group.tick(context.now())
        if member.id not in group.members:
            raise Refused(ErrorCode.unknown_member_id)
    except Refused as refused:
        return _refusal(refused.code, request.member_id, context)
    return _welcome(group, member)


def _joining(request: Any, context: Context) -> Joining:
    session = request.session_timeout.total_seconds()
    rebalance = getattr(request, "rebalance_timeout", request.session_timeout).total_seconds()
    return Joining(
        client_id=context.client_id,
        member_id=request.member_id,
        instance_id=getattr(request, "group_instance_id", None),
        session_timeout=session,
        rebalance_timeout=rebalance if rebalance > 0 else session,
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols),
    )


def _refusal(code: ErrorCode, member_id: str, context: Context) -> Tree:
    protocol = None if context.version >= 7 else ""  # nullable since version 7
    return {
        "error_code": code,
        "generation_id": -1,
        "protocol_name": protocol,
        "leader": "",
        "member_id": member_id,
    }


def _welcome(group: Group, member: Member) -> Tree:
    protocol = group.protocol or ""
    everybody = group.members.values() if member.id == group.leader else ()
    return {
        "error_code": ErrorCode.none,
        "generation_id": group.generation,
        "protocol_type": group.protocol_type,
        "protocol_name": protocol,
        "leader": group.leader or "",
        "member_id": member.id,
        "members": [
            {"member_id": m.id, "group_instance_id": m.joining.instance_id, "metadata": m.metadata(protocol)}
            for m in everybody
        ],
    }
