"""`ottla groups`: list, describe, reset and delete consumer groups."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING

import click

from ottla.cli.completion.values import complete_groups, complete_topics
from ottla.cli.errors import UsageError
from ottla.cli.groups.view import group_dict, group_text, listed_dict, listed_text
from ottla.cli.options.common import json_option
from ottla.cli.options.confirmation import confirm, dry_run_option, yes_option
from ottla.cli.options.connection import with_admin
from ottla.cli.options.internal import internal_option, is_internal_group, say_hidden
from ottla.cli.options.old import old_flag, old_spelling
from ottla.cli.options.places import to_option
from ottla.cli.options.types import parsed
from ottla.cli.output.json_text import json_text
from ottla.cli.output.tables import terminal_width
from ottla.cli.reset import Move, move_dict, moves_text, parse_selection, plan, require_partitions
from ottla.cli.values.places import Kind, LastRecords, Place, Shift
from ottla.errors import BrokerError
from ottla.text import printable

if TYPE_CHECKING:
    from ottla.admin import Admin, Committed
    from ottla.model import TopicPartition

Selection = tuple[str, list[int] | None]


@click.group()
def groups() -> None:
    """List, describe, reset and delete consumer groups.

    \b
    Examples:
      ottla groups list
      ottla groups describe billing
      ottla groups reset billing --to -2h --topic clicks --dry-run
      ottla groups delete billing
    """


@groups.command("list")
@internal_option
@json_option
@with_admin
def list_groups(admin: Admin, *, internal: bool, as_json: bool) -> None:
    """List groups with their state and protocol.

    Groups in which Ottla keeps positions are left out.

    \b
    Examples:
      ottla groups list
      ottla groups list --internal
      ottla groups list --json
    """
    existing = admin.groups.list_groups()
    listed = [group for group in existing if internal or not is_internal_group(group.name)]
    if as_json:
        click.echo(json_text([listed_dict(group) for group in listed]))
    elif listed:
        click.echo(listed_text(listed, width=terminal_width()))
    else:
        click.echo("no groups", err=True)
    say_hidden(len(existing) - len(listed), "group")


@groups.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP...", shell_complete=complete_groups)
@json_option
@with_admin
def describe(admin: Admin, *, names: tuple[str, ...], as_json: bool) -> None:
    """Show state, members and lag of groups.

    The lag is the distance from the committed offset to the end of the log. Partitions of the same topics without a
    commit are shown, too, and marked.

    \b
    Examples:
      ottla groups describe billing
      ottla groups describe billing audit --json
    """
    described = [(admin.groups.describe(name), admin.groups.lag(name)) for name in names]
    if as_json:
        click.echo(json_text([group_dict(group, lags) for group, lags in described]))
    else:
        click.echo("\n\n".join(group_text(group, lags, width=terminal_width()) for group, lags in described))


@groups.command()
@click.argument("name", metavar="GROUP", shell_complete=complete_groups)
@to_option("Where to move the offsets", kinds=frozenset(Kind))
@old_flag("--to-earliest", "--to", "earliest")
@old_flag("--to-latest", "--to", "latest")
@old_spelling("--to-time", "--to", metavar="TIME")
@old_spelling("--to-offset", "--to", metavar="N")
@old_spelling("--to-group", "--to", form="group:{}", metavar="NAME")
@old_spelling("--shift", "--to", form="shift:{}", metavar="N")
@click.option(
    "--topic",
    "selections",
    multiple=True,
    metavar="TOPIC[:PARTITIONS]",
    callback=parsed(parse_selection),
    shell_complete=complete_topics,
    help="Only this topic, or partitions of it: clicks:0,2-4. Repeatable.  [default: all with a commit]",
)
@click.option("--new", "is_new", is_flag=True, help="Create the group if it does not exist.")
@yes_option
@dry_run_option
@json_option
@with_admin
def reset(
    admin: Admin,
    *,
    name: str,
    goal: Place | None,
    selections: tuple[Selection, ...],
    is_new: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Move the offsets of a group without members.

    Shows them before and after. Offsets outside a log are cut to its ends. A group with members is refused: stop them
    first. Asks for confirmation if committed offsets would be replaced.

    \b
    Examples:
      ottla groups reset billing --to earliest --dry-run
      ottla groups reset billing --to 2025-03-01T12:00Z --topic clicks
      ottla groups reset billing --to shift:-1000 --topic clicks:0,2-4
      ottla groups reset billing-2 --new --to group:billing
    """
    if goal is None:
        raise UsageError("--to PLACE is missing: where to move the offsets, for example --to earliest")
    _require_idle(admin, name, is_new=is_new)
    moves = _moves(admin, name, goal, selections)
    if not dry_run:
        replaced = sum(move.before is not None for move in moves)
        if replaced:
            if not yes:
                click.echo(moves_text(moves, width=terminal_width()), err=True)
            confirm(f"this replaces the {_partitions(replaced)} of group {printable(name)}", yes=yes)
        admin.groups.set_offsets(name, {move.partition: move.committed for move in moves})
    if as_json:
        rows = [move_dict(move) for move in moves]
        click.echo(json_text({"group": name, "reset": not dry_run, "partitions": rows}))
    else:
        click.echo(f"group {printable(name)} {'would be' if dry_run else 'is'} reset:")
        click.echo(moves_text(moves, width=terminal_width()))


