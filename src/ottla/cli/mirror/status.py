"""`ottla mirror status`: lag, rate and errors of links, once or as a live table. No mirror needs to run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import click

from ottla.cli.errors import UsageError
from ottla.cli.mirror.links import links_at, require_link, require_source
from ottla.cli.mirror.sides import brief_timeout_option, journal_option, side_option, within
from ottla.cli.mirror.view import status_text
from ottla.cli.options.common import json_option
from ottla.cli.output.json_text import json_text
from ottla.cli.output.tables import terminal_width
from ottla.cli.terminal.interruption import Interrupted, Interruption, output_pipe
from ottla.cli.terminal.screen import Screen
from ottla.text import printable

if TYPE_CHECKING:
    from ottla.jobs.brokers import Brokers
    from ottla.jobs.mirror_status import LinkStatus
    from ottla.net import Cluster

_WATCH_SECONDS = 2.0


@click.command()
@side_option("to")
@side_option("from", required=False, note="Without it, lag is what the mirror last published.")
@click.option("--name", "link", metavar="LINK", help="Only this link.  [default: all that have a journal there]")
@journal_option
@click.option("--watch", is_flag=True, help="Refresh every two seconds until Ctrl-C.")
@brief_timeout_option
@json_option
@click.pass_context
def status(
    context: click.Context,
    /,
    *,
    source: Brokers | None,
    target: Brokers,
    link: str | None,
    journal: str,
    watch: bool,
    timeout: float,
    as_json: bool,
) -> None:
    """Show how far links are: lag in records, bytes and seconds, rate, share of batches passed on, last error.

    Positions and lag come from the journal and the brokers, whether the mirror runs or not; give --from for the lag of
    this moment. Rates, shares and errors are what the mirror's process published in the last seconds. A process that
    says nothing for a minute is shown as silent. --watch --json prints one list on a line each time.

    \b
    Examples:
      ottla mirror status --to hub:9092
      ottla mirror status --to hub:9092 --name oslo --from edge:9092 --watch
      ottla mirror status --to hub:9092 --json | jq '.[].lag_records'
    """
    with ExitStack() as resources:
        there = resources.enter_context(within(target, timeout).cluster())
        here = None if source is None else resources.enter_context(within(source, timeout).cluster())
        if link is not None:
            require_link(there, journal, link)
        names = [link] if link is not None else links_at(there, journal)
        if here is not None:
            if len(names) > 1:
                raise UsageError(f"--from needs --name: there are several links ({', '.join(map(printable, names))})")
            require_source(here, there, journal, names[0])
        read = _reader(resources, names, there, here, journal, timeout)
        if not watch:
            _show(read(), as_json=as_json)
            return
        with Interruption(output_pipe()) as interruption, suppress(Interrupted):
            screen = Screen(is_plain=as_json)
            while True:
                with suppress(BrokenPipeError):
                    _show(interruption.wait(read), as_json=as_json, show=screen.show)
                interruption.wait(lambda: time.sleep(_WATCH_SECONDS))
        context.exit(interruption.exit_code)


def _reader(
    resources: ExitStack, names: Sequence[str], target: Cluster, source: Cluster | None, topic: str, timeout: float
) -> Callable[[], list[LinkStatus]]:
    from ottla.jobs.mirror_status import read_status
    from ottla.mirror.journal import Journal

    journals = [Journal(target, link=name, topic=topic) for name in names]
    for journal in journals:
        resources.callback(journal.close)

    def read() -> list[LinkStatus]:
        return [
            read_status(journal, target, source=source, now=time.time(), seconds=min(10.0, timeout))
            for journal in journals
        ]

    return read


def _show(statuses: Sequence[LinkStatus], *, as_json: bool, show: Callable[[str], None] = click.echo) -> None:
    if as_json:
        click.echo(json_text([each.to_json() for each in statuses]))
        return
    now = time.time()
    show("\n".join(status_text(each, now=now, width=terminal_width()) for each in statuses))
