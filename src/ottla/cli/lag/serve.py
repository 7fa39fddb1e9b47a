"""`ottla lag serve`: polls for ever and serves the last poll over HTTP."""

from __future__ import annotations

import re
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.errors import UsageError
from ottla.cli.lag.options import make_poller, make_readers, rare_collections, reading_options
from ottla.cli.options.connection import with_admin
from ottla.cli.options.types import Duration, Integer, parsed
from ottla.cli.terminal.interruption import Interrupted, Interruption
from ottla.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.admin import Admin
    from ottla.operations.lag.changes import Change
    from ottla.operations.lag.values import Snapshot

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_ADDRESS = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\s:/\[\]@]+)):(?P<port>\d{1,5})")


def _address(text: str) -> tuple[str, int]:
    """`HOST:PORT`; port 0 is any free one."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or int(match["port"]) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT, for example 127.0.0.1:8000 or [::1]:8000")
    return match["ipv6"] or match["host"], int(match["port"])


@click.command()
@reading_options
@click.option(
    "--http",
    "address",
    default="127.0.0.1:8000",
    show_default=True,
    metavar="HOST:PORT",
    callback=parsed(_address),
    help="Where to listen. There is no login: every client that reaches the port may read.",
)
@click.option("--every", type=Duration(1, 3_600), default="30s", show_default=True, help="How often to poll.")
@click.option("--window", type=Integer(3, 1_000), default=10, show_default=True, help="Commits that states look at.")
@click.option(
    "--allowed-lag", type=Integer(0), default=0, show_default=True, help="Records of lag that are always well."
)
@click.option("--cluster", "name", metavar="NAME", help="Name of the cluster in paths and labels.  [default: its id]")
@click.option(
    "--metrics-family",
    "family",
    type=click.Choice(["a", "b", "both"]),
    default="a",
    show_default=True,
    help="Names as kafka-lag-exporter has them (a), as kafka_exporter has them (b), or both.",
)
@click.option("--history", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Keep what was seen.")
@click.option("--keep", type=Duration(60), default="7d", show_default=True, help="How long --history keeps it.")
@click.option("--webhook", metavar="URL", help="Post changes of a group's state to this address.")
@click.option(
    "--confirm",
    type=Integer(1, 1_000),
    default=3,
    show_default=True,
    help="Polls in a row that must see a state before it is posted.",
)
@with_admin
@click.pass_context
def serve(
    context: click.Context,
    /,
    *,
    admin: Admin,
    topics: re.Pattern[str] | None,
    with_internal: bool,
    checkpoints: tuple[Path, ...],
    journal: str,
    isolation: str,
    address: tuple[str, int],
    every: float,
    window: int,
    allowed_lag: int,
    name: str | None,
    family: str,
    history: Path | None,
    keep: float,
    webhook: str | None,
    confirm: int,
) -> None:
    """Poll all groups for ever, and serve the last poll over HTTP.

    Burrow's interface is below /v3/kafka, metrics for Prometheus are at /metrics, rows as JSON at /lag, stored looks at
    /history?group=NAME. No request asks Kafka. A change of state is posted once --confirm polls in a row have seen it.
    Ends cleanly on SIGTERM and Ctrl-C.

    \b
    Examples:
      ottla lag serve
      ottla lag serve --http 0.0.0.0:8000 --cluster prod --every 15s
      ottla lag serve --history lag.db --keep 30d --webhook https://alerts.example/hook
      curl -s 127.0.0.1:8000/v3/kafka/prod/consumer/billing/lag
    """
    from ottla.errors import ConfigError
    from ottla.net.waiting import Flag
    from ottla.operations.lag.changes import Hysteresis
    from ottla.operations.lag.evaluate import Evaluator
    from ottla.operations.lag.history import History
    from ottla.operations.lag.server import LagServer
    from ottla.operations.lag.watcher import Poster, Watcher

    stored: History | None = None

    def looks(group: str, since: float) -> list[dict[str, Any]]:
        return [] if stored is None else stored.looks(group, since)

    def accepted(of_cluster: str, changes: Sequence[Change]) -> None:
        if stored is not None:
            stored.note_told(of_cluster, changes)

    def latest() -> Snapshot | None:
        return watcher.latest()

    with ExitStack() as resources, rare_collections():
        try:
            poster = None if webhook is None else Poster(webhook, accepted=accepted)
        except ConfigError as error:
            raise UsageError(f"--{error}") from error
        # Before a file is made: the port may be in use.
        server = LagServer(
            *address,
            latest=latest,
            cluster=name,
            bootstrap=[str(each) for each in admin.cluster.bootstrap],
            family=family,
            history=None if history is None else looks,
        )
        resources.callback(server.close)
        if history is not None:
            stored = resources.enter_context(History(history, keep_seconds=keep))
        if poster is not None:
            resources.enter_context(poster)  # it ends before the history, which it writes to
        watcher = Watcher(
            make_poller(
                admin.cluster,
                groups=(),
                topics=topics,
                with_internal=with_internal,
                isolation=isolation,
                all_topics=True,
            ),
            Evaluator(length=window, allowed_lag=allowed_lag),
            every=every,
            others=make_readers(
                resources, admin.cluster, groups=(), topics=topics, checkpoints=checkpoints, journal=journal
            ),
            history=stored,
            window_seconds=window * every,
            hysteresis=Hysteresis(confirm),
            on_changes=None if poster is None else poster.add,
        )
        admin.cluster.metadata([])  # a wrong address of the brokers fails now, not in every poll
        with Interruption() as interruption, suppress(Interrupted):
            resources.enter_context(server)
            click.echo(f"serving lag at {printable(server.url)}", err=True)
            if address[0] not in _LOOPBACK:
                click.echo("warning: this address may be reached from elsewhere, and there is no login", err=True)
            interruption.wait(lambda: watcher.run(Flag()))
        context.exit(interruption.exit_code)
