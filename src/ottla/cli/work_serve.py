"""`ottla work serve`: this machine works on the jobs that others put into a store, as `archive --engine fleet` does."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ottla.cli.options.bootstrap import bootstrap_option
from ottla.cli.options.fleet import named_store_option
from ottla.cli.options.reading import max_batch_bytes_option
from ottla.cli.options.security import security_options
from ottla.cli.terminal.stopping import Stopping

if TYPE_CHECKING:
    from ottla.config import Security


@click.command()
@named_store_option
@click.option(
    "--group", default="jobs", show_default=True, metavar="NAME", help="Nodes of one name work on the same jobs."
)
@click.option(
    "--folder",
    "folders",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="PATH",
    help="Only for archives in this folder. Repeatable.  [default: any archive that is there]",
)
@click.option("--threads", type=click.IntRange(1, 1024), metavar="N", help="Ranges at a time.  [default: processors]")
@max_batch_bytes_option
@bootstrap_option
@security_options
def serve(
    *,
    store: str,
    group: str,
    folders: tuple[Path, ...],
    threads: int | None,
    max_batch_bytes: int,
    bootstrap: str,
    security: Security,
) -> None:
    """Work on the jobs of a store, until Ctrl-C; ranges that are begun are finished.

    Jobs are data, not programs: a node reads from its own brokers, with its own --username, and writes to archives
    that are there. It must reach the same Kafka cluster as whoever asks, and the archive's folder under the same name.

    \b
    Examples:
      ottla work serve --store redis://host --bootstrap kafka:9092 --folder /shared
      ottla archive clicks --to /shared/clicks --engine fleet --store redis://host        elsewhere
    """
    from ottla.engines import local
    from ottla.engines.fleet import jobs
    from ottla.engines.fleet.store import open_store
    from ottla.fetch.options import Fetching
    from ottla.jobs.archive_kind import ArchiveKind
    from ottla.jobs.brokers import Brokers

    number = threads or local.default_workers()
    fetching = Fetching(max_batch_bytes=max_batch_bytes)
    kinds = [ArchiveKind(Brokers(bootstrap=bootstrap, security=security, fetching=fetching), folders=folders)]
    click.echo(f"working on jobs of {group}, {number} at a time; Ctrl-C ends it", err=True)
    with (
        Stopping("finishing what is begun; once more to leave it") as stopping,
        closing(open_store(store, group)) as found,
    ):
        jobs.serve(found, kinds=kinds, threads=number, is_stopped=lambda: stopping.asked)
