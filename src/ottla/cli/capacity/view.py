"""How a plan looks: a text with the binding limit first, every formula on request, and a table of what-ifs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ottla.cli.output.tables import table
from ottla.cli.values.quantities import show_duration
from ottla.cli.values.rates import show_byte_rate, show_number
from ottla.operations.capacity.cluster import ClusterPlan
from ottla.operations.capacity.plan import Plan
from ottla.operations.capacity.sheet import Line, Sheet, Term, Unit
from ottla.operations.capacity.what_if import Variant

_RULES = {
    "by_rate_in": "the rate of producers",
    "by_rate_out": "the rate of consumers",
    "by_size": "the size of a partition",
    "members": "the consumers of a group",
}
_LOAD = ("write_rate", "read_rate", "retained", "partitions", "partition_bytes", "replicas", "disks_all")
_BROKER = (
    "broker_in",
    "broker_out",
    "broker_disk_rate",
    "broker_bytes",
    "broker_replicas",
    "broker_leaders",
    "broker_cores",
    "open_files",
    "map_areas",
    "election",
    "replication_delay",
    "refill",
)


def show(value: float, unit: Unit) -> str:
    """Return a value with its unit, rounded to three digits."""
    match unit:
        case Unit.BYTE_RATE:
            return show_byte_rate(value)
        case Unit.BYTES:
            return f"{show_number(value)}B"
        case Unit.RECORD_RATE:
            return f"{show_number(value)}/s"
        case Unit.SECONDS:
            return _seconds(value)
        case Unit.SHARE:
            return f"{value * 100:g}%"
        case Unit.COUNT if value == int(value):
            return f"{value:,.0f}"
        case _:
            return show_number(value)


def _seconds(value: float) -> str:
    if value >= 60:
        return show_duration(round(value / 60) * 60) if value < 172_800 else show_duration(round(value / 3600) * 3600)
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)):
        if value >= factor:
            return f"{value / factor:.3g}{unit}"
    return "0s"


def plan_text(plan: Plan, *, width: int | None, notes: Iterable[str] = ()) -> str:
    """Return the plan for people."""
    parts = [_cluster_text(cluster, width) for cluster in plan.clusters]
    rows = [[line.title, show(line.value, line.term.unit)] for line in plan.clients.lines]
    parts.append("clients, at the peak\n" + table(["", ""], rows, width=width, indent=2).partition("\n")[2])
    thumb = plan.whole_cluster_topic
    parts.append(
        f"a topic that is to use all {plan.cluster.brokers} brokers alone: {thumb:,} partitions, by the rule of thumb"
    )
    return "\n\n".join([*parts, *(f"note: {note}" for note in notes)])


def _cluster_text(cluster: ClusterPlan, width: int | None) -> str:
    lines = [_headline(cluster)]
    if assumed := cluster.assumptions:
        lines += [
            f"  this rests on a built-in figure: {term.name.replace('_', ' ')} = {show(term.value, term.unit)}"
            f" ({term.source})"
            for term in assumed
        ]
    lines.append(
        f"  {'the topic' if cluster.load.topics == 1 else f'each of {cluster.load.topics:,} topics'}:"
        f" {show(cluster.sheet['partitions'], Unit.COUNT)} partitions, because of {_RULES[cluster.partition_rule]}"
    )
    rows = [
        [
            limit.title,
            show(limit.demand.value, limit.demand.term.unit),
            show(limit.capacity.value, limit.capacity.term.unit),
            f"{limit.brokers:,}",
            f"{limit.use(cluster.up) * 100:.0f}%",
        ]
        for limit in cluster.limits
    ]
    used = f"used by {cluster.up}"
    lines.append(table(["limit", "all brokers", "one may have", "brokers", used], rows, width=width, indent=2))
    lines.append(_values(cluster.sheet, _LOAD, width))
    lines.append(_values(cluster.sheet, _BROKER, width))
    return "\n".join(lines)


def _headline(cluster: ClusterPlan) -> str:
    binding = f"the binding limit is {cluster.binding_title}"
    if cluster.brokers == cluster.up == cluster.needed:
        return f"{cluster.name}: {_brokers(cluster.brokers)}; {binding}"
    lost = "" if cluster.up == cluster.brokers else f", {cluster.up} of them up"
    if cluster.is_enough:
        verdict = "enough" if cluster.brokers >= cluster.needed else "enough without a spare one"
    else:
        verdict = "too few"
    return f"{cluster.name}: {_brokers(cluster.brokers)}{lost}: {verdict}; {cluster.needed} are needed; {binding}"


def _brokers(count: int) -> str:
    return "1 broker" if count == 1 else f"{count:,} brokers"


def _values(sheet: Sheet, names: Sequence[str], width: int | None) -> str:
    rows = [[sheet.line(name).title, show(sheet[name], sheet.line(name).term.unit)] for name in names]
    return table(["", ""], rows, width=width, indent=2).partition("\n")[2]


def explanation(plan: Plan) -> str:
    """Return every line with its formula, its inputs and where they come from."""
    sections = [(cluster.name, cluster.sheet) for cluster in plan.clusters]
    parts = []
    for name, sheet in (*sections, ("clients", plan.clients)):
        lines = [name]
        for line in sheet.lines:
            lines += _explained(line)
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _explained(line: Line) -> list[str]:
    shown = show(line.value, line.term.unit)
    source = f"  [{line.term.source}]" if line.term.source else ""
    return [
        f"  {line.title}: {line.term.name} = {line.formula} = {shown}{source}",
        *(f"      {_input(term)}" for term in line.inputs),
    ]


def _input(term: Term) -> str:
    mark = "assumed: " if term.is_assumed else ""
    return f"{term.name} = {show(term.value, term.unit)}" + (f"  ({mark}{term.source})" if term.source else "")


def what_if_text(variants: Sequence[Variant], *, width: int | None) -> str:
    """Return a row for each variant."""
    has_sites = any(variant.plan is not None and variant.plan.site is not None for variant in variants)
    headings = ["what if", "brokers", "up", "binds", "most used", "", "partitions", *(["a site"] if has_sites else [])]
    rows = []
    for variant in variants:
        if variant.plan is None:
            rows.append([variant.title, "-", "-", variant.reason, "-", "-", "-", *(["-"] if has_sites else [])])
            continue
        cluster, site = variant.plan.cluster, variant.plan.site
        busiest = cluster.busiest
        rows.append(
            [
                variant.title,
                f"{cluster.brokers:,}",
                f"{cluster.up:,}",
                cluster.binding_title,
                busiest.title,
                f"{busiest.use(cluster.up) * 100:.0f}%",
                show(cluster.sheet["partitions"], Unit.COUNT),
                *([f"{site.brokers:,}" if site is not None else "-"] if has_sites else []),
            ]
        )
    return table(headings, rows, width=width)
