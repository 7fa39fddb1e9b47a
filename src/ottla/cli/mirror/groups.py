"""`ottla mirror groups`: committed offsets of consumer groups from one side of a link to the other, once."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from ottla.cli.completion.values import complete_groups
from ottla.cli.errors import CommandFailed
from ottla.cli.mirror.links import require_link, require_source
from ottla.cli.mirror.sides import brief_timeout_option, journal_option, link_name_option, side_option, within
from ottla.cli.mirror.view import moves_text
from ottla.cli.options.common import json_option
from ottla.cli.options.confirmation import dry_run_option
from ottla.cli.output.json_text import json_text
from ottla.cli.output.tables import terminal_width

if TYPE_CHECKING:
    from ottla.jobs.brokers import Brokers
    from ottla.jobs.mirror_groups import Move


@click.command()
@click.argument("patterns", nargs=-1, required=True, metavar="GROUP...", shell_complete=complete_groups)
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
        require_link(there, journal, link)
        require_source(here, there, journal, link)
        kept = Journal(there, link=link, topic=journal)
        resources.callback(kept.close)
        _, noted = published(kept)
        reached = {each.source: noted_position(each.terms, noted.get(each.source)) for each in known_maps(kept)}
        maps = settled_maps(kept, there, known_maps(kept, reached))
        moves = GroupSync(here, there, kept, patterns, reverse=reverse).run(maps, dry_run=dry_run)
    if as_json:
        click.echo(json_text([move.to_json() for move in moves]))
    elif moves:
        click.echo(moves_text(moves, width=terminal_width(), reverse=reverse))
        done = sum(move.outcome in (Outcome.COMMITTED, Outcome.WOULD_COMMIT) for move in moves)
        click.echo(f"{done} of {len(moves)} offsets {'would be' if dry_run else 'were'} committed", err=True)
    elif not _without_offsets(patterns, moves):
        click.echo("no such group has committed offsets of mirrored partitions", err=True)
    missing = _without_offsets(patterns, moves)
    if missing:
        side = "target" if reverse else "source"
        raise CommandFailed(
            f"group {', '.join(missing)}: no committed offsets of mirrored partitions at the {side}, or the"
            " user may not see them"
        )


def _without_offsets(patterns: tuple[str, ...], moves: list[Move]) -> list[str]:
    """Return the groups that were named, not matched, and have nothing to translate."""
    found = {move.group for move in moves}
    return [name for name in patterns if name not in found and not any(sign in name for sign in "*?[")]
