"""`ottla reassign pause`, `resume`, `throttle` and `cancel`: tell a run what to do, through a file beside its plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.errors import CommandFailed
from ottla.cli.options.common import json_option
from ottla.cli.options.connection import with_admin
from ottla.cli.options.types import parsed
from ottla.cli.output.json_text import json_text
from ottla.cli.reassign.options import parse_throttle, plan_argument

if TYPE_CHECKING:
    from ottla.admin import Admin
    from ottla.operations.moves import Plan, RunFiles


def _running(plan: Path) -> RunFiles:
    from ottla.operations.moves import RunFiles, read_plan

    read_plan(plan)  # a wrong name or a damaged plan is an error
    files = RunFiles(plan)
    if not files.is_running():
        raise CommandFailed(f"no process on this machine runs {plan}: 'ottla reassign run {plan}' does")
    return files


def _tell(files: RunFiles, text: str, *, as_json: bool, **changes: Any) -> None:
    """Change what the run reads from its control file, and say so."""
    files.set_control(replace(files.control(), **changes))
    click.echo(json_text(changes) if as_json else text)


@click.command()
@plan_argument
@json_option
def pause(*, plan: Path, as_json: bool) -> None:
    """Have the run of PLAN begin no further moves. Those that run end.

    \b
    Examples:
      ottla reassign pause drain.json
    """
    _tell(_running(plan), "paused: moves that run end, no other begins", as_json=as_json, is_paused=True)


@click.command()
@plan_argument
@json_option
def resume(*, plan: Path, as_json: bool) -> None:
    """Have the paused run of PLAN go on.

    \b
    Examples:
      ottla reassign resume drain.json
    """
    _tell(_running(plan), "resumed", as_json=as_json, is_paused=False)


@click.command()
@plan_argument
@click.argument("rate", callback=parsed(parse_throttle))
@json_option
def throttle(*, plan: Path, rate: int | str, as_json: bool) -> None:
    """Change the throttle of the run of PLAN to RATE: auto, none, or bytes per second of each broker.

    \b
    Examples:
      ottla reassign throttle drain.json 100MB/s
      ottla reassign throttle drain.json auto
    """
    shown = rate if isinstance(rate, str) else f"{rate:,} bytes/s"
    _tell(_running(plan), f"the run takes the throttle {shown} within seconds", as_json=as_json, rate=rate)


@click.command()
@plan_argument
@json_option
@with_admin
def cancel(admin: Admin, *, plan: Path, as_json: bool) -> None:
    """Stop the run of PLAN. Partitions that move go back to their old replicas, and throttles are removed.

    Works without a running process, too. What has arrived stays: run PLAN.undo.json to move that back.

    \b
    Examples:
      ottla reassign cancel drain.json
    """
    from ottla.operations.moves import RunFiles, read_plan

    made = read_plan(plan)
    files = RunFiles(plan)
    if files.is_running():
        files.set_control(replace(files.control(), is_cancelled=True))
        click.echo("the run cancels within seconds; its process says how it ended", err=True)
        return
    _cancel_here(admin, made, files, as_json=as_json)


def _cancel_here(admin: Admin, made: Plan, files: RunFiles, *, as_json: bool) -> None:
    from ottla.cli.reassign.carrying import report
    from ottla.operations.moves.runner import cancel_plan

    report(cancel_plan(admin.cluster, made, files, tell=lambda text: click.echo(text, err=True)), None, as_json=as_json)
