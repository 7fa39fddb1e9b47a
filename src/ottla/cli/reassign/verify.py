"""`ottla reassign verify`: compares the cluster with a plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ottla.cli.options.common import json_option
from ottla.cli.options.connection import with_admin
from ottla.cli.reassign.options import plan_argument

if TYPE_CHECKING:
    from ottla.admin import Admin


@click.command()
@plan_argument
@json_option
@with_admin
@click.pass_context
def verify(context: click.Context, /, admin: Admin, *, plan: Path, as_json: bool) -> None:
    """Compare the replicas of the cluster with PLAN. Exit code 1 if a partition is not as planned. Changes nothing.

    \b
    Examples:
      ottla reassign verify drain.json
      ottla reassign verify drain.json --json
    """
    from ottla.cli.reassign.carrying import report
    from ottla.operations.moves import read_plan
    from ottla.operations.moves.inspecting import verify_plan

    receipt = verify_plan(admin.cluster, read_plan(plan))
    report(receipt, None, as_json=as_json)
    context.exit(0 if receipt.is_complete else 1)
