"""A whole plan: the cluster, the clusters of its sites if there are any, and the cores of all clients.

A `Case` comes in, a `Plan` goes out; `outlook` is the same as plain values for JSON. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ottla.errors import ConfigError
from ottla.operations.capacity.cluster import ClusterPlan, give_figure, plan_cluster, rule_of_thumb
from ottla.operations.capacity.load import Load, Machine, Rules, Sites
from ottla.operations.capacity.rates import Rates
from ottla.operations.capacity.sheet import Line, Sheet, Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Everything that a plan is made from."""

    load: Load
    machine: Machine = field(default_factory=Machine)
    rules: Rules = field(default_factory=Rules)
    rates: Rates = field(default_factory=Rates)
    sites: Sites | None = None
    brokers: int | None = None
    """How many brokers the cluster has; None to find out how many it needs."""
    without: int = 0
    """How many of the brokers are lost in what is shown as used."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a case needs."""

    case: Case
    cluster: ClusterPlan
    site: ClusterPlan | None
    """One of the sites: all are equal."""
    clients: Sheet

    @property
    def clusters(self) -> tuple[ClusterPlan, ...]:
        """The cluster, and one of the sites."""
        return (self.cluster,) if self.site is None else (self.cluster, self.site)

    @property
    def whole_cluster_topic(self) -> int:
        """Partitions of a topic that may use the whole cluster, by the rule of thumb."""
        return rule_of_thumb(self.cluster.brokers, self.case.machine.link, self.case.rates.consumer_link.value)


def make_plan(case: Case) -> Plan:
    """Return what a case needs. Raises `ConfigError` for a combination that cannot be."""
    cluster = plan_cluster(
        "cluster" if case.sites is None else "aggregate cluster",
        case.load,
        machine=case.machine,
        rules=case.rules,
        rates=case.rates,
        brokers=case.brokers,
        without=case.without,
    )
    return Plan(case, cluster, _site(case), _clients(case))


def _site(case: Case) -> ClusterPlan | None:
    sites = case.sites
    if sites is None:
        return None
    if sites.retention > case.load.retention:
        raise ConfigError("a site keeps records longer than the aggregate cluster: it has to bridge outages only")
    load = replace(
        case.load.times(1 / sites.count),
        retention=sites.retention,
        replication=sites.replication,
        groups=sites.groups + 1,
        lagging=0,
    )
    return plan_cluster("each site", load, machine=sites.machine, rules=case.rules, rates=case.rates)


def _clients(case: Case) -> Sheet:
    """Return the cores of producers, consumers, mirrors and archivers, for the peak."""
    load, rates, sheet = case.load, case.rates, Sheet()
    sheet.give("peak_records", load.records_per_second * load.peak, Unit.RECORD_RATE, source="mean rate x peak")
    sheet.give("peak_bytes", load.bytes_per_second * load.peak, Unit.BYTE_RATE, source="mean rate x peak")
    sheet.give("groups", load.groups, Unit.COUNT, source="given")
    sheet.give("client_share", case.rules.client_share, Unit.SHARE, source="given")
    for name, cost in (("producer", rates.producer), ("consumer", rates.consumer), ("archive", rates.archive)):
        give_figure(sheet, f"{name}_cost", cost.of(load.record_bytes), Unit.SECONDS)
    rows = [
        ("producer_cores", "peak_records * producer_cost / client_share", "producers"),
        ("consumer_cores", "peak_records * groups * consumer_cost / client_share", "consumers of all groups"),
        ("archive_cores", "peak_records * archive_cost / client_share", "an archive of everything"),
    ]
    if case.sites is not None:
        mirror = rates.mirror.of(load.stored_record_bytes)
        give_figure(sheet, "mirror_cost", mirror, Unit.SECONDS)
        sheet.give("sites", case.sites.count, Unit.COUNT, source="given")
        sheet.give("network_share", case.rules.network_share, Unit.SHARE, source="given")
        rows.append(("mirror_cores", "peak_records * mirror_cost / client_share", "mirrors of all sites"))
    for name, formula, title in rows:
        sheet.compute(name, f"ceil({formula})", Unit.CORES, title=f"cores for {title}")
    if case.sites is not None:
        sheet.compute(
            "uplink", "peak_bytes / sites / network_share", Unit.BYTE_RATE, title="link from each site to the aggregate"
        )
    return sheet


def outlook(plan: Plan) -> dict[str, Any]:
    """Return the plan as plain values."""
    return {
        "clusters": [_cluster_values(cluster) for cluster in plan.clusters],
        "clients": {line.term.name: _line_values(line) for line in plan.clients.lines},
        "sites": None if plan.case.sites is None else plan.case.sites.count,
        "whole_cluster_topic_partitions": plan.whole_cluster_topic,
    }


def _cluster_values(cluster: ClusterPlan) -> dict[str, Any]:
    return {
        "name": cluster.name,
        "brokers": cluster.brokers,
        "needed": cluster.needed,
        "up": cluster.up,
        "is_enough": cluster.is_enough,
        "binding": cluster.binding.term.name.removeprefix("brokers_"),
        "rests_on_assumed": [term.name for term in cluster.assumptions],
        "partition_rule": cluster.partition_rule,
        "limits": {
            limit.key: {"brokers": limit.brokers, "use": round(limit.use(cluster.up), 6)} for limit in cluster.limits
        },
        "lines": {line.term.name: _line_values(line) for line in cluster.sheet.lines},
    }


def _line_values(line: Line) -> dict[str, Any]:
    return {
        "title": line.title,
        "value": line.value,
        "unit": line.term.unit.value,
        "formula": line.formula,
        "inputs": {
            term.name: {"value": term.value, "source": term.source, "assumed": term.is_assumed} for term in line.inputs
        },
        "source": line.term.source,
    }
