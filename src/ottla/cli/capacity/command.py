"""`ottla capacity`: brokers, disks, partitions and cores for a load that is given, read from a file, or measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.capacity.given import case_of, is_mean_without_peak, loaded
from ottla.cli.errors import Alert
from ottla.cli.options.bootstrap import find_bootstrap
from ottla.cli.options.common import json_option, timeout_option
from ottla.cli.options.profile import profile_option_if
from ottla.cli.options.security import security_options
from ottla.cli.options.types import Duration
from ottla.cli.output.json_text import json_text
from ottla.cli.output.tables import terminal_width

if TYPE_CHECKING:
    from ottla.config import Security
    from ottla.operations.capacity.plan import Plan

_FILE = click.Path(exists=True, dir_okay=False, readable=True, path_type=Path)


def _text(name: str, argument: str, metavar: str, text: str) -> Callable[[Any], Any]:
    """An option whose text is parsed later: it may come from a file, too."""
    return click.option(name, argument, metavar=metavar, help=text)


_OPTIONS = (
    _text("--messages", "messages", "RATE", "Records per second, as 1M/s or 5G/d."),
    _text("--bytes", "bytes_rate", "RATE", "Instead: bytes per second in the log, compressed, as 150TB/d."),
    _text("--size", "size", "SIZE", "Key and value of a record.  [default: 1kB]"),
    _text("--compression", "compression", "RATIO", "With --messages: 4 if a quarter is left.  [default: 1]"),
    _text("--peak", "peak", "FACTOR", "The busiest moment as a multiple of the rate.  [default: 1]"),
    _text("--retention", "retention", "DURATION", "How long records are kept.  [default: 3d]"),
    _text("--replication", "replication", "N", "Copies of each record.  [default: 3]"),
    _text("--consumers", "groups", "N", "Groups that read everything.  [default: 1]"),
    _text("--lagging", "lagging", "N", "Of these, groups that read from disk.  [default: 0]"),
    _text("--topics", "topics", "N", "Topics of equal size that share the load.  [default: 1]"),
    _text("--members", "members", "N", "Consumers of a group on one topic.  [default: 1]"),
    _text("--consumer-rate", "consumer_rate", "RATE", "What one consumer processes.  [default: 70 % of 1Gbit/s]"),
    _text("--brokers", "brokers", "N", "Judge this many brokers.  [default: find out how many]"),
    _text("--without", "without", "N", "Show the use with N brokers lost.  [default: 0]"),
    _text("--spare", "spare", "N", "Brokers that may be lost.  [default: 1]"),
    _text("--link", "link", "RATE", "Link of a broker.  [default: 10Gbit/s]"),
    _text("--disks", "disks", "N", "Disks of a broker.  [default: 12]"),
    _text("--disk", "disk", "SIZE", "Size of a disk.  [default: 4TB]"),
    _text("--disk-rate", "disk_rate", "RATE", "What a disk writes.  [default: 100MB/s]"),
    _text("--cores", "cores", "N", "Cores of a broker.  [default: 24]"),
    _text("--memory", "memory", "SIZE", "Memory of a broker.  [default: 64GB]"),
    _text("--broker-core-rate", "broker_core_rate", "RATE", "What a broker's core writes.  [default: 20MB/s, assumed]"),
    _text("--partition-size", "partition_size", "SIZE", "Largest partition.  [default: 50GB]"),
    _text("--partitions-per-broker", "partitions_per_broker", "N", "Most replicas of a broker.  [default: 4000]"),
    _text("--sites", "sites", "N", "Clusters at the edge that are mirrored into this one."),
    _text("--site-retention", "site_retention", "DURATION", "At a site.  [default: 1d, or --retention if shorter]"),
    _text("--site-replication", "site_replication", "N", "At a site.  [default: --replication]"),
    _text("--site-consumers", "site_groups", "N", "Groups at a site, beside the mirror.  [default: 0]"),
    _text("--site-link", "site_link", "RATE", "Link of a site's broker.  [default: --link]"),
)


def _all_options(command: Callable[..., Any]) -> Any:
    wrapped: Any = command
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


@click.command()
@_all_options
@click.option("--config", type=_FILE, help="TOML file with the options above; those on the command line win.")
@click.option("--rates", type=_FILE, multiple=True, help="Report of 'ottla perf --json': measured rates. Repeatable.")
@click.option("--measure", is_flag=True, help="Measure the load of a running cluster.")
@click.option("--bootstrap", metavar="HOST:PORT,...", help="With --measure: brokers to connect to first.")
@profile_option_if(lambda arguments: bool(arguments.get("measure")))
@click.option("--window", type=Duration(1.0), default="30s", show_default=True, help="How long to measure.")
@click.option("--explain", is_flag=True, help="Show the formula and the inputs of every line.")
@click.option("--what-if", "with_variants", is_flag=True, help="Show what changes if one thing does.")
@security_options
@timeout_option()
@json_option
@click.pass_context
def capacity(
    context: click.Context,
    /,
    *,
    config: Path | None,
    rates: tuple[Path, ...],
    measure: bool,
    bootstrap: str | None,
    window: float,
    explain: bool,
    with_variants: bool,
    security: Security,
    timeout: float,
    as_json: bool,
    **given: str | None,
) -> None:
    """Plan brokers, disks, partitions and cores for a load, and name the limit that binds.

    The load is given by options, by a file, or measured on a running cluster, from the ends and sizes of its logs. What
    the plan rests on is shown by --explain. Exit code 3 if --brokers are too few.

    \b
    Examples:
      ottla capacity --messages 1M/s --size 1kB --retention 3d --replication 3 --consumers 4
      ottla capacity --bytes 150TB/d --peak 1.5 --retention 24h --replication 2 --consumers 4 --topics 20 --sites 12
      ottla capacity --messages 200k/s --brokers 6 --without 1 --explain
      ottla capacity --config load.toml --rates produce.json --rates mirror.json --what-if
      ottla capacity --measure --bootstrap localhost:9092 --window 1m --peak 2
    """
    from ottla.operations.capacity.plan import make_plan, outlook

    texts = loaded(config, {name: text for name, text in given.items() if text is not None})
    notes: list[str] = []
    found = None
    if measure:
        from ottla.cli.capacity.measuring import measured

        found = measured(find_bootstrap(context, bootstrap), security, window=window, timeout=timeout, texts=texts)
        notes += found.notes
    elif is_mean_without_peak(texts):
        notes.append("a rate for a day is a mean: --peak says how much busier the busiest moment is")
    case = case_of(texts, rates, found)
    plan = make_plan(case)
    variants = _variants(plan) if with_variants else []
    if as_json:
        values = outlook(plan) | {"notes": notes}
        if with_variants:
            values["what_if"] = [
                {"what": row.title, "reason": row.reason} | ({} if row.plan is None else outlook(row.plan))
                for row in variants
            ]
        click.echo(json_text(values))
    else:
        _print(plan, variants, notes, explain=explain)
    if not plan.cluster.is_enough:
        busiest = plan.cluster.busiest
        raise Alert(
            f"{plan.cluster.up} brokers are too few: they would use"
            f" {busiest.use(plan.cluster.up) * 100:.0f} % of what they may of {busiest.title};"
            f" {plan.cluster.needed} are needed"
        )


def _variants(plan: Plan) -> list[Any]:
    from ottla.operations.capacity.what_if import what_if

    return what_if(plan.case)


def _print(plan: Plan, variants: list[Any], notes: list[str], *, explain: bool) -> None:
    from ottla.cli.capacity.view import explanation, plan_text, what_if_text

    width = terminal_width()
    click.echo(plan_text(plan, width=width, notes=notes))
    if variants:
        click.echo("\n" + what_if_text(variants, width=width))
    if explain:
        click.echo("\n" + explanation(plan))
