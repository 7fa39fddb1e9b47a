"""`ottla reassign run`: carries out a plan, or continues it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ottla.cli.options.common import json_option
from ottla.cli.options.confirmation import confirm, yes_option
from ottla.cli.options.connection import with_admin
from ottla.cli.reassign.options import lost_option, plan_argument, throttle_option
from ottla.cli.values.quantities import show_size

if TYPE_CHECKING:
    from ottla.admin import Admin


@click.command()
@plan_argument
@throttle_option
@lost_option
@yes_option
@json_option
@with_admin
@click.pass_context
def run(
    context: click.Context,
    /,
    admin: Admin,
    *,
    plan: Path,
    throttle: int | str,
    lost_seconds: float,
    yes: bool,
    as_json: bool,
) -> None:
    """Carry out PLAN, or continue it after it was stopped or killed. Asks for confirmation before it begins.

    Refuses, with nothing changed, if the plan is for another cluster, if replicas have changed since, if other moves
    are running, if partitions elsewhere are unhealthy, or if a disk is too small. Begins small moves first, a few per
    broker. The throttle covers moves only, and is removed at the end. Files beside the plan keep what another
    run needs; PLAN.undo.json moves everything back.

    Ctrl-C waits for the moves that run; a second one moves them back. Exit codes: 0 if everything is as planned, 1 if
    not, 130 after Ctrl-C.

    \b
    Examples:
      ottla reassign run drain.json
      ottla reassign run drain.json --throttle 50MB/s --yes
      ottla reassign run drain.undo.json
    """
    from ottla.cli.reassign.carrying import carry_out
    from ottla.operations.moves import RunFiles, read_plan
    from ottla.operations.moves.plan_file import digest_of

    made = read_plan(plan)
    state = RunFiles(plan).state()
    if state is None or state.digest != digest_of(made):
        what = f"this moves {made.moved_replicas:,} replicas ({show_size(made.moved_bytes)}): {made.purpose}"
        confirm(what, yes=yes)
    carry_out(context, admin, made, plan, throttle=throttle, lost_seconds=lost_seconds, as_json=as_json)
