"""`ottla health probe`: a record through every broker each interval, and metrics over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import click

from ottla.cli.completion.values import complete_topics
from ottla.cli.health.check import WRONG, ignore_option, transaction_age_option
from ottla.cli.health.connecting import cluster_of
from ottla.cli.options.bootstrap import bootstrap_option
from ottla.cli.options.common import check_topic, json_option, timeout_option
from ottla.cli.options.same_cluster import connection_words
from ottla.cli.options.security import security_options
from ottla.cli.options.types import Duration, parsed
from ottla.cli.output.json_text import json_text
from ottla.cli.output.tables import terminal_width
from ottla.cli.terminal.interruption import Interrupted, Interruption
from ottla.cli.terminal.progress import LiveLine

if TYPE_CHECKING:
    from ottla.config import Security
    from ottla.operations.health.probe_tally import BrokerReport

_NAP = 0.1
_MOST_PORT = 65535


def _listener(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > _MOST_PORT:
        raise ValueError(f"{text!r} is not a port: write PORT or HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


@click.command()
@click.option(
    "--every",
    type=Duration(0.05),
    default="1s",
    show_default=True,
    help="How often a record goes through each broker, and how long it may take.",
)
@click.option("--for", "seconds", type=Duration(0.1), help="End after this time.  [default: at Ctrl-C]")
@click.option(
    "--serve",
    "listener",
    metavar="[HOST:]PORT",
    callback=parsed(_listener),
    help="Serve /metrics and /health there, on this machine unless HOST is given; 0 takes a free port.",
)
@click.option(
    "--look-every",
    type=Duration(0.5),
    default="30s",
    show_default=True,
    help="With --serve: how often the whole cluster is looked at.",
)
@click.option(
    "--topic",
    shell_complete=complete_topics,
    default="ottla-probe",
    show_default=True,
    metavar="TOPIC",
    callback=parsed(check_topic),
    help="The topic of the probe, created if it does not exist.",
)
@click.option("--remove", is_flag=True, help="Delete the topic at the end.")
@ignore_option
@transaction_age_option
@bootstrap_option
@security_options
@timeout_option()
@json_option
@click.pass_context
def probe(
    context: click.Context,
    /,
    *,
    every: float,
    seconds: float | None,
    listener: tuple[str, int] | None,
    look_every: float,
    topic: str,
    remove: bool,
    ignored: tuple[str, ...],
    transaction_age: float,
    bootstrap: str,
    security: Security,
    timeout: float,
    as_json: bool,
) -> None:
    """Write a record through every broker and read it back, each interval, and report what each broker did.

    The topic has a partition for each broker, whose only replica is there: what happens to it happens to the broker.
    A broker that does not take and return a record within the interval fails, and is named at once on stderr. The
    report has availability, latencies, losses and duplicates. Ten minutes of records are kept, and the topic stays
    unless --remove is given. With --serve, the whole cluster is looked at as well: /health has the verdict (status 503
    if it is unhealthy), /metrics has both for Prometheus. Exit codes: 0 every record went through, 1 failure, 2 usage
    error, 3 a broker failed, lost, repeated or damaged records, 130 after Ctrl-C.

    \b
    Examples:
      ottla health probe --for 60s
      ottla health probe --every 200ms --for 10s --json
      ottla health probe --serve 9308
      ottla health probe --serve 0.0.0.0:9308 --look-every 1m
    """
    from ottla.operations.health import probe_topic
    from ottla.operations.health.judging import check_names
    from ottla.operations.health.monitor import Monitor
    from ottla.operations.health.prober import Prober
    from ottla.operations.health.snapshot import Limits
    from ottla.operations.serving import Server, routed

    names = check_names(ignored)
    with ExitStack() as resources:
        cluster = resources.enter_context(cluster_of(bootstrap, security, timeout=timeout))
        prober = Prober(cluster, every=every, topic=topic)
        if listener is not None:
            limits = Limits(transaction_seconds=transaction_age)
            monitor = Monitor(
                cluster,
                every=look_every,
                prober=prober,
                limits=limits,
                ignored=names,
                timeout=timeout,
                connection=connection_words(),
            )
            # Before anything is written: the port may be in use.
            server = resources.enter_context(Server(routed(monitor.routes), host=listener[0], port=listener[1]))
        with Interruption() as interruption, suppress(Interrupted):
            resources.callback(prober.stop)
            interruption.wait(prober.start)
            if listener is not None:
                resources.enter_context(monitor)
                click.echo(f"serving {server.url}/health and {server.url}/metrics", err=True)
            _follow(prober.reports, interruption, seconds)
        reports = prober.reports()
        _show(reports, as_json=as_json)
        if remove:
            prober.stop()
            probe_topic.remove(cluster, topic=topic, deadline=cluster.deadline())
    context.exit(interruption.exit_code or (WRONG if any(_has_failed(each) for each in reports) else 0))


def _follow(reports: Callable[[], Sequence[BrokerReport]], interruption: Interruption, seconds: float | None) -> None:
    """Wait until time is up, and say when a broker begins to fail, or to serve again."""
    from ottla.cli.health.view import probe_line
    from ottla.cli.values.quantities import show_duration

    until = None if seconds is None else time.monotonic() + seconds
    failing: dict[int, float] = {}
    with LiveLine(lambda: probe_line(reports())) as live:
        while until is None or time.monotonic() < until:
            for each in reports():
                if not each.is_up and each.broker not in failing:
                    failing[each.broker] = each.down_since or time.time()
                    live.say(f"broker {each.broker} fails: {each.error}")
                elif each.is_up and each.broker in failing:
                    lasted = max(0.001, time.time() - failing.pop(each.broker))
                    live.say(f"broker {each.broker} serves again after {show_duration(round(lasted, 1))}")
            interruption.wait(lambda: time.sleep(_NAP))


def _has_failed(report: BrokerReport) -> bool:
    return bool(report.failed or report.lost or report.duplicates or report.corrupt) or not report.is_up


def _show(reports: Sequence[BrokerReport], *, as_json: bool) -> None:
    from ottla.cli.health.view import probe_text

    if as_json:
        click.echo(json_text([each.to_json() for each in reports]))
    elif reports:
        click.echo(probe_text(reports, width=terminal_width()))
