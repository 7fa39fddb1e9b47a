"""Plans and carries out moves for several commands: the preview, the question, the live line, the receipt."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from ottla.cli.errors import CommandFailed
from ottla.cli.options.confirmation import confirm
from ottla.cli.options.same_cluster import same_cluster
from ottla.cli.output.json_text import json_text
from ottla.cli.output.tables import terminal_width
from ottla.cli.reassign.view import preview_text, progress_text, receipt_text
from ottla.cli.terminal.progress import LiveLine
from ottla.cli.terminal.stopping import Stopping
from ottla.cli.values.quantities import show_size
from ottla.text import printable

if TYPE_CHECKING:
    from ottla.admin import Admin
    from ottla.operations.moves import Goal, Plan, Progress, Receipt, Survey

_LINE_END = "\n"


def planned(admin: Admin, goal: Goal) -> tuple[Plan, Survey]:
    """Return the plan for a goal, and the layout it was made from. Asks brokers; changes nothing."""
    from ottla.operations.moves import make_plan, survey

    found = survey(admin.cluster, deadline=admin.cluster.deadline())
    for broker, reason in sorted(found.away.items()):
        click.echo(f"warning: broker {broker} does not say how large its replicas are: {printable(reason)}", err=True)
    return make_plan(found.layout, goal), found


def rate_for_preview(throttle: int | str) -> int | None:
    """Return the rate that a preview counts with: `auto` begins with one."""
    from ottla.operations.moves.pacing import START

    if isinstance(throttle, int):
        return throttle
    return START if throttle == "auto" else None


def show_preview(plan: Plan, found: Survey, throttle: int | str, *, as_json: bool, path: Path | None = None) -> None:
    """Print what a plan would do."""
    from ottla.operations.moves.preview import preview

    view = preview(plan, found.layout, rate=rate_for_preview(throttle))
    if as_json:
        click.echo(json_text({"purpose": plan.purpose, "plan": None if path is None else str(path), **view.to_json()}))
    else:
        click.echo(preview_text(plan, view, width=terminal_width()))


def ask_and_run(
    context: click.Context,
    admin: Admin,
    plan: Plan,
    found: Survey,
    path: Path,
    *,
    throttle: int | str,
    lost_seconds: float,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Show a plan, ask, write it to `path` and carry it out. Ends the command."""
    from ottla.operations.moves import write_plan

    if dry_run or not plan.moves:
        show_preview(plan, found, throttle, as_json=as_json)
        return
    if not as_json:
        show_preview(plan, found, throttle, as_json=False)
    confirm(f"this moves {plan.moved_replicas:,} replicas ({show_size(plan.moved_bytes)})", yes=yes)
    if path.exists():
        raise CommandFailed(
            f"{path} exists: continue it with 'ottla reassign run {path}', or remove it to begin with a new plan"
        )
    write_plan(path, plan)
    click.echo(same_cluster(f"plan: {path}; 'ottla reassign run {path}' continues if this is interrupted"), err=True)
    carry_out(context, admin, plan, path, throttle=throttle, lost_seconds=lost_seconds, as_json=as_json)


def carry_out(
    context: click.Context,
    admin: Admin,
    plan: Plan,
    path: Path,
    *,
    throttle: int | str,
    lost_seconds: float,
    as_json: bool,
    interval: float = 2.0,
) -> None:
    """Run a plan and print its receipt. Ends the command: 0 if complete, 1 if not, 128 and more after a signal."""
    from ottla.operations.moves import RunFiles, RunOptions, run_plan

    newest: list[Progress] = []

    def status() -> str:
        return progress_text(newest[-1]) if newest else "looking at the cluster"

    said = [0.0]

    def watch(progress: Progress) -> None:
        newest[:] = [progress]
        # Without a terminal there is no live line: a line now and then instead.
        if not live.is_live and time.monotonic() - said[0] >= _LINE_SECONDS:
            said[0] = time.monotonic()
            live.say(progress_text(progress, has_bar=False))

    files = RunFiles(path)
    with (
        Stopping("waiting for the moves that run; press Ctrl-C again to move them back") as stopping,
        LiveLine(status) as live,
    ):
        receipt = run_plan(
            admin.cluster,
            plan,
            files,
            options=RunOptions(
                rate=throttle,
                is_rate_given=context.get_parameter_source("throttle") is ParameterSource.COMMANDLINE,
                lost_seconds=lost_seconds,
                interval=interval,
            ),
            tell=lambda text: live.say(same_cluster(text)),
            watch=watch,
            is_stopped=lambda: stopping.asked > 0,
        )
    report(receipt, files.receipt, as_json=as_json)
    if receipt.outcome == "cancelled" and not as_json:
        back, on = f"'ottla reassign run {files.undo}' moves it back", f"'ottla reassign run {path}' goes on"
        click.echo(same_cluster(f"what had arrived stays: {back}, {on}"), err=True)
    if stopping.asked and not receipt.is_complete:
        click.echo(same_cluster(f"'ottla reassign run {path}' goes on"), err=True)
        context.exit(stopping.exit_code)
    context.exit(0 if receipt.is_complete else 1)


_LINE_SECONDS = 30.0


def report(receipt: Receipt, path: Path | None, *, as_json: bool) -> None:
    """Print a receipt."""
    if as_json:
        click.echo(json_text(receipt.to_json()))
        return
    click.echo(printable(receipt_text(receipt), keep=_LINE_END))
    if path is not None:
        click.echo(f"receipt: {path}", err=True)
