"""How groups look: as tables for people, and as JSON that loses nothing for programs.

Descriptions, lags and moves come in; text or plain values for JSON go out. It asks nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from ottla.cli.resetting import Move
from ottla.cli.views.tables import table
from ottla.text import printable

if TYPE_CHECKING:
    from ottla.admin import DescribedMember, GroupDescription, ListedGroup, PartitionLag
    from ottla.model import TopicPartition


def listed_text(groups: Sequence[ListedGroup], *, width: int | None) -> str:
    """Several groups, one line each."""
    rows = [
        (one.name, one.state or "-", one.type or "-", one.protocol_type or "(offsets only)", str(one.coordinator))
        for one in groups
    ]
    return table(("group", "state", "type", "members are", "coordinator"), rows, width=width)


def listed_dict(group: ListedGroup) -> dict[str, Any]:
    """A listed group for JSON."""
    return {
        "name": group.name,
        "state": group.state,
        "type": group.type,
        "protocol_type": group.protocol_type,
        "coordinator": group.coordinator,
    }


def as_dict(group: GroupDescription, lags: Sequence[PartitionLag]) -> dict[str, Any]:
    """A group with its members and its lag for JSON."""
    owners = _owners(group)
    return {
        "name": group.name,
        "state": group.state,
        "type": group.type,
        "protocol_type": group.protocol_type,
        "assignor": group.assignor,
        "epoch": group.epoch,
        "lag": _total(lags),
        "members": [_member_dict(member) for member in group.members],
        "partitions": [_lag_dict(lag, owners.get(lag.partition)) for lag in lags],
    }


def as_text(group: GroupDescription, lags: Sequence[PartitionLag], *, width: int | None) -> str:
    """A group with its members and its lag for people."""
    spoken = f"{group.type} protocol" + (f", assignor {group.assignor}" if group.assignor else "")
    count = f"{len(group.members)} member{'s' if len(group.members) != 1 else ''}"
    uncommitted = sum(lag.committed is None for lag in lags)
    doubt = f", {uncommitted} partition{'s' if uncommitted != 1 else ''} without commit" if uncommitted else ""
    lines = [printable(f"{group.name}: {group.state}, {spoken}, {count}, lag {_total(lags):,}{doubt}")]
    if group.members:
        lines.append(_members_table(group.members, width))
    lines.append(_lags_table(group, lags, width) if lags else "  it has committed no offsets")
    return "\n".join(lines)


def moves_text(moves: Sequence[Move], *, width: int | None) -> str:
    """Offsets before and after, for people."""
    rows = [
        (
            move.partition.topic,
            str(move.partition.partition),
            "-" if move.before is None else str(move.before),
            str(move.after),
            "-" if move.before is None else f"{move.after - move.before:+}",
            f"{move.log.stop - move.after:,}",
            move.note,
        )
        for move in moves
    ]
    return table(("topic", "partition", "before", "after", "moved", "lag then", "note"), rows, width=width, indent=2)


def move_dict(move: Move) -> dict[str, Any]:
    """A move for JSON."""
    return {
        "topic": move.partition.topic,
        "partition": move.partition.partition,
        "before": move.before,
        "after": move.after,
        "start": move.log.start,
        "stop": move.log.stop,
        "note": move.note,
    }


def _total(lags: Collection[PartitionLag]) -> int:
    return sum(lag.lag or 0 for lag in lags)


def _owners(group: GroupDescription) -> dict[TopicPartition, DescribedMember]:
    return {partition: member for member in group.members for partition in member.assigned}


def _member_dict(member: DescribedMember) -> dict[str, Any]:
    from ottla.admin.committed import by_topic

    return {
        "member_id": member.member_id,
        "client_id": member.client_id,
        "host": member.host,
        "instance_id": member.instance_id,
        "epoch": member.epoch,
        "subscribed": list(member.subscribed),
        "pattern": member.pattern,
        "assigned": by_topic(member.assigned),
        "target": None if member.target is None else by_topic(member.target),
    }


def _lag_dict(lag: PartitionLag, owner: DescribedMember | None) -> dict[str, Any]:
    committed = lag.committed
    return {
        "topic": lag.partition.topic,
        "partition": lag.partition.partition,
        "committed": None if committed is None else committed.offset,
        "leader_epoch": None if committed is None else committed.leader_epoch,
        "metadata": None if committed is None else committed.metadata,
        "start": lag.start,
        "stop": lag.stop,
        "lag": lag.lag,
        "member_id": None if owner is None else owner.member_id,
        "client_id": None if owner is None else owner.client_id,
        "note": _note(lag),
    }


def _members_table(members: Sequence[DescribedMember], width: int | None) -> str:
    rows = [
        (
            member.client_id or "-",
            member.host.lstrip("/"),
            str(len(member.assigned)),
            _assigned(member) or "nothing",
            member.instance_id or member.member_id,
        )
        for member in members
    ]
    return table(("client", "host", "partitions", "assigned", "member"), rows, width=width, indent=2)


def _assigned(member: DescribedMember) -> str:
    from ottla.admin.committed import by_topic

    return " ".join(f"{name}:{_spans(indexes)}" for name, indexes in by_topic(member.assigned).items())


def _spans(indexes: Sequence[int]) -> str:
    """`0-2,5` for sorted numbers."""
    spans: list[list[int]] = []
    for index in indexes:
        if spans and spans[-1][1] == index - 1:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def _lags_table(group: GroupDescription, lags: Sequence[PartitionLag], width: int | None) -> str:
    owners = _owners(group)
    rows = []
    for lag in lags:
        owner = owners.get(lag.partition)
        rows.append(
            (
                lag.partition.topic,
                str(lag.partition.partition),
                "-" if lag.committed is None else str(lag.committed.offset),
                "-" if lag.start is None else str(lag.start),
                "-" if lag.stop is None else str(lag.stop),
                "-" if lag.lag is None else f"{lag.lag:,}",
                owner.client_id if owner is not None else "nobody" if group.members else "",
                _note(lag),
            )
        )
    headings = ("topic", "partition", "committed", "start", "stop", "lag", "client", "note")
    return table(headings, rows, width=width, indent=2)


def _note(lag: PartitionLag) -> str:
    if lag.stop is None or lag.start is None:
        return "nobody can tell its end now"
    if lag.committed is None:
        return "no commit"
    if lag.committed.offset < lag.start:
        return f"before the log's start: {lag.start - lag.committed.offset:,} are gone"
    if lag.committed.offset > lag.stop:
        return "beyond the log's end"
    return ""
