"""`ottla work topics`: list, add and remove the topics that a group works on. Nodes may run meanwhile."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ottla.cli.options.common import json_option, topics_argument
from ottla.cli.options.connection import with_admin
from ottla.cli.options.store import look, with_store
from ottla.cli.output.tables import table, terminal_width
from ottla.cli.values.numbers import thousands
from ottla.errors import InputError

if TYPE_CHECKING:
    from ottla.admin import Admin
    from ottla.engines.fleet.store import Store
    from ottla.engines.fleet.units import PartitionState, Snapshot


@click.group()
def topics() -> None:
    """List, add and remove topics of a group. Changes apply to all nodes within a second.

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
    """List the topics of a group.

    Former topics that still have units or positions are listed, too.

    \b
    Example:
      ottla work topics list --store redis://localhost
    """
    rows = _listed(look(store, group))
    if as_json:
        click.echo(json.dumps([row._asdict() for row in rows]))
    elif rows:
        lines = [
            (row.name, "yes" if row.planned else "no", *map(thousands, row[2:-1]), row.id or "not planned yet")
            for row in rows
        ]
        headings = ("topic", "planned", "partitions", "waiting", "out", "failed", "id")
        click.echo(table(headings, lines, width=terminal_width()))
    else:
        click.echo(f"group {group} has no topics", err=True)


@topics.command()
@topics_argument
@json_option
@with_store
@with_admin
def add(admin: Admin, *, store: Store, group: str, topics: tuple[str, ...], as_json: bool) -> None:
    """Add topics to a group. They start where --from of the nodes says.

    \b
    Example:
      ottla work topics add orders users --store redis://localhost
    """
    look(store, group)
    for name in topics:
        admin.cluster.topic(name)
    store.add_topics(dict.fromkeys(topics, ""))
    _report(group, {"added": list(topics)}, f"group {group} works on {', '.join(topics)}", as_json=as_json)


@topics.command()
@topics_argument
@json_option
@with_store
def remove(*, store: Store, group: str, topics: tuple[str, ...], as_json: bool) -> None:
    """Plan no more units of these topics. Waiting units are still done, and positions are kept.

    \b
    Example:
      ottla work topics remove clicks --store redis://localhost
    """
    known = look(store, group).topics
    for name in topics:
        if name not in known:
            names = ", ".join(sorted(known)) or "no topics"
            raise InputError(f"group {group} does not work on {name}: it has {names}")
    store.remove_topics(topics)
    _report(
        group, {"removed": list(topics)}, f"group {group} plans no more units of {', '.join(topics)}", as_json=as_json
    )


class _ListedTopic(NamedTuple):
    """A topic of a group and its units."""

    name: str
    planned: bool
    """Whether new offsets become units."""
    partitions: int
    waiting: int
    out: int
    failed: int
    id: str


def _listed(snapshot: Snapshot) -> list[_ListedTopic]:
    names = sorted({*snapshot.topics, *(state.partition.topic for state in snapshot.partitions)})
    return [
        _list(name, snapshot, [state for state in snapshot.partitions if state.partition.topic == name])
        for name in names
    ]


def _list(name: str, snapshot: Snapshot, states: Sequence[PartitionState]) -> _ListedTopic:
    waiting, out, failed = (sum(getattr(state, count) for state in states) for count in ("waiting", "out", "failed"))
    topic_id = snapshot.topics.get(name, "")
    return _ListedTopic(name, name in snapshot.topics, len(states), waiting, out, failed, topic_id)


def _report(group: str, row: dict[str, Any], text: str, *, as_json: bool) -> None:
    click.echo(json.dumps({"group": group, **row}) if as_json else text)
