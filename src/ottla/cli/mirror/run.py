"""`ottla mirror run`: mirrors topics of one link, or all links of a file, until their end or until a signal."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from ottla.cli.completion.values import complete_groups, complete_topics
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.mirror.sides import FILE, journal_option, side_option
from ottla.cli.mirror.view import Speed, progress_text, report_text, reworded
from ottla.cli.options.common import check_topic, follow_option, json_option, timeout_option
from ottla.cli.options.connection import require_brokers
from ottla.cli.options.store import STORE_VARIABLE, find_store
from ottla.cli.options.types import Integer, PlaceType, parsed
from ottla.cli.output.json_text import json_text
from ottla.cli.terminal.progress import LiveLine
from ottla.cli.terminal.spark import spark_session
from ottla.cli.terminal.stopping import Stopping
from ottla.cli.values.places import Kind, Place
from ottla.text import printable

if TYPE_CHECKING:
    from ottla.errors import OttlaError
    from ottla.events import Event, Sink
    from ottla.jobs.brokers import Brokers
    from ottla.jobs.mirror_link import Link
    from ottla.jobs.mirror_report import MirrorReport
    from ottla.jobs.mirror_runner import LinkRun

_START = PlaceType((Kind.EARLIEST, Kind.LATEST, Kind.OFFSET, Kind.TIME))
_ACTION = click.Choice(["stop", "continue"])
_CHECK_SECONDS = 5.0
_LINE_END = "\n"
_ALWAYS = ("follow", "config", "chosen", "engine", "master", "store", "take_over", "prometheus", "as_json")
"""Arguments that go with a file, too."""


def _topic(text: str) -> str:
    return text if any(sign in text for sign in "*?[") else check_topic(text)


def _rate(text: str) -> float:
    from ottla.jobs.mirror_file import parse_rate

    return parse_rate(text)


def _listener(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is not a port: write PORT or HOST:PORT")
    return host or "127.0.0.1", int(port)


@click.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC...]", callback=parsed(_topic), shell_complete=complete_topics)
@side_option("from", required=False)
@side_option("to", required=False)
@follow_option
@click.option("--name", "link", metavar="LINK", help="The name of the link, which continues by it.  [default: mirror]")
@click.option("--rename", metavar="RULE", help="Names at the target, such as '{source}.{topic}'.  [default: {topic}]")
@click.option(
    "--start",
    type=_START,
    help=f"Where topics begin that were never mirrored: {_START.description}.  [default: earliest]",
)
@click.option("--on-foreign", type=_ACTION, help="If others write to a target partition.  [default: stop it]")
@click.option("--on-lost", type=_ACTION, help="If the source lost records not yet mirrored.  [default: stop it]")
@click.option("--on-target-lost", type=_ACTION, help="If the target lost mirrored records.  [default: stop it]")
@click.option("--rate", metavar="BYTES/s", callback=parsed(_rate), help="Limit the bytes per second, such as 10MB/s.")
@click.option(
    "--groups",
    multiple=True,
    metavar="PATTERN",
    shell_complete=complete_groups,
    help="Translate the offsets of these consumer groups. Repeatable.",
)
@click.option(
    "--isolate",
    "isolated",
    shell_complete=complete_topics,
    multiple=True,
    metavar="TOPIC",
    help="Give this topic, or pattern, threads and memory of its own. Repeatable.",
)
@click.option(
    "--exclude",
    shell_complete=complete_topics,
    multiple=True,
    metavar="PATTERN",
    help="Leave out topics that a pattern of TOPIC matches. Repeatable; MirrorMaker's own topics are always left out.",
)
@click.option("--replicas", type=Integer(1), help="Replicas of topics that are created.  [default: the broker's]")
@click.option("--follow-settings/--keep-settings", default=True, help="Whether topic settings follow the source.")
@journal_option
@click.option("--config", type=FILE, help="TOML file with links, instead of topics and the options above.")
@click.option("--link", "chosen", multiple=True, metavar="NAME", help="With --config: only this link. Repeatable.")
@click.option(
    "--engine",
    type=click.Choice(["local", "spark", "fleet"]),
    default="local",
    show_default=True,
    help="What does the work: this process, Spark with a task for each partition, or a fleet ('ottla work serve').",
)
@click.option("--master", metavar="URL", help="With --engine spark: where Spark runs.  [default: local[*]]")
@click.option(
    "--store",
    metavar="URL",
    help=f"With --engine fleet: the store of its nodes, as redis://HOST.  [default: {STORE_VARIABLE}, then the Redis of"
    " the running local cluster]",
)
@click.option("--audit-tier", metavar="NAME", help="Count the target topics for the audit, as this tier.")
@click.option(
    "--audit-bootstrap", metavar="HOST:PORT,...", help="Cluster of the audit topic.  [default: that of the target]"
)
@click.option("--take-over", is_flag=True, help="Take over from another process that mirrors the link.")
@click.option(
    "--prometheus",
    metavar="[HOST:]PORT",
    callback=parsed(_listener),
    help="Serve metrics for Prometheus there, on this machine unless HOST is given.",
)
@timeout_option("60s")
@json_option
@click.pass_context
def run(
    context: click.Context,
    /,
    topics: tuple[str, ...],
    *,
    source: Brokers | None,
    target: Brokers | None,
    follow: bool,
    config: Path | None,
    chosen: tuple[str, ...],
    engine: str,
    master: str | None,
    store: str | None,
    take_over: bool,
    prometheus: tuple[str, int] | None,
    timeout: float,
    as_json: bool,
    **settings: Any,
) -> None:
    """Mirror topics to another cluster, up to where they end now, or with --follow until Ctrl-C.

    TOPIC is a name or a pattern with * and ?. Topics are created at the target as needed. The same command continues
    where an earlier one ended or was killed. Partitions that cannot go on are reported; the others go on. Links of a
    file run side by side and do not wait for each other. Ctrl-C and SIGTERM end it after what is under way is
    acknowledged. Exit codes: 0 success, 1 if a partition or a link failed, 2 usage error, 130 after Ctrl-C.

    \b
    Examples:
      ottla mirror clicks orders --from edge:9092 --to hub:9092
      ottla mirror 'shop.*' --from edge:9092 --to hub:9092 --name oslo --rename '{source}.{topic}' --follow
      ottla mirror clicks --from edge:9093 --from-config edge.toml --to hub:9092 --rate 50MB/s
      ottla mirror clicks --from edge:9092 --to hub:9092 --groups 'billing*' --follow
      ottla mirror clicks --from edge:9092 --to hub:9092 --audit-tier aggregate
      ottla mirror --config links.toml --link oslo --engine fleet --store redis://host    on 'ottla work serve' nodes
      ottla mirror --config links.toml --link oslo --follow --prometheus 9400
    """
    if config is None:
        if chosen:
            raise UsageError("--link needs --config")
        links = [_direct(topics, source, target, timeout=timeout, **settings)]
    else:
        _refuse_options(context)
        links = _from_file(config, chosen)
        _refuse_conflicts(links)
    _check_engine(links, engine, master, has_local=take_over or prometheus is not None)
    if store is not None and engine != "fleet":
        raise UsageError("--store needs --engine fleet")
    sinks = _metrics(prometheus)
    for side in (source, target):  # links of a file do not end for each other
        if side is not None:
            require_brokers(side.bootstrap, side.resolved_security(), timeout=timeout)
    if engine == "spark":
        results, code = _by_spark(links, master, follow=follow)
    elif engine == "fleet":
        results, code = _by_fleet(links[0], store or find_store(), follow=follow)
    else:
        results, code = _run(links, follow=follow, take_over=take_over, sinks=sinks)
    _report(results, as_json=as_json)
    context.exit(code or (1 if any(result.has_failed for result in results) else 0))


class _Result(NamedTuple):
    """How a link ended."""

    link: str
    report: MirrorReport | None
    error: OttlaError | None

    @property
    def has_failed(self) -> bool:
        """Whether the link, or one of its partitions, has failed. A signal may end a link before it has a report."""
        report = self.report
        return self.error is not None or report is None or bool(report.failed or report.refused)


def _check_engine(links: Sequence[Link], engine: str, master: str | None, *, has_local: bool) -> None:
    if engine != "spark" and master:
        raise UsageError("--master needs --engine spark")
    if engine == "local":
        return
    if has_local:
        raise UsageError("--prometheus and --take-over need --engine local")
    if len(links) > 1:
        raise UsageError(f"--engine {engine} runs one link: choose it with --link")
    if links[0].groups:
        raise UsageError(f"--engine {engine} does not translate groups: use 'ottla mirror groups'")


def _refuse_options(context: click.Context) -> None:
    """Raise `UsageError` for an argument that a file has, too."""
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in _ALWAYS and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            shown = "TOPIC" if isinstance(parameter, click.Argument) else parameter.opts[0]
            raise UsageError(f"{shown} and --config are mutually exclusive: the file has it for each link")


def _direct(
    topics: tuple[str, ...], source: Brokers | None, target: Brokers | None, *, timeout: float, **settings: Any
) -> Link:
    from dataclasses import replace

    from ottla.config import Timeouts
    from ottla.jobs.mirror_audit import LinkAudit
    from ottla.jobs.mirror_link import Link
    from ottla.mirror.rules import Policy

    for option, value in (("TOPIC", topics), ("--from HOST:PORT,...", source), ("--to HOST:PORT,...", target)):
        if not value:
            raise UsageError(f"{option} is missing: write 'ottla mirror TOPIC... --from A --to B', or --config FILE")
    assert source is not None
    assert target is not None
    named = {"name": settings.pop("link"), "rename": settings.pop("rename"), "replicas": settings.pop("replicas")}
    start: Place | None = settings.pop("start")
    rules = {name: settings.pop(name) for name in ("on_foreign", "on_lost", "on_target_lost")}
    limits = Timeouts(total=timeout)
    tier, audit_bootstrap = settings.pop("audit_tier"), settings.pop("audit_bootstrap")
    if tier is None and audit_bootstrap is not None:
        raise UsageError("--audit-bootstrap needs --audit-tier")
    return Link(
        source=replace(source, timeouts=limits),
        target=replace(target, timeouts=limits),
        topics=topics,
        start="earliest" if start is None else start,  # type: ignore[arg-type]  # only kinds that are bounds
        rules=Policy(**{name: value for name, value in rules.items() if value is not None}),
        audit=None if tier is None else LinkAudit(tier=tier, brokers=audit_bootstrap),
        **{name: value for name, value in named.items() if value is not None},
        **settings,
    )


def _from_file(config: Path, chosen: tuple[str, ...]) -> list[Link]:
    from ottla.jobs.mirror_file import read_links

    links = {link.name: link for link in read_links(config, environment=os.environ)}
    for name in chosen:
        if name not in links:
            raise UsageError(f"the file {config} has no link {name!r}: it has {', '.join(links)}")
    return [links[name] for name in chosen or links]


def _refuse_conflicts(links: Sequence[Link]) -> None:
    """Raise `CommandFailed` if links write to one topic or make a circle. A cluster that is away is not waited for."""
    from ottla.jobs.mirror_check import check_links, problems_between

    checks = check_links(links, timeout=_CHECK_SECONDS, ask_brokers=False)
    between = problems_between([edge for check in checks for edge in check.edges])
    if between:
        name, text = between[0]
        raise CommandFailed(f"link {name}: {text.removeprefix(f'link {name} ')}")


def _metrics(listener: tuple[str, int] | None) -> list[Sink]:
    if listener is None:
        return []
    from ottla.events import PrometheusSink

    sink = PrometheusSink()
    import prometheus_client

    host, port = listener
    try:
        prometheus_client.start_http_server(port, addr=host)
    except OSError as error:
        raise CommandFailed(f"--prometheus {host}:{port} cannot be served: {error.strerror}") from error
    return [sink]


def _run(links: Sequence[Link], *, follow: bool, take_over: bool, sinks: Sequence[Sink]) -> tuple[list[_Result], int]:
    """Return how the links ended, and the exit code of a signal, if one ended them."""
    from ottla.jobs.mirror_runner import run_links

    running: list[LinkRun] = []
    speed = Speed()

    def status() -> str:
        links = [each.progress() for each in running]
        speed.observe(links, time.monotonic())
        return progress_text(links, speed, follow=follow)

    with (
        Stopping("stopping once what is under way is acknowledged; press Ctrl-C again to abort") as stopping,
        LiveLine(status) as live,
    ):

        def tell(event: Event) -> None:
            from ottla.events import MirrorStopped, MirrorTopicRefused

            if isinstance(event, MirrorStopped):
                place = f"{event.topic}-{event.partition}"
                live.say(f"link {event.link}: {place}: not mirrored any further: {reworded(event.reason)}")
            elif isinstance(event, MirrorTopicRefused):
                live.say(f"link {event.link}: {event.topic}: {reworded(event.reason)}")

        runs = run_links(
            links,
            follow=follow,
            take_over=take_over,
            is_stopped=lambda: stopping.asked > 0,
            events=[tell, *sinks],
            watch=running.extend,
        )
    results = [_Result(each.link.name, each.report, each.error) for each in runs]
    return results, stopping.exit_code if stopping.asked else 0


def _by_spark(links: Sequence[Link], master: str | None, *, follow: bool) -> tuple[list[_Result], int]:
    """Return how the link ended. A signal ends it after the round of tasks that runs."""
    with spark_session("ottla mirror", master) as spark:
        return _in_rounds(links[0], follow=follow, engine="spark", spark=spark)


def _by_fleet(link: Link, store: str, *, follow: bool) -> tuple[list[_Result], int]:
    """Return how the link ended. This process works, too: without other nodes, it does everything."""
    from contextlib import closing
    from functools import partial

    from ottla.engines import local
    from ottla.engines.fleet import jobs
    from ottla.engines.fleet.store import open_store
    from ottla.jobs.mirror_kind import MirrorKind

    with closing(open_store(store, jobs.JOBS)) as opened:
        engine = partial(jobs.run, kind=MirrorKind([link]), store=opened, threads=local.default_workers())
        return _in_rounds(link, follow=follow, engine=engine)


def _in_rounds(link: Link, *, follow: bool, **engine: Any) -> tuple[list[_Result], int]:
    from ottla.errors import OttlaError
    from ottla.jobs.mirrors import mirror

    with Stopping("stopping after the ranges in hand; press Ctrl-C again to abort") as stopping:
        try:
            report = mirror(link, follow=follow, is_stopped=lambda: stopping.asked > 0, **engine)
            result = _Result(link.name, report, None)
        except OttlaError as error:
            result = _Result(link.name, None, error)
    return [result], stopping.exit_code if stopping.asked else 0


def _report(results: Sequence[_Result], *, as_json: bool) -> None:
    for link, report, error in results:
        if as_json:
            row = {"link": link} if report is None else report.to_json()
            click.echo(json_text({**row, "error": None if error is None else str(error)}))
        elif report is not None:
            click.echo(report_text(report))
        if error is not None:
            text = printable(reworded(str(error)), keep=_LINE_END).removeprefix(f"link {link} ")
            click.echo(f"error: link {link}: {text}", err=True)
