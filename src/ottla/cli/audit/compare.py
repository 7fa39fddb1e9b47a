"""`ottla audit compare`: tiers side by side, as a table, as JSON, as a page, and as alerts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ottla.cli.audit.connecting import brokers_at, session_of
from ottla.cli.audit.options import (
    any_partition_option,
    audit_topic_option,
    bucket_option,
    engine_option,
    event_time_option,
    require_order,
    tier_option,
    window_options,
)
from ottla.cli.audit.report import counted, gaps
from ottla.cli.completion.values import complete_topics
from ottla.cli.errors import Alert, Incomplete, UsageError
from ottla.cli.options.bootstrap import bootstrap_option
from ottla.cli.options.common import check_topic, isolation_option, json_option, master_option, timeout_option
from ottla.cli.options.security import options_security, security_options
from ottla.cli.options.types import Duration, parsed
from ottla.cli.output.styles import Style, Styled
from ottla.cli.output.tables import table, terminal_width
from ottla.cli.terminal.progress import LiveLine
from ottla.text import printable

if TYPE_CHECKING:
    from ottla.audit.compare import Judged, Row
    from ottla.config import Security
    from ottla.jobs.comparisons import Comparison


def _place(text: str) -> tuple[str, str, str | None]:
    """`TIER=HOST:PORT,...[/TOPIC]`, or `TIER=profile:NAME[/TOPIC]`."""
    from ottla.cli.options.profile import is_profile
    from ottla.config import parse_bootstrap
    from ottla.tally.values import check_name

    tier, separator, place = text.partition("=")
    if not separator:
        raise ValueError(f"{text!r}: write TIER=HOST:PORT, or TIER=HOST:PORT/TOPIC")
    address, _, topic = place.partition("/")
    if not is_profile(address):
        parse_bootstrap(address)
    return check_name("tier", tier), address, check_topic(topic) if topic else None


@click.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC...]", callback=parsed(check_topic), shell_complete=complete_topics)
@tier_option("A tier, in the order in which records pass them. May be repeated.", is_multiple=True)
@window_options
@click.option(
    "--delay",
    type=Duration(0, 30 * 86_400),
    default="5m",
    show_default=True,
    help="How long after its end a bucket closes: until then a difference is late.",
)
@any_partition_option
@click.option(
    "--data",
    "places",
    multiple=True,
    metavar="TIER=HOST:PORT[/TOPIC]",
    callback=parsed(_place),
    help="Count this tier now, from the data, in place of its tallies; also TIER=profile:NAME. May be repeated.",
)
@bucket_option
@event_time_option
@click.option("--all", "show_all", is_flag=True, help="Show complete buckets as well.")
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Also write a page with a heat map."
)
@click.option("--webhook", metavar="URL", help="Post changes of state to this address. Needs --state.")
@click.option(
    "--state", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Where the last state is kept."
)
@audit_topic_option
@engine_option
@master_option
@isolation_option
@bootstrap_option
@security_options
@timeout_option("60s")
@json_option
def compare(
    topics: tuple[str, ...],
    *,
    tiers: tuple[str, ...],
    start: datetime | None,
    stop: datetime | None,
    delay: float,
    any_partition: bool,
    places: tuple[tuple[str, str, str | None], ...],
    bucket_seconds: float,
    event_time: str,
    show_all: bool,
    html: Path | None,
    webhook: str | None,
    state: Path | None,
    audit_topic: str,
    engine: str,
    master: str | None,
    isolation: str,
    bootstrap: str,
    security: Security,
    timeout: float,
    as_json: bool,
) -> None:
    """Compare tiers: for each TOPIC (default: all) and time bucket, whether all of it arrived.

    Each tier is compared with the one before it: complete, late, missing n, duplicated n, altered or unknown. Equal
    numbers with different records are altered, never complete. The tallies come from the audit topic of --bootstrap;
    with --data a tier is counted from its topic now. With --json, one object a line. Exit codes: 0 complete or late,
    1 failure, 2 usage error, 3 something is missing, duplicated or altered, 4 something is unknown, or a tier has not
    counted lately.

    \b
    Examples:
      ottla audit compare --tier made --tier edge --tier aggregate
      ottla audit compare clicks --tier edge --tier aggregate --from -1d --html audit.html
      ottla audit compare --webhook https://alerts.example/hook --state /var/lib/ottla/audit.json
      ottla audit compare clicks --data edge=edge:9092 --data hq=hq:9092/edge.clicks --engine spark
    """
    from ottla.jobs.comparisons import compare as run
    from ottla.tally.values import check_bucket

    require_order(start, stop)
    if (webhook is None) != (state is None):
        raise UsageError("--webhook and --state need each other: changes are posted, not states")
    if places and not topics:
        raise UsageError("--data needs the TOPICs to read")
    if any(name is not None for _, _, name in places) and len(topics) > 1:
        raise UsageError("a topic in --data needs a single TOPIC")
    seconds = check_bucket(bucket_seconds)
    order = tiers or tuple(tier for tier, _, _ in places) or None
    needs_tallies = not places or bool(set(order or ()) - {tier for tier, _, _ in places})
    with session_of(engine, master, name="ottla audit compare") as session:
        connect = partial(brokers_at, timeout=timeout, isolation=isolation)
        # A login of a profile is not sent to other addresses.
        of_options = options_security(click.get_current_context().params)
        data = {tier: connect(address, security=of_options) for tier, address, _ in places}
        audit = connect(bootstrap, security=security) if needs_tallies else None
        with LiveLine(lambda: "comparing"):
            comparison = run(
                audit=audit,
                audit_topic=audit_topic,
                tiers=order,
                topics=topics or None,
                data=data,
                start=start,
                stop=stop,
                delay=delay,
                by_partition=not any_partition,
                bucket_seconds=seconds,
                time=event_time,
                names={tier: {topics[0]: name} for tier, _, name in places if name is not None},
                spark=session,
            )
    _print(comparison, as_json=as_json, show_all=show_all)
    if html is not None:
        from ottla.cli.audit.page import write_page

        write_page(html, comparison)
    if webhook is not None and state is not None:
        from ottla.cli.audit.webhook import post_changes

        posted = post_changes(webhook, state, comparison)
        if posted and not as_json:
            click.echo(f"{posted:,} changes posted to the webhook", err=True)
    _raise_alert(comparison)


def _print(comparison: Comparison, *, as_json: bool, show_all: bool) -> None:
    import json

    from ottla.audit.compare import Verdict

    if comparison.unreadable:
        click.echo(f"warning: {comparison.unreadable:,} records of the audit topic are no tallies", err=True)
    for problem in comparison.problems:
        click.echo(f"warning: {printable(problem)}", err=True)
    for text in comparison.silent:
        click.echo(f"warning: {printable(text)}", err=True)
    if as_json:
        for row in comparison.rows:
            click.echo(json.dumps(row.to_json()))
        return
    shown = [row for row in comparison.rows if show_all or row.verdict is not Verdict.COMPLETE]
    if shown:
        headings = ["topic", "bucket", *comparison.tiers, "verdict", "detail"]
        click.echo(table(headings, [_cells(row) for row in shown], width=terminal_width()))
    counts = comparison.verdicts
    text = ", ".join(f"{counts[verdict]:,} {verdict}" for verdict in Verdict if counts[verdict])
    topics = len({row.topic for row in comparison.rows})
    if not comparison.rows:
        click.echo("warning: no tier has counted a record in that time", err=True)
    click.echo(f"{counted(len(comparison.rows), 'bucket')} of {counted(topics, 'topic')}: {text or 'none'}")


def _cells(row: Row) -> Sequence[str]:
    from ottla.audit.compare import Verdict

    worst = row.worst
    place = "" if worst.against == "" else f" from {worst.against} to {worst.tier}"
    verdict = str(worst) + (place if worst.verdict.is_fault else "")
    style = Style.BAD if worst.verdict.is_fault else Style.GOOD if worst.verdict is Verdict.COMPLETE else Style.WARNING
    return [row.topic, show_bucket(row), *map(_count, row.tiers), Styled(verdict, style), worst.detail or ""]


def _count(judged: Judged) -> str:
    return "-" if judged.records is None else f"{judged.records:,}"


def show_bucket(row: Row) -> str:
    """When a bucket begins."""
    from ottla.cli.values.times import show_timestamp

    return (show_timestamp(row.start * 1000) or "-").replace(".000Z", "Z")


def _raise_alert(comparison: Comparison) -> None:
    from ottla.audit.compare import Verdict

    counts = comparison.verdicts
    faults = [verdict for verdict in Verdict if verdict.is_fault and counts[verdict]]
    if faults:
        text = ", ".join(f"{counts[verdict]:,} {verdict}" for verdict in faults)
        raise Alert(
            f"not all of it arrived: {text} of {counted(len(comparison.rows), 'bucket')};"
            " 'ottla audit find' names the records"
        )
    for text in gaps(comparison):
        raise Incomplete(text)
