"""The four requests of the classic protocol, as steps. Values in, values out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ottla.consume.classic_messages import MemberSubscription, write_subscription
from ottla.consume.options import GroupOptions
from ottla.consume.steps import PATIENCE, Ask

JOIN, HEARTBEAT, LEAVE, SYNC = 11, 12, 13, 14
_PROTOCOL_TYPE = "consumer"


@dataclass(frozen=True, slots=True)
class ClassicRequests:
    """Written by a member of `group`. JoinGroup and SyncGroup are answered when the others have joined and the leader
    has assigned, which may take as long as the slowest member may stay away; their `seconds` are the caller's."""

    group: str
    options: GroupOptions

    def join(self, member_id: str, subscription: MemberSubscription, *, reason: str, seconds: float) -> Ask:
        """Becomes a member, or takes part in the next generation."""
        metadata = write_subscription(subscription)
        fields = {
            "session_timeout": timedelta(seconds=self.options.session_timeout),
            "rebalance_timeout": timedelta(seconds=self.options.max_poll_interval),
            "member_id": member_id,
            "group_instance_id": self.options.instance_id,
            "protocol_type": _PROTOCOL_TYPE,
            "protocols": [{"name": name, "metadata": metadata} for name in self.options.assignors],
            "reason": reason,
        }
        return Ask(JOIN, f"joining group {self.group}", self._to_group(fields), seconds, patient=True)

    def sync(
        self, member_id: str, generation: int, *, protocol: str, shares: Mapping[str, bytes], seconds: float
    ) -> Ask:
        """Asks for this member's share; the leader brings all of them."""
        fields = self._from_member(member_id, generation) | {
            "protocol_type": _PROTOCOL_TYPE,
            "protocol_name": protocol,
            "assignments": [{"member_id": member, "assignment": share} for member, share in shares.items()],
        }
        return Ask(SYNC, f"getting a share in group {self.group}", self._to_group(fields), seconds, patient=True)

    def heartbeat(self, member_id: str, generation: int, *, seconds: float) -> Ask:
        """Says that it is alive."""
        fields = self._from_member(member_id, generation)
        return Ask(HEARTBEAT, f"heartbeat in group {self.group}", self._to_group(fields), seconds)

    def leave(self, member_id: str, *, reason: str) -> Ask:
        """Says that it goes; since version 3 one may say so for several."""
        member = {"member_id": member_id, "group_instance_id": None, "reason": reason}
        fields = {"member_id": member_id, "members": [member]}
        return Ask(LEAVE, f"leaving group {self.group}", self._to_group(fields), PATIENCE)

    def _to_group(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"group_id": self.group, **fields}

    def _from_member(self, member_id: str, generation: int) -> dict[str, Any]:
        return {
            "generation_id": generation,
            "member_id": member_id,
            "group_instance_id": self.options.instance_id,
        }
