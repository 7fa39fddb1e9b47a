"""`ottla work serve`: this machine works on the jobs that others put into a store, as `archive --engine fleet` does."""

from __future__ import annotations

from contextlib import closing

import click

from ottla.cli.options.fleet import store_option
from ottla.cli.terminal.stopping import Stopping
from ottla.engines import local
from ottla.engines.fleet import jobs
from ottla.engines.fleet.jobs import JOBS
from ottla.engines.fleet.store import open_store


@click.command()
@store_option
@click.option(
    "--group", default=JOBS, show_default=True, metavar="NAME", help="Nodes of one name work on the same jobs."
)
@click.option("--threads", type=click.IntRange(1, 1024), metavar="N", help="Ranges at a time.  [default: processors]")
def serve(store: str, group: str, threads: int | None) -> None:
    """Work on the jobs of a store, until Ctrl-C; ranges that are begun are finished.

    Jobs are programs: whoever can write to the store can run code here. It must reach the brokers and, for archives,
    the folder, under the same names as whoever asks.

    \b
    Examples:
      ottla work serve --store redis://host
      ottla archive clicks --to /shared/clicks --engine fleet --store redis://host        elsewhere
    """
    number = threads or local.default_workers()
    click.echo(f"working on jobs of {group}, {number} at a time; Ctrl-C ends it", err=True)
    with (
        Stopping("finishing what is begun; once more to leave it") as stopping,
        closing(open_store(store, group)) as found,
    ):
        jobs.serve(found, threads=number, is_stopped=lambda: stopping.asked)
