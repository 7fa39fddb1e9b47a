"""The rules for one cluster: partitions, limits of a broker, how many brokers each limit needs, which of them binds.

A load, a machine, rules and rates come in; a `ClusterPlan` goes out. Every number of it is a line of a sheet. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ottla.operations.capacity.load import Load, Machine, Rules, check_brokers
from ottla.operations.capacity.rates import Figure, Rates
from ottla.operations.capacity.sheet import Line, Sheet, Term, Unit, ceil

GIVEN = "given"
_OFFSETS_REPLICAS = 150
_NOTES = "operators' notes, 150 TB a day"
_GOOGLE = "Google, managed Kafka: plan the cluster size"
_KAFKA = "Kafka, operations: hardware and OS"


@dataclass(frozen=True, slots=True)
class Limit:
    """Something that a broker has only so much of: what all brokers need of it together, and what one may use."""

    key: str
    title: str
    demand: Line
    capacity: Line
    needed: Line
    """How many brokers there must be."""

    @property
    def brokers(self) -> int:
        """How many brokers there must be."""
        return int(self.needed.value)

    def use(self, brokers: int) -> float:
        """Return the share of what may be used, if this many brokers are up: above 1 it is exceeded."""
        return self.demand.value / (self.capacity.value * brokers)


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What a cluster needs, and how much of its limits is used with `up` of its brokers."""

    name: str
    load: Load
    sheet: Sheet
    limits: tuple[Limit, ...]
    fixed: tuple[Line, ...]
    """Numbers of brokers that do not depend on the load: for the replicas, and for a majority."""
    brokers: int
    """How many there are, or have to be."""
    up: int
    """How many of them the use is for."""

    @property
    def needed(self) -> int:
        """How many brokers there must be."""
        return int(max(self.binding.value, 1))

    @property
    def binding(self) -> Line:
        """The line that asks for the most brokers: among equals, the limit that is nearest to the next one."""
        by_load = {limit.needed.term.name: limit.demand.value / limit.capacity.value for limit in self.limits}
        lines = [*(limit.needed for limit in self.limits), *self.fixed]
        return max(lines, key=lambda line: (line.value, by_load.get(line.term.name, 0.0)))

    @property
    def binding_title(self) -> str:
        """What binds, in words."""
        return self.binding.title.removeprefix("brokers for ")

    @property
    def busiest(self) -> Limit:
        """The limit of which the brokers that are up use most."""
        return max(self.limits, key=lambda limit: limit.use(self.up))

    @property
    def assumptions(self) -> tuple[Term, ...]:
        """The built-in figures that the number of brokers rests on."""
        return self.sheet.assumptions(self.binding.term.name)

    @property
    def is_enough(self) -> bool:
        """Whether the brokers that are up keep every limit."""
        return self.busiest.use(self.up) <= 1 + 1e-9

    @property
    def partition_rule(self) -> str:
        """The rule that asks for the most partitions."""
        rules = ("by_rate_in", "by_rate_out", "by_size", "members")
        return max(rules, key=lambda rule: self.sheet[rule])


def plan_cluster(
    name: str,
    load: Load,
    *,
    machine: Machine,
    rules: Rules,
    rates: Rates,
    brokers: int | None = None,
    without: int = 0,
) -> ClusterPlan:
    """Return what a cluster needs. `brokers` is how many it has, `without` how many of them are lost.

    Raises `ConfigError` for a number of brokers that cannot be.
    """
    if brokers is not None:
        check_brokers(brokers, load, without=without)
    sheet = Sheet()
    _give(sheet, load, machine, rules, rates)
    _partitions(sheet)
    limits = _limits(sheet)
    fixed = (
        sheet_line(sheet, "brokers_replicas", "replication", "brokers for the replicas"),
        sheet_line(sheet, "brokers_majority", "2 * spare + 1", "brokers for a majority of controllers"),
    )
    lines = [*(limit.needed for limit in limits), *fixed]
    needed = int(max(line.value for line in lines))
    count = needed if brokers is None else brokers
    check_brokers(count, load, without=without)
    up = count - without
    sheet.give("brokers", count, Unit.COUNT, source=GIVEN if brokers is not None else "as needed")
    sheet.give("up", up, Unit.COUNT, source="brokers that are up")
    _for_a_broker(sheet)
    return ClusterPlan(name, load, sheet, limits, fixed, count, up)


def sheet_line(sheet: Sheet, name: str, formula: str, title: str, *, unit: Unit = Unit.COUNT, source: str = "") -> Line:
    """Add a line to a sheet and return it."""
    sheet.compute(name, formula, unit, title=title, source=source)
    return sheet.line(name)


def give_figure(sheet: Sheet, name: str, figure: Figure, unit: Unit) -> None:
    """Add a figure to a sheet, marked as assumed unless it was measured or given."""
    sheet.give(name, figure.value, unit, source=figure.source, is_assumed=not figure.is_measured)


