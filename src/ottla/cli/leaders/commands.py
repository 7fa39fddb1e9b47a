"""`ottla leaders`: elect preferred leaders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ottla.cli.completion.values import complete_topics
from ottla.cli.errors import CommandFailed
from ottla.cli.options.common import check_topic, json_option
from ottla.cli.options.confirmation import dry_run_option
from ottla.cli.options.connection import with_admin
from ottla.cli.options.types import parsed
from ottla.cli.output.json_text import json_text
from ottla.text import printable

if TYPE_CHECKING:
    from ottla.admin import Admin
    from ottla.admin.reassignments import Errors


@click.group()
def leaders() -> None:
    """Have the preferred replicas lead.

    \b
    Examples:
      ottla leaders elect
      ottla leaders elect clicks users
    """


@leaders.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC...]", callback=parsed(check_topic), shell_complete=complete_topics)
@dry_run_option
@json_option
@with_admin
def elect(admin: Admin, *, topics: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Make the preferred replica of each partition its leader.

    It is the first in the list of replicas. Without TOPIC, all topics are looked at. After a broker was restarted its
    partitions are led by others. No data moves. A preferred replica that is down or out of sync cannot lead: these are
    named, and the exit code is 1.

    \b
    Examples:
      ottla leaders elect
      ottla leaders elect clicks --dry-run
    """
    from ottla.admin.reassignments import elect_preferred
    from ottla.model import TopicPartition

    described = admin.describe_topics(topics or None)
    partitions = [
        TopicPartition(topic.name, partition.index)
        for topic in described
        for partition in topic.partitions
        if partition.replicas and partition.leader != partition.replicas[0]
    ]
    elected = partitions
    errors: Errors = {}
    if not dry_run:
        elected, errors = elect_preferred(admin.cluster, partitions, deadline=admin.cluster.deadline())
    if as_json:
        failed = [{"topic": tp.topic, "partition": tp.partition, "error": str(errors[tp])} for tp in sorted(errors)]
        done = [{"topic": tp.topic, "partition": tp.partition} for tp in sorted(elected)]
        click.echo(json_text({"elected": done, "is_dry_run": dry_run, "failed": failed}))
    else:
        verb = "would get" if dry_run else "got"
        click.echo(f"{len(elected):,} partition{'s' if len(elected) != 1 else ''} {verb} the preferred leader")
    if errors:
        lines = "".join(f"\n  {printable(str(errors[tp]))}" for tp in sorted(errors))
        raise CommandFailed(f"{len(errors):,} preferred replicas cannot lead:{lines}")
