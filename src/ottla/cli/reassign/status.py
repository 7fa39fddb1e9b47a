"""`ottla reassign status`: how far the moves of a plan are, or all moves of the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ottla.cli.options.common import json_option
from ottla.cli.options.connection import with_admin
from ottla.cli.output.json_text import json_text
from ottla.cli.output.tables import table, terminal_width
from ottla.cli.reassign.view import progress_text
from ottla.cli.values.quantities import show_size
from ottla.text import printable

if TYPE_CHECKING:
    from ottla.admin import Admin


@click.command()
@click.argument("plan", required=False, type=click.Path(dir_okay=False, path_type=Path))
@json_option
@with_admin
def status(admin: Admin, *, plan: Path | None, as_json: bool) -> None:
    """Show how far PLAN is, and whether a process on this machine runs it; without PLAN, all moves of the cluster.

    \b
    Examples:
      ottla reassign status
      ottla reassign status drain.json --json
    """
    if plan is None:
        _all_moves(admin, as_json=as_json)
        return
    from ottla.operations.moves import RunFiles, read_plan
    from ottla.operations.moves.inspecting import progress_of

    made = read_plan(plan)
    files = RunFiles(plan)
    is_running = files.is_running()
    progress = progress_of(admin.cluster, made, files)
    if as_json:
        click.echo(json_text({"purpose": made.purpose, "is_running": is_running, **progress.to_json()}))
        return
    click.echo(f"{printable(made.purpose)}: {progress_text(progress)}")
    click.echo("a process on this machine runs it" if is_running else "no process on this machine runs it")


def _all_moves(admin: Admin, *, as_json: bool) -> None:
    from ottla.admin.movement import running_reassignments
    from ottla.admin.sizes import find_sizes

    deadline = admin.cluster.deadline()
    running = running_reassignments(admin.cluster, deadline=deadline)
    topics = admin.describe_topics({each.partition.topic for each in running})
    sizes = find_sizes(admin.cluster, topics, deadline=deadline).copies
    rows = []
    for each in sorted(running, key=lambda each: each.partition):
        present = {copy.broker: copy.size_bytes for copy in sizes.get(each.partition, ())}
        size = max((size for broker, size in present.items() if broker not in each.adding), default=0)
        left = sum(max(0, size - present.get(broker, 0)) for broker in each.adding)
        rows.append((each, size, left))
    if as_json:
        shown = [
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "replicas": list(each.replicas),
                "adding": list(each.adding),
                "removing": list(each.removing),
                "size_bytes": size,
                "left_bytes": left,
            }
            for each, size, left in rows
        ]
        click.echo(json_text(shown))
    elif rows:
        cells = [
            (str(each.partition), _ids(each.replicas), _ids(each.adding), _ids(each.removing), show_size(left))
            for each, _, left in rows
        ]
        click.echo(table(("partition", "replicas", "adding", "removing", "left"), cells, width=terminal_width()))
    else:
        click.echo("no replicas move", err=True)


def _ids(brokers: tuple[int, ...]) -> str:
    return ",".join(map(str, brokers)) or "-"
