"""`ottla work reset` and `ottla work topics`: where a group goes on, which topics it works on, what its nodes agree on.

The commands parse, ask and print; what they do to a group is in `working.changing`. Nodes may run meanwhile.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from ottla.cli import Misuse
from ottla.cli.options.connecting import with_admin
from ottla.cli.options.fleet import look, with_store
from ottla.cli.options.general import json_option
from ottla.cli.options.reading import parsed, partition_option
from ottla.cli.resetting import Goal, Move, ToOffset, ToTime
from ottla.cli.values import places
from ottla.cli.views.groups import move_dict, moves_text
from ottla.cli.views.tables import table, terminal_width
from ottla.errors import InputError

if TYPE_CHECKING:
    from ottla.admin import Admin
    from ottla.engines.fleet.store import Store


def _goal(text: str) -> Goal:
    from ottla.admin import OffsetSpec

    place = places.parse_place(text, now=datetime.now(UTC))
    match place:
        case "earliest":
            return OffsetSpec.EARLIEST
        case "latest":
            return OffsetSpec.LATEST
        case datetime():
            return ToTime(place)
        case int():
            return ToOffset(place)
    raise ValueError(f"{text!r} is nowhere to go: earliest, latest, an offset or a time")


@click.command()
@click.option("--topic", metavar="TOPIC", help="Which.")
@partition_option
@click.option("--to", "goal", metavar="PLACE", callback=parsed(_goal), help="earliest, latest, an offset or a time.")
@click.option("--dry-run", is_flag=True, help="Show before and after; change nothing.")
@click.option(
    "--settings",
    "is_settings",
    is_flag=True,
    help="Instead: change what all nodes agree on, with the next three, while no node runs.",
)
@click.option("--ordered/--unordered", "ordered", default=None, help="At most one unit of a partition at a time.")
@click.option("--max-attempts", type=click.IntRange(1), metavar="N", help="Until a unit comes to the error list.")
@click.option("--lease", type=click.FloatRange(0.5, 86_400), metavar="SECONDS", help="How long a node may be silent.")
@json_option
@with_store
@with_admin
def reset(
    admin: Admin,
    *,
    store: Store,
    group: str,
    topic: str | None,
    partitions: list[int] | None,
    goal: Goal | None,
    dry_run: bool,
    is_settings: bool,
    ordered: bool | None,
    max_attempts: int | None,
    lease: float | None,
    as_json: bool,
) -> None:
    """Let a group go on elsewhere in a topic, and show its positions before and after.

    Units of the partition that wait, are worked on or are on the error list are gone; whoever works on one has lost it.
    Offsets outside of a log are cut to its ends, which is said. A topic that was deleted and created again goes on
    with the new one.

    \b
    Examples:
      ottla work reset --topic clicks --to -2h --store redis://localhost --dry-run
      ottla work reset --topic clicks --partition 0,2 --to 1000 --store redis://localhost
      ottla work reset --settings --ordered --max-attempts 3 --store redis://localhost
    """
    from ottla.cli.working import changing

    wanted = {"ordered": ordered, "max_attempts": max_attempts, "lease_seconds": lease}
    settings = {name: value for name, value in wanted.items() if value is not None}
    if is_settings:
        if topic is not None or partitions is not None or goal is not None:
            raise Misuse("--settings keeps all positions: leave out --topic, --partition and --to")
        _reset_settings(admin, store, group, settings, dry_run=dry_run, as_json=as_json)
        return
    if settings:
        raise Misuse("--ordered, --max-attempts and --lease are for --settings")
    if topic is None or goal is None:
        raise Misuse("give --topic TOPIC and --to PLACE: earliest, latest, an offset or a time")
    look(store, group)
    moves = changing.plan_reset(admin, store, group, topic, partitions, goal)
    if not dry_run:
        changing.reset(admin, store, group, topic, moves)
    _show(group, moves, dry_run=dry_run, as_json=as_json)


@click.group()
def topics() -> None:
    """Topics that a group works on. What is changed here holds for all nodes, within a second.

    \b
    Examples:
      ottla work topics list --store redis://localhost
      ottla work topics add orders --store redis://localhost
      ottla work topics remove clicks --store redis://localhost
    """


@topics.command("list")
@json_option
@with_store
def list_topics(*, store: Store, group: str, as_json: bool) -> None:
    """List the topics of a group, and those of which units or positions are left.

    \b
    Example:
      ottla work topics list --store redis://localhost
    """
    from ottla.cli.working import changing

    rows = changing.listed(look(store, group))
    if as_json:
        click.echo(json.dumps([row._asdict() for row in rows]))
    elif rows:
        lines = [
            (row.name, "yes" if row.planned else "no", *map(str, row[2:-1]), row.id or "not planned yet")
            for row in rows
        ]
        headings = ("topic", "planned", "partitions", "waiting", "out", "failed", "id")
        click.echo(table(headings, lines, width=terminal_width()))
    else:
        click.echo(f"group {group} has no topics", err=True)


@topics.command()
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
@json_option
@with_store
@with_admin
def add(admin: Admin, *, store: Store, group: str, names: tuple[str, ...], as_json: bool) -> None:
    """Let a group work on more topics. Where they begin is what the nodes were started with (--start).

    \b
    Example:
      ottla work topics add orders users --store redis://localhost
    """
    look(store, group)
    for name in names:
        admin.cluster.topic(name)
    store.add_topics(dict.fromkeys(names, ""))
    _tell(group, {"added": list(names)}, f"group {group} works on {', '.join(names)}", as_json=as_json)


@topics.command()
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
@json_option
@with_store
def remove(*, store: Store, group: str, names: tuple[str, ...], as_json: bool) -> None:
    """Plan no more of these topics. Units that wait are worked on, and the positions are kept.

    \b
    Example:
      ottla work topics remove clicks --store redis://localhost
    """
    there = look(store, group).topics
    for name in names:
        if name not in there:
            raise InputError(f"group {group} does not work on {name}: it has {', '.join(sorted(there)) or 'no topics'}")
    store.remove_topics(names)
    _tell(group, {"removed": list(names)}, f"group {group} plans no more of {', '.join(names)}", as_json=as_json)


def _reset_settings(
    admin: Admin, store: Store, group: str, settings: dict[str, Any], *, dry_run: bool, as_json: bool
) -> None:
    from ottla.cli.working import changing

    if not settings:
        raise Misuse("--settings needs --ordered or --unordered, --max-attempts or --lease")
    look(store, group)
    before, after = changing.settings_of(store, settings)
    changing.refuse_busy(store, group)
    if not dry_run:
        changing.found_anew(admin, store, group, after)
    changes = {name: [getattr(before, name), getattr(after, name)] for name in settings}
    if as_json:
        click.echo(json.dumps({"group": group, "reset": not dry_run, "settings": changes}))
        return
    click.echo(f"the settings of group {group} {'would be' if dry_run else 'are'} changed:")
    rows = [(name, str(old), str(new)) for name, (old, new) in changes.items()]
    click.echo(table(("setting", "before", "after"), rows, width=terminal_width(), indent=2))


def _show(group: str, moves: list[Move], *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        click.echo(
            json.dumps({"group": group, "reset": not dry_run, "partitions": [move_dict(move) for move in moves]})
        )
        return
    click.echo(f"group {group} {'would be' if dry_run else 'is'} reset:")
    click.echo(moves_text(moves, width=terminal_width()))


def _tell(group: str, row: dict[str, Any], text: str, *, as_json: bool) -> None:
    click.echo(json.dumps({"group": group, **row}) if as_json else text)
