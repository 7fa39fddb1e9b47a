"""`ottla mirror groups`: committed offsets of consumer groups from one side of a link to the other, once."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from ottla.cli.errors import CommandFailed
from ottla.cli.mirror.sides import brief_timeout_option, journal_option, link_name_option, side_option, within
from ottla.cli.mirror.view import moves_text
from ottla.cli.options.common import json_option
from ottla.cli.options.confirmation import dry_run_option
from ottla.cli.output.json_text import json_text
from ottla.cli.output.tables import terminal_width

if TYPE_CHECKING:
    from ottla.jobs.brokers import Brokers


@click.command()
@click.argument("patterns", nargs=-1, required=True, metavar="GROUP...")
@side_option("from")
@side_option("to")
@link_name_option
@click.option("--reverse", is_flag=True, help="From the target back to the source, after a failover.")
@journal_option
@dry_run_option
@brief_timeout_option
@json_option
def groups(
    *,
    patterns: tuple[str, ...],
    source: Brokers,
    target: Brokers,
    link: str,
    reverse: bool,
    journal: str,
    dry_run: bool,
    timeout: float,
    as_json: bool,
) -> None:
    """Commit at the target what groups have committed at the source, translated exactly.

    GROUP is a name or a pattern with * and ?. A group that has members on the side that is written is left alone, and
    so is an offset that would go back, unless it went back on the other side, too. Offsets that are not mirrored yet
    wait. 'ottla mirror --follow --groups' does the same every few seconds.

    \b
    Examples:
      ottla mirror groups 'billing*' --from edge:9092 --to hub:9092 --name oslo
      ottla mirror groups billing --from edge:9092 --to hub:9092 --name oslo --reverse --dry-run
    """
    from ottla.jobs.mirror_groups import GroupSync, Outcome
    from ottla.jobs.mirror_maps import known_maps, settled_maps
    from ottla.jobs.mirror_status import noted_position, published
    from ottla.mirror.journal import Journal

    with ExitStack() as resources:
        here = resources.enter_context(within(source, timeout).cluster())
        there = resources.enter_context(within(target, timeout).cluster())
        kept = Journal(there, link=link, topic=journal)
        resources.callback(kept.close)
        if not kept.exists():
            raise CommandFailed(f"no link has mirrored to this cluster: there is no topic {journal}")
        _, noted = published(kept)
        reached = {each.source: noted_position(each.terms, noted.get(each.source)) for each in known_maps(kept)}
        maps = settled_maps(kept, there, known_maps(kept, reached))
        moves = GroupSync(here, there, kept, patterns, reverse=reverse).run(maps, dry_run=dry_run)
    if as_json:
        click.echo(json_text([move.to_json() for move in moves]))
    elif moves:
        click.echo(moves_text(moves, width=terminal_width()))
        done = sum(move.outcome is Outcome.COMMITTED for move in moves)
        click.echo(f"{done} of {len(moves)} offsets {'would be' if dry_run else 'were'} committed", err=True)
    else:
        click.echo("no such group has committed offsets of mirrored partitions", err=True)
