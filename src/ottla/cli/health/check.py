"""`ottla health check`: one look at a cluster and a verdict, again and again with `--watch`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import click

from ottla.cli.errors import UsageError
from ottla.cli.health.connecting import cluster_of
from ottla.cli.options.bootstrap import bootstrap_option
from ottla.cli.options.common import json_option, timeout_option
from ottla.cli.options.same_cluster import connection_words
from ottla.cli.options.security import security_options
from ottla.cli.options.types import Duration
from ottla.cli.output.json_text import json_text
from ottla.cli.output.tables import terminal_width
from ottla.cli.terminal.interruption import Interrupted, Interruption, output_pipe
from ottla.cli.terminal.progress import LiveLine
from ottla.cli.terminal.screen import Screen

if TYPE_CHECKING:
    from ottla.config import Security
    from ottla.operations.health.findings import Verdict
    from ottla.operations.health.monitor import Monitor
    from ottla.operations.health.prober import Prober

    _Look = Callable[[], Verdict]

WRONG, INCOMPLETE = 3, 4
"""Exit codes, as those of `ottla audit compare`: certainly wrong; nothing wrong found, but not everything seen."""
_PROBE_ROUNDS = 3

ignore_option = click.option(
    "--ignore",
    "ignored",
    multiple=True,
    metavar="CHECK",
    help="Leave out this check, by its name in --json: single-replica. Repeatable.",
)
transaction_age_option = click.option(
    "--transaction-age",
    type=Duration(0.1),
    default="5m",
    show_default=True,
    help="How long a transaction may be open.",
)


@click.command()
@click.option("--watch", is_flag=True, help="Look again and again until Ctrl-C.")
@click.option("--exit-when-healthy", is_flag=True, help="Look again and again until the cluster is healthy.")
@click.option(
    "--every",
    type=Duration(0.2),
    default="5s",
    show_default=True,
    help="With --watch or --exit-when-healthy: how often to look.",
)
@click.option(
    "--for", "seconds", type=Duration(0.1), help="With --watch or --exit-when-healthy: give up after this time."
)
@click.option("--probe", "is_probing", is_flag=True, help="Also write and read through every broker.")
@click.option("--accept-warnings", is_flag=True, help="Count a degraded cluster as healthy: only critical findings do.")
@ignore_option
@transaction_age_option
@bootstrap_option
@security_options
@timeout_option()
@json_option
@click.pass_context
def check(
    context: click.Context,
    /,
    *,
    watch: bool,
    exit_when_healthy: bool,
    every: float,
    seconds: float | None,
    is_probing: bool,
    accept_warnings: bool,
    ignored: tuple[str, ...],
    transaction_age: float,
    bootstrap: str,
    security: Security,
    timeout: float,
    as_json: bool,
) -> None:
    """Look at brokers, controllers, partitions, disks, throttles, transactions and groups, and say what is wrong.

    Each finding has its reason, since when if that is known, and the command to type next. Critical ones make the
    cluster unhealthy, warnings make it degraded, notes do not count. A cluster that cannot be reached is unhealthy.
    --probe creates the topic ottla-probe, which keeps ten minutes of records. With --watch --json, one object a line.
    Exit codes: 0 healthy, 1 failure, 2 usage error, 3 degraded or unhealthy, 4 nothing wrong was found, but not
    everything could be looked at.

    \b
    Examples:
      ottla health
      ottla health --json | jq '.findings[].reason'
      ottla health --watch --every 10s
      ottla health --exit-when-healthy --for 5m --accept-warnings
      ottla health --probe --ignore single-replica
    """
    from ottla.operations.health.judging import check_names
    from ottla.operations.health.monitor import Monitor
    from ottla.operations.health.snapshot import Limits

    if watch and exit_when_healthy:
        raise UsageError("--watch and --exit-when-healthy are mutually exclusive")
    if seconds is not None and not (watch or exit_when_healthy):
        raise UsageError("--for needs --watch or --exit-when-healthy")
    names = check_names(ignored)
    with ExitStack() as resources, Interruption(output_pipe() if watch else None) as interruption:
        cluster = resources.enter_context(cluster_of(bootstrap, security, timeout=timeout))
        prober = None
        if is_probing:
            from ottla.operations.health.prober import Prober

            prober = Prober(cluster)
            resources.callback(prober.stop)
        limits = Limits(transaction_seconds=transaction_age)
        monitor = Monitor(
            cluster,
            prober=prober,
            limits=limits,
            ignored=names,
            timeout=timeout,
            connection=connection_words(),
        )
        code = 0
        with suppress(Interrupted):
            look = monitor.look if prober is None else _ProbingLook(monitor, prober, seconds=timeout)
            if watch:
                verdict = _watch(look, interruption, every=every, seconds=seconds, as_json=as_json)
            else:
                verdict = (
                    _await_healthy(look, interruption, every, seconds, accept_warnings=accept_warnings)
                    if exit_when_healthy
                    else interruption.wait(look)
                )
                _show(verdict, as_json=as_json)
            code = exit_code(verdict, accept_warnings=accept_warnings)
        code = interruption.exit_code or code
    context.exit(code)


class _ProbingLook:
    """A look with a probe, which starts as soon as the cluster can be reached: until then, that is the verdict."""

    def __init__(self, monitor: Monitor, prober: Prober, *, seconds: float) -> None:
        self._monitor = monitor
        self._prober = prober
        self._seconds = seconds
        self._is_started = False

    def __call__(self) -> Verdict:
        from ottla.errors import NoBrokerReachable

        if not self._is_started:
            try:
                self._start()
            except NoBrokerReachable:
                verdict = self._monitor.look()
                if any(finding.check == "unreachable" for finding in verdict.findings):
                    return verdict
                self._start()  # it has come up meanwhile
        return self._monitor.look()

    def _start(self) -> None:
        from ottla.operations.health.prober import wait_for_rounds

        self._prober.start()
        self._is_started = True
        wait_for_rounds(self._prober, _PROBE_ROUNDS, seconds=self._seconds)


def exit_code(verdict: Verdict, *, accept_warnings: bool) -> int:
    """Return the exit code for a verdict."""
    from ottla.operations.health.findings import State

    if verdict.state is State.UNHEALTHY or (verdict.state is State.DEGRADED and not accept_warnings):
        return WRONG
    return 0 if verdict.is_complete else INCOMPLETE


def _show(verdict: Verdict, *, as_json: bool, show: Callable[[str], None] = click.echo) -> None:
    from ottla.cli.health.view import verdict_text

    if as_json:
        click.echo(json_text(verdict.to_json()))
        return
    show(verdict_text(verdict, width=terminal_width()))


def _watch(look: _Look, interruption: Interruption, *, every: float, seconds: float | None, as_json: bool) -> Verdict:
    """Show verdicts until time is up. Returns the last one."""
    until = None if seconds is None else time.monotonic() + seconds
    screen = Screen(is_plain=as_json)
    while True:
        verdict = interruption.wait(look)
        with suppress(BrokenPipeError):
            _show(verdict, as_json=as_json, show=screen.show)
        if until is not None and time.monotonic() + every > until:
            return verdict
        interruption.wait(lambda: time.sleep(every))


def _await_healthy(
    look: _Look, interruption: Interruption, every: float, seconds: float | None, *, accept_warnings: bool
) -> Verdict:
    """Return the first verdict that counts as healthy, or the last one when time is up."""
    from ottla.cli.health.view import headline

    until = None if seconds is None else time.monotonic() + seconds
    status = "looking at the cluster"
    with LiveLine(lambda: status):
        while True:
            verdict = interruption.wait(look)
            status = headline(verdict)
            is_over = until is not None and time.monotonic() + every > until
            if is_over or not exit_code(verdict, accept_warnings=accept_warnings):
                return verdict
            interruption.wait(lambda: time.sleep(every))
