"""`ottla groups`: list, describe, reset and delete consumer groups.

The commands ask `Admin.groups`; what a reset does is planned in `resetting`, and `group_views` shows everything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from ottla.cli import Misuse
from ottla.cli.options.confirming import confirm, dry_run_option, yes_option
from ottla.cli.options.connecting import with_admin
from ottla.cli.options.general import json_option
from ottla.cli.resetting import (
    Goal,
    Move,
    Shift,
    ToGroup,
    ToOffset,
    ToTime,
    parse_selection,
    plan,
    refuse_missing,
)
from ottla.cli.values.json_text import json_text
from ottla.cli.values.times import parse_time
from ottla.cli.views.groups import as_dict, as_text, listed_dict, listed_text, move_dict, moves_text
from ottla.cli.views.tables import terminal_width
from ottla.errors import BrokerError
from ottla.text import printable

if TYPE_CHECKING:
    from ottla.admin import Admin
    from ottla.model import TopicPartition

Selection = tuple[str, list[int] | None]


def _parsed(read: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def parse(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        try:
            return [read(one) for one in value] if isinstance(value, tuple) else None if value is None else read(value)
        except ValueError as exc:
            raise click.BadParameter(str(exc), context, parameter) from exc

    return parse


@click.group()
def groups() -> None:
    """Consumer groups of a cluster, and the offsets that they have committed.

    \b
    Examples:
      ottla groups list
      ottla groups describe billing
      ottla groups reset billing --to-time -2h --topic clicks --dry-run
      ottla groups delete billing
    """


@groups.command("list")
@json_option
@with_admin
def list_groups(admin: Admin, *, as_json: bool) -> None:
    """List every group with its state and the protocol that it speaks.

    \b
    Examples:
      ottla groups list
      ottla groups list --json
    """
    found = admin.groups.list_groups()
    if as_json:
        click.echo(json_text([listed_dict(group) for group in found]))
    elif found:
        click.echo(listed_text(found, width=terminal_width()))
    else:
        click.echo("there are no groups", err=True)


@groups.command()
@click.argument("names", nargs=-1, required=True)
@json_option
@with_admin
def describe(admin: Admin, *, names: tuple[str, ...], as_json: bool) -> None:
    """Show state, members and lag of groups.

    The lag is the distance from the committed offset to the end of the log. Partitions of the same topics for which
    nothing is committed are shown as well, and marked.

    \b
    Examples:
      ottla groups describe billing
      ottla groups describe billing audit --json
    """
    found = [(admin.groups.describe(name), admin.groups.lag(name)) for name in names]
    if as_json:
        click.echo(json_text([as_dict(group, lags) for group, lags in found]))
    else:
        click.echo("\n\n".join(as_text(group, lags, width=terminal_width()) for group, lags in found))


@groups.command()
@click.argument("name")
@click.option("--to-earliest", is_flag=True, help="To the beginning of each log.")
@click.option("--to-latest", is_flag=True, help="To the end of each log.")
@click.option(
    "--to-time",
    metavar="TIME",
    callback=_parsed(lambda text: parse_time(text, now=datetime.now(UTC))),
    help="To the first record at or after a time: 2025-03-01T12:00Z, -2h, '3d ago'.",
)
@click.option("--to-offset", type=click.IntRange(0), metavar="N", help="To this offset in each partition.")
@click.option("--shift", type=int, metavar="N", help="N records further; back if N is negative.")
@click.option("--to-group", metavar="OTHER", help="To where another group is.")
@click.option(
    "--topic",
    "selections",
    multiple=True,
    metavar="TOPIC[:PARTITIONS]",
    callback=_parsed(parse_selection),
    help="Only this topic, or partitions of it: clicks:0,2-4. Repeatable.  [default: all that the group has committed]",
)
@click.option("--new", "is_new", is_flag=True, help="Make the group if it does not exist.")
@yes_option
@click.option("--dry-run", is_flag=True, help="Show before and after; change nothing.")
@json_option
@with_admin
def reset(
    admin: Admin,
    *,
    name: str,
    selections: list[Selection],
    is_new: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    **goals: Any,
) -> None:
    """Move the offsets of a group that has no members, and show them before and after.

    Offsets outside of a log are cut to its ends, which is said. A group with members is refused, and they are named:
    stop them first. Where the group has offsets already, it asks first, unless --yes is given.

    \b
    Examples:
      ottla groups reset billing --to-earliest --dry-run
      ottla groups reset billing --to-time 2025-03-01T12:00Z --topic clicks
      ottla groups reset billing --shift -1000 --topic clicks:0,2-4
      ottla groups reset billing-2 --new --to-group billing
    """
    goal = _goal(**goals)
    _refuse_unknown_or_in_use(admin, name, is_new=is_new)
    moves = _moves(admin, name, goal, selections)
    if not dry_run:
        replaced = sum(move.before is not None for move in moves)
        if replaced:
            confirm(f"this replaces the {_partitions(replaced)} of group {printable(name)}", yes=yes)
        admin.groups.set_offsets(name, {move.partition: move.committed for move in moves})
    if as_json:
        shown = [move_dict(move) for move in moves]
        click.echo(json_text({"group": name, "reset": not dry_run, "partitions": shown}))
    else:
        click.echo(f"group {printable(name)} {'would be' if dry_run else 'is'} reset:")
        click.echo(moves_text(moves, width=terminal_width()))


@groups.command()
@click.argument("names", nargs=-1, required=True)
@yes_option
@dry_run_option
@with_admin
def delete(admin: Admin, *, names: tuple[str, ...], yes: bool, dry_run: bool) -> None:
    """Delete groups with their offsets. A group with members is refused, and they are named.

    Asks first, unless --yes is given.

    \b
    Examples:
      ottla groups delete billing audit
      ottla groups delete billing --dry-run
      ottla groups delete billing --yes
    """
    for name in names:
        _refuse_unknown_or_in_use(admin, name, hint="")
    told = ", ".join(f"{printable(name)} ({_partitions(len(admin.groups.committed(name)))})" for name in names)
    if dry_run:
        click.echo(f"would delete {told}")
        return
    confirm(f"this deletes {told}", yes=yes)
    for name in names:
        admin.groups.delete(name)
        click.echo(f"deleted {printable(name)}")


def _partitions(count: int) -> str:
    return f"offsets of {count} partition{'s' if count != 1 else ''}"


def _goal(
    *,
    to_earliest: bool,
    to_latest: bool,
    to_time: datetime | None,
    to_offset: int | None,
    shift: int | None,
    to_group: str | None,
) -> Goal:
    from ottla.admin import OffsetSpec

    given: list[Goal] = []
    given += [OffsetSpec.EARLIEST] if to_earliest else []
    given += [OffsetSpec.LATEST] if to_latest else []
    given += [] if to_time is None else [ToTime(to_time)]
    given += [] if to_offset is None else [ToOffset(to_offset)]
    given += [] if shift is None else [Shift(shift)]
    given += [] if to_group is None else [ToGroup(to_group)]
    if len(given) != 1:
        raise Misuse(
            "give one goal: --to-earliest, --to-latest, --to-time TIME, --to-offset N, --shift N or --to-group OTHER"
        )
    return given[0]


_NEW = "to give offsets to a group before it is first used, add --new"


def _refuse_unknown_or_in_use(admin: Admin, name: str, *, is_new: bool = False, hint: str = _NEW) -> None:
    from ottla.admin.groups import in_use
    from ottla.errors import ErrorCode

    try:
        members = admin.groups.describe(name).members
    except BrokerError as exc:
        if exc.code is not ErrorCode.group_id_not_found:
            raise
        if is_new:
            return
        if hint:
            click.echo(hint, err=True)
        raise
    if members:
        raise in_use(name, members)


def _moves(admin: Admin, name: str, goal: Goal, selections: Collection[Selection]) -> list[Move]:
    before = admin.groups.committed(name)
    other = admin.groups.committed(goal.group) if isinstance(goal, ToGroup) else {}
    partitions = _selected(admin, selections)
    if not selections:
        whose, partitions = (goal.group, list(other)) if isinstance(goal, ToGroup) else (name, list(before))
        if not partitions:
            raise Misuse(f"group {whose} has committed no offsets: say which topics with --topic")
    found = admin.list_offsets(partitions, goal.time) if isinstance(goal, ToTime) else {}
    return plan(goal, admin.log_ranges(partitions), before=before, found=found, other=other)


def _selected(admin: Admin, selections: Collection[Selection]) -> list[TopicPartition]:
    from ottla.model import TopicPartition

    chosen: dict[TopicPartition, None] = {}
    for topic in admin.describe_topics({topic for topic, _ in selections}):
        there = [partition.index for partition in topic.partitions]
        for _, wanted in (one for one in selections if one[0] == topic.name):
            refuse_missing(topic.name, wanted, there)
            chosen.update(dict.fromkeys(TopicPartition(topic.name, index) for index in wanted or there))
    return list(chosen)