@groups.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP...", shell_complete=complete_groups)
@yes_option
@dry_run_option
@json_option
@with_admin
def delete(admin: Admin, *, names: tuple[str, ...], yes: bool, dry_run: bool, as_json: bool) -> None:
    """Delete groups and their offsets. Asks for confirmation.

    A group with members is refused: stop them first.

    \b
    Examples:
      ottla groups delete billing audit
      ottla groups delete billing --dry-run
      ottla groups delete billing --yes
    """
    for name in names:
        _require_idle(admin, name, hint="")
    offsets = {name: len(admin.groups.committed(name)) for name in names}
    summary = ", ".join(f"{printable(name)} ({_partitions(count)})" for name, count in offsets.items())
    if not dry_run:
        confirm(f"this deletes {summary}", yes=yes)
    elif not as_json:
        click.echo(f"would delete {summary}")
    for name in () if dry_run else names:
        admin.groups.delete(name)
        if not as_json:
            click.echo(f"deleted {printable(name)}")
    if as_json:
        shown = [{"name": name, "partitions": count} for name, count in offsets.items()]
        click.echo(json_text({"deleted": not dry_run, "groups": shown}))


def _partitions(count: int) -> str:
    return f"offsets of {count} partition{'s' if count != 1 else ''}"


_NEW = "to set offsets of a group before its first use, add --new"


def _require_idle(admin: Admin, name: str, *, is_new: bool = False, hint: str = _NEW) -> None:
    """Raise an error if the group does not exist, unless it is to be new, or if it has members."""
    from ottla.admin.groups import in_use
    from ottla.errors import ErrorCode

    try:
        members = admin.groups.describe(name).members
    except BrokerError as error:
        if error.code is not ErrorCode.group_id_not_found:
            raise
        if is_new:
            return
        if hint:
            click.echo(hint, err=True)
        raise
    if members:
        raise in_use(name, members)


def _moves(admin: Admin, name: str, goal: Place, selections: Collection[Selection]) -> list[Move]:
    other_group = None if isinstance(goal, str | int | datetime | LastRecords | Shift) else goal.group
    before = admin.groups.committed(name)
    other = {} if other_group is None else _committed_by(admin, other_group)
    partitions = _selected(admin, selections)
    if not selections:
        source, partitions = (name, list(before)) if other_group is None else (other_group, list(other))
        if not partitions:
            raise UsageError(f"group {source} has no committed offsets: name topics with --topic")
    at_time = admin.list_offsets(partitions, goal) if isinstance(goal, datetime) else {}
    return plan(goal, admin.log_ranges(partitions), before=before, at_time=at_time, other=other)


def _committed_by(admin: Admin, name: str) -> dict[TopicPartition, Committed]:
    """Return what another group has committed. Raises `UsageError` if it does not exist."""
    committed = admin.groups.committed(name)
    if not committed and all(group.name != name for group in admin.groups.list_groups()):
        raise UsageError(f"--to: group {printable(name)} does not exist: 'ottla groups list' shows all groups")
    return committed


def _selected(admin: Admin, selections: Collection[Selection]) -> list[TopicPartition]:
    from ottla.model import TopicPartition

    selected: dict[TopicPartition, None] = {}
    for topic in admin.describe_topics({name for name, _ in selections}):
        existing = [partition.index for partition in topic.partitions]
        for indexes in (indexes for name, indexes in selections if name == topic.name):
            require_partitions(topic.name, indexes, existing)
            selected.update(dict.fromkeys(TopicPartition(topic.name, index) for index in indexes or existing))
    return list(selected)
