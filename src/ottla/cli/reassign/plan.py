"""`ottla reassign plan`: a plan of moves, as a file and a preview. It changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ottla.cli.completion.values import complete_brokers, complete_topics
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.options.common import check_topic, json_option
from ottla.cli.options.connection import with_admin
from ottla.cli.options.same_cluster import same_cluster
from ottla.cli.options.types import Integer, parsed
from ottla.cli.reassign.options import throttle_option

if TYPE_CHECKING:
    from ottla.admin import Admin


def _factor(text: str) -> tuple[str, int]:
    topic, separator, count = text.rpartition("=")
    if not separator or not count.isdecimal():
        raise ValueError(f"{text!r} is not TOPIC=N, for example clicks=3")
    return check_topic(topic), int(count)


@click.command()
@click.option(
    "--drain",
    "drained",
    type=Integer(0),
    multiple=True,
    metavar="ID",
    shell_complete=complete_brokers,
    help="Empty this broker. Repeatable.",
)
@click.option("--repair", is_flag=True, help="Replace the replicas on brokers that are down for good.")
@click.option("--balance", is_flag=True, help="Even out replicas, those of each topic, and leaders; use new brokers.")
@click.option(
    "--replicas",
    "factors",
    multiple=True,
    metavar="TOPIC=N",
    callback=parsed(_factor),
    help="Change the replication factor of a topic. Repeatable.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    callback=parsed(check_topic),
    shell_complete=complete_topics,
    help="Only this. Repeatable.",
)
@click.option(
    "--least",
    type=click.Choice(["bytes", "replicas"]),
    default="bytes",
    show_default=True,
    help="What to move as little of as possible.",
)
@click.option("--ignore-racks", is_flag=True, help="Replicas of a partition may share a rack.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the plan to this file.")
@throttle_option
@json_option
@with_admin
def plan(
    admin: Admin,
    *,
    drained: tuple[int, ...],
    repair: bool,
    balance: bool,
    factors: tuple[tuple[str, int], ...],
    topics: tuple[str, ...],
    least: str,
    ignore_racks: bool,
    out: Path | None,
    throttle: int | str,
    as_json: bool,
) -> None:
    """Plan moves of replicas, as few as possible, and say what they cost. Changes nothing.

    --drain, --repair and --replicas move only what has to move. --balance moves the least that makes brokers even. Each
    partition is spread over as many racks as possible. The same cluster gives the same plan. --throttle is for the
    estimate only; 'ottla reassign run' has its own.

    \b
    Examples:
      ottla reassign plan --drain 4 --out drain.json
      ottla reassign plan --balance --least replicas --throttle 50MB/s
      ottla reassign plan --repair --out repair.json
      ottla reassign plan --replicas clicks=3 --replicas users=2 --out factor.json
    """
    from ottla.cli.reassign.carrying import planned, show_preview
    from ottla.operations.moves import Cost, Goal, Racks, write_plan

    if not (drained or repair or balance or factors):
        raise UsageError("the plan has no goal: pass --drain ID, --repair, --balance or --replicas TOPIC=N")
    if out is not None and out.exists():
        raise CommandFailed(f"{out} exists: choose another name, or remove it")
    goal = Goal(
        drain=frozenset(drained),
        is_repair=repair,
        is_balance=balance,
        replicas=dict(factors),
        topics=frozenset(topics) or None,
        cost=Cost(least),
        racks=Racks.IGNORE if ignore_racks else Racks.SPREAD,
    )
    made, found = planned(admin, goal)
    if out is not None and made.moves:
        write_plan(out, made)
    show_preview(made, found, throttle, as_json=as_json, path=out if made.moves else None)
    if out is None and made.moves:
        said = "nothing was written: --out FILE writes the plan for 'ottla reassign run FILE'"
        click.echo(same_cluster(said), err=True)
    elif made.moves:
        click.echo(same_cluster(f"plan: {out}; 'ottla reassign run {out}' carries it out"), err=True)
