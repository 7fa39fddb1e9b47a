"""How groups are shown: as tables for people, and as JSON with everything for programs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from ottla.cli.output.styles import Style, Styled, faint, paint, state
from ottla.cli.output.tables import table
from ottla.cli.values.numbers import thousands
from ottla.text import printable

if TYPE_CHECKING:
    from ottla.admin import DescribedMember, GroupDescription, ListedGroup, PartitionLag
    from ottla.model import TopicPartition


def listed_text(groups: Sequence[ListedGroup], *, width: int | None) -> str:
    """Return a table of groups."""
    rows = [
        (
            group.name,
            group_state(group.state),
            group.type or "-",
            group.protocol_type or "(offsets only)",
            str(group.coordinator),
        )
        for group in groups
    ]
    return table(("group", "state", "type", "protocol", "coordinator"), rows, width=width)


def listed_dict(group: ListedGroup) -> dict[str, Any]:
    """Return a listed group for JSON."""
    return {
        "name": group.name,
        "state": group.state,
        "type": group.type,
        "protocol_type": group.protocol_type,
        "coordinator": group.coordinator,
    }


def group_dict(group: GroupDescription, lags: Sequence[PartitionLag]) -> dict[str, Any]:
    """Return a group with its members and its lag for JSON."""
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


def group_text(group: GroupDescription, lags: Sequence[PartitionLag], *, width: int | None) -> str:
    """Return a group with its members and its lag for people."""
    protocol = f"{group.type} protocol" + (f", assignor {group.assignor}" if group.assignor else "")
    count = f"{len(group.members)} member{'s' if len(group.members) != 1 else ''}"
    uncommitted = sum(lag.committed is None for lag in lags)
    without = f", {uncommitted} partition{'s' if uncommitted != 1 else ''} without commit" if uncommitted else ""
    is_styled = width is not None
    name = paint(printable(group.name), Style.STRONG, on=is_styled)
    condition = group_state(printable(group.state))
    shown = paint(condition, getattr(condition, "style", None), on=is_styled)
    lines = [f"{name}: {shown}, {printable(protocol)}, {count}, lag {_total(lags):,}{without}"]
    if group.members:
        lines.append(_members_table(group.members, width))
    lines.append(_lags_table(group, lags, width) if lags else "  no committed offsets")
    return "\n".join(lines)


def group_state(name: str | None) -> str:
    """Return a state in its style."""
    return state(
        name or "-", good=("Stable",), warning=("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")
    )


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
    """Return sorted numbers as `0-2,5`."""
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
        cells = [
            lag.partition.topic,
            str(lag.partition.partition),
            thousands(None if lag.committed is None else lag.committed.offset),
            thousands(lag.start),
            thousands(lag.stop),
            thousands(lag.lag),
            owner.client_id if owner is not None else "(none)" if group.members else "",
            Styled(_note(lag), Style.WARNING),
        ]
        rows.append(faint(cells) if lag.lag == 0 and not _note(lag) else cells)
    headings = ("topic", "partition", "committed", "start", "stop", "lag", "client", "note")
    return table(headings, rows, width=width, indent=2)


def _note(lag: PartitionLag) -> str:
    if lag.stop is None or lag.start is None:
        return "the end of the log is unknown at the moment"
    if lag.committed is None:
        return "no commit"
    if lag.committed.offset < lag.start:
        return f"before the start of the log: {lag.start - lag.committed.offset:,} offsets are gone"
    if lag.committed.offset > lag.stop:
        return "beyond the end of the log"
    return ""
