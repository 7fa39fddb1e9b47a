"""`ottla work serve`: run the jobs that `archive --engine fleet` and `mirror --engine fleet` put into a store."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.mirror.sides import FILE
from ottla.cli.options.bootstrap import bootstrap_option
from ottla.cli.options.common import max_batch_size_option, timeout_option, workers_option
from ottla.cli.options.security import security_options
from ottla.cli.options.store import named_store_option
from ottla.cli.terminal.stopping import Stopping

if TYPE_CHECKING:
    from ottla.config import Security
    from ottla.engines.fleet.job_notes import Kind


@click.command()
@named_store_option
@click.option("--group", default="jobs", show_default=True, metavar="NAME", help="The group that this command joins.")
@click.option(
    "--folder",
    "folders",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="PATH",
    help="Only archives in this folder. Repeatable.  [default: any archive]",
)
@click.option(
    "--mirror-config",
    type=FILE,
    help="TOML file with the links that this node may mirror, as for 'ottla mirror --config'.",
)
@workers_option("--threads", "Ranges at a time.  [default: processors]")
@max_batch_size_option
@bootstrap_option
@security_options
@timeout_option("60s")
def serve(
    *,
    store: str,
    group: str,
    folders: tuple[Path, ...],
    mirror_config: Path | None,
    threads: int | None,
    max_batch_size: int,
    bootstrap: str,
    security: Security,
    timeout: float,
) -> None:
    """Run the jobs of a store until Ctrl-C, which finishes the ranges in hand.

    Jobs are data, not programs: a node reads from its own brokers, with its own --username, and writes to existing
    archives. It must reach the same Kafka cluster as the client, and the archive's folder under the same path. It
    mirrors only links of its own --mirror-config, between the same clusters.

    \b
    Examples:
      ottla work serve --store redis://host --bootstrap kafka:9092 --folder /shared
      ottla archive clicks --to /shared/clicks --engine fleet --store redis://host        on another machine
      ottla work serve --store redis://host --mirror-config links.toml
      ottla mirror --config links.toml --link oslo --engine fleet --store redis://host    on another machine
    """
    from ottla.config import Timeouts
    from ottla.engines import local
    from ottla.engines.fleet import jobs
    from ottla.engines.fleet.store import open_store
    from ottla.fetch.options import Fetching
    from ottla.jobs.archive_kind import ArchiveKind
    from ottla.jobs.brokers import Brokers
    from ottla.jobs.mirror_file import read_links
    from ottla.jobs.mirror_kind import MirrorKind

    number = threads or local.default_workers()
    fetching = Fetching(max_batch_bytes=max_batch_size)
    brokers = Brokers(bootstrap=bootstrap, security=security, timeouts=Timeouts(total=timeout), fetching=fetching)
    kinds: list[Kind[Any]] = [ArchiveKind(brokers, folders=folders)]
    if mirror_config is not None:
        kinds.append(MirrorKind(read_links(mirror_config, environment=os.environ)))
    click.echo(f"running jobs of group {group}, {number} at a time; press Ctrl-C to stop", err=True)
    with (
        Stopping("finishing the ranges in hand; press Ctrl-C again to leave them") as stopping,
        closing(open_store(store, group)) as jobs_store,
    ):
        jobs.serve(jobs_store, kinds=kinds, threads=number, is_stopped=lambda: stopping.asked)
