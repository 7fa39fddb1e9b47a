"""`ottla topics replicas`: changes the replication factor of a topic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ottla.cli.completion.values import complete_topics
from ottla.cli.errors import CommandFailed
from ottla.cli.lazy import is_installed
from ottla.cli.options.common import check_topic, json_option
from ottla.cli.options.confirmation import dry_run_option, yes_option
from ottla.cli.options.connection import with_admin
from ottla.cli.options.types import Integer, parsed
from ottla.cli.reassign.options import lost_option, throttle_option

if TYPE_CHECKING:
    from ottla.admin import Admin


@click.command()
@click.argument("name", metavar="TOPIC", callback=parsed(check_topic), shell_complete=complete_topics)
@click.argument("count", metavar="N", type=Integer(1))
@throttle_option
@lost_option
@click.option(
    "--plan",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The plan's file.  [default: replicas-TOPIC-N.json]",
)
@yes_option
@dry_run_option
@json_option
@with_admin
@click.pass_context
def replicas(
    context: click.Context,
    /,
    admin: Admin,
    *,
    name: str,
    count: int,
    throttle: int | str,
    lost_seconds: float,
    path: Path | None,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Give each partition of TOPIC N replicas. Asks for confirmation.

    New replicas go to racks without one, and to brokers with the lowest load. A lower number gives up those of full
    brokers, and never the leader if another will do. min.insync.replicas stays: it must not exceed N.

    \b
    Examples:
      ottla topics replicas clicks 3 --throttle 50MB/s
      ottla topics replicas clicks 2 --dry-run
    """
    if not is_installed(("ortools",)):
        raise CommandFailed("'ottla topics replicas' needs extra packages: pip install 'ottla[operations]'")
    from ottla.cli.reassign.carrying import ask_and_run, planned
    from ottla.operations.moves import Goal

    made, found = planned(admin, Goal(replicas={name: count}))
    minimum = found.min_in_sync.get(name, 1)
    if minimum > count:
        raise CommandFailed(
            f"topic {name} has min.insync.replicas={minimum}: with {count} replicas, producers with acks=all could not"
            f" write. Lower it first: 'ottla topics alter {name} --setting min.insync.replicas={count}'"
        )
    ask_and_run(
        context,
        admin,
        made,
        found,
        path or Path(f"replicas-{name}-{count}.json"),
        throttle=throttle,
        lost_seconds=lost_seconds,
        yes=yes,
        dry_run=dry_run,
        as_json=as_json,
    )