def _give(sheet: Sheet, load: Load, machine: Machine, rules: Rules, rates: Rates) -> None:
    """Add everything that formulas use."""
    given: Sequence[tuple[str, float, Unit]] = (
        ("records_rate", load.records_per_second, Unit.RECORD_RATE),
        ("stored_record", load.stored_record_bytes, Unit.BYTES),
        ("peak", load.peak, Unit.COUNT),
        ("retention", load.retention, Unit.SECONDS),
        ("replication", load.replication, Unit.COUNT),
        ("groups", load.groups, Unit.COUNT),
        ("lagging", load.lagging, Unit.COUNT),
        ("topics", load.topics, Unit.COUNT),
        ("members", load.members, Unit.COUNT),
        ("link", machine.link, Unit.BYTE_RATE),
        ("disks", machine.disks, Unit.COUNT),
        ("disk", machine.disk_bytes, Unit.BYTES),
        ("disk_rate", machine.disk_rate, Unit.BYTE_RATE),
        ("cores", machine.cores, Unit.CORES),
        ("memory", machine.memory, Unit.BYTES),
        ("spare", rules.spare, Unit.COUNT),
        ("network_share", rules.network_share, Unit.SHARE),
        ("disk_share", rules.disk_share, Unit.SHARE),
        ("space_share", rules.space_share, Unit.SHARE),
        ("cpu_share", rules.cpu_share, Unit.SHARE),
        ("segment", rules.segment_bytes, Unit.BYTES),
        ("roll", rules.roll, Unit.SECONDS),
        ("cache_seconds", rules.cache_seconds, Unit.SECONDS),
        ("heap", rules.heap, Unit.BYTES),
        ("offsets_replicas", _OFFSETS_REPLICAS, Unit.COUNT),
    )
    for name, value, unit in given:
        sheet.give(name, value, unit, source=GIVEN)
    sheet.give("most_partitions", rules.partitions_per_broker, Unit.COUNT, source=f"{_NOTES}: below 4,000")
    sheet.give("most_partition", rules.partition_bytes, Unit.BYTES, source=f"{_NOTES}: below 50 GB")
    give_figure(sheet, "core_rate", rates.broker_core, Unit.BYTE_RATE)
    give_figure(sheet, "partition_in", rates.partition_in, Unit.BYTE_RATE)
    if rates.partition_out is None:
        give_figure(sheet, "consumer_link", rates.consumer_link, Unit.BYTE_RATE)
        sheet.compute(
            "partition_out",
            "consumer_link * network_share",
            Unit.BYTE_RATE,
            title="what one consumer reads",
            source=f"{_NOTES}: ten consumers at 1 Gbit/s for a broker at 10 Gbit/s",
        )
    else:
        give_figure(sheet, "partition_out", rates.partition_out, Unit.BYTE_RATE)


def _partitions(sheet: Sheet) -> None:
    """Add the rates and the number of partitions of a topic."""
    rule = f"{_NOTES}, and Confluent: max(t/p, t/c)"
    rows = (
        ("mean_rate", "records_rate * stored_record", Unit.BYTE_RATE, "written, mean", ""),
        ("write_rate", "mean_rate * peak", Unit.BYTE_RATE, "written, peak", ""),
        ("read_rate", "write_rate * groups", Unit.BYTE_RATE, "read by groups, peak", ""),
        ("retained", "mean_rate * retention", Unit.BYTES, "retained, one copy", ""),
        ("topic_rate", "write_rate / topics", Unit.BYTE_RATE, "a topic, peak", ""),
        ("topic_bytes", "retained / topics", Unit.BYTES, "a topic, retained", ""),
        ("by_rate_in", "ceil(topic_rate / partition_in)", Unit.COUNT, "partitions for the rate of producers", rule),
        ("by_rate_out", "ceil(topic_rate / partition_out)", Unit.COUNT, "partitions for the rate of consumers", rule),
        ("by_size", "ceil(topic_bytes / most_partition)", Unit.COUNT, "partitions for their size", _NOTES),
        (
            "partitions",
            "max(by_rate_in, by_rate_out, by_size, members)",
            Unit.COUNT,
            "partitions of a topic",
            "each consumer of a group needs one of its own",
        ),
        ("partition_bytes", "topic_bytes / partitions", Unit.BYTES, "a partition, retained", ""),
        (
            "replicas",
            "topics * partitions * replication + offsets_replicas",
            Unit.COUNT,
            "replicas of all partitions",
            f"{_NOTES}: __consumer_offsets has 50 partitions with 3 replicas",
        ),
        (
            "open_segment",
            "min(segment, mean_rate / topics / partitions * roll)",
            Unit.BYTES,
            "the open segment of a partition",
            "whole segments are deleted",
        ),
    )
    for name, formula, unit, title, source in rows:
        sheet.compute(name, formula, unit, title=title, source=source)


def _limits(sheet: Sheet) -> tuple[Limit, ...]:
    """Add demand, capacity and the brokers that are needed, for each limit."""
    # Key, title, unit, demand of all brokers, capacity of one, where the rule is from.
    rows = (
        ("network_in", "network in", Unit.BYTE_RATE, "write_rate * replication", "link * network_share", _GOOGLE),
        (
            "network_out",
            "network out",
            Unit.BYTE_RATE,
            "write_rate * (replication - 1) + read_rate",
            "link * network_share",
            _GOOGLE,
        ),
        (
            "disk_rate",
            "disk throughput",
            Unit.BYTE_RATE,
            "write_rate * replication + write_rate * lagging",
            "disks * disk_rate * disk_share",
            "Oracle and Cloudera: W x RF + L x W",
        ),
        (
            "disk_space",
            "disk space",
            Unit.BYTES,
            "retained * replication + topics * partitions * replication * open_segment",
            "disks * disk * space_share",
            "retention in bytes, and the open segments",
        ),
        ("partitions", "partitions per broker", Unit.COUNT, "replicas", "most_partitions", _NOTES),
        (
            "cpu",
            "broker CPU",
            Unit.CORES,
            "(write_rate * replication + (write_rate * (replication - 1) + read_rate) / 4) / core_rate",
            "cores * cpu_share",
            _GOOGLE,
        ),
        (
            "memory",
            "page cache",
            Unit.BYTES,
            "write_rate * replication * cache_seconds",
            "memory - heap",
            f"{_KAFKA}: 30 seconds of writes",
        ),
    )
    limits = []
    for key, title, unit, demand, capacity, source in rows:
        limits.append(
            Limit(
                key,
                title,
                sheet_line(sheet, f"{key}_demand", demand, f"{title}, all brokers", unit=unit, source=source),
                sheet_line(sheet, f"{key}_capacity", capacity, f"{title}, of one broker", unit=unit),
                sheet_line(
                    sheet,
                    f"brokers_{key}",
                    f"ceil({key}_demand / {key}_capacity) + spare",
                    f"brokers for {title}",
                ),
            )
        )
    return tuple(limits)


def _for_a_broker(sheet: Sheet) -> None:
    """Add what each broker that is up carries, and what follows from that."""
    rows = (
        ("broker_in", "network_in_demand / up", Unit.BYTE_RATE, "network in, a broker", ""),
        ("broker_out", "network_out_demand / up", Unit.BYTE_RATE, "network out, a broker", ""),
        ("broker_disk_rate", "disk_rate_demand / up", Unit.BYTE_RATE, "disk throughput, a broker", ""),
        ("broker_bytes", "disk_space_demand / up", Unit.BYTES, "on the disks of a broker", ""),
        ("broker_replicas", "ceil(replicas / up)", Unit.COUNT, "replicas, a broker", ""),
        ("broker_leaders", "ceil(topics * partitions / up)", Unit.COUNT, "leaders, a broker", ""),
        ("broker_cores", "cpu_demand / up", Unit.CORES, "busy cores, a broker", ""),
        ("disks_all", "brokers * disks", Unit.COUNT, "disks, all brokers", ""),
        (
            "segments",
            "broker_replicas * (ceil(partition_bytes / segment) + 1)",
            Unit.COUNT,
            "segments, a broker",
            _KAFKA,
        ),
        ("open_files", "segments * 3", Unit.COUNT, "open files, a broker", f"{_KAFKA}; log and two indexes"),
        ("map_areas", "segments * 2", Unit.COUNT, "memory maps, a broker", f"{_KAFKA}; vm.max_map_count is 65,530"),
        (
            "election",
            "broker_leaders * 0.005",
            Unit.SECONDS,
            "new leaders after a broker died",
            f"{_NOTES}: 5 ms a partition, with ZooKeeper; less with KRaft",
        ),
        (
            "replication_delay",
            "broker_replicas / 1000 * 0.02",
            Unit.SECONDS,
            "added by replication",
            f"{_NOTES}: 20 ms for 1,000 partitions",
        ),
        (
            "refill",
            "broker_bytes / (0.9 * max(link - broker_in, link / 10))",
            Unit.SECONDS,
            "filling a replaced broker",
            "kafka-kit: 90 % of the link that is left",
        ),
    )
    for name, formula, unit, title, source in rows:
        sheet.compute(name, formula, unit, title=title, source=source)


def rule_of_thumb(brokers: int, link: float, consumer_link: float = 125e6) -> int:
    """Return the partitions of a topic that may use a whole cluster: two for each broker, or one for each consumer
    that it takes to saturate one broker's link. Three brokers get 6 at 1 Gbit/s and 30 at 10 Gbit/s, as in the notes.
    """
    return int(brokers * max(2.0, ceil(link / consumer_link)))
