"""Plans: more load never needs less, every limit is kept, the binding one binds, and the figures of the notes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import ConfigError
from ottla.operations.capacity.cluster import ClusterPlan, plan_cluster, rule_of_thumb
from ottla.operations.capacity.load import Load, Machine, Rules, Sites, stored_size
from ottla.operations.capacity.plan import Case, make_plan, outlook
from ottla.operations.capacity.rates import Figure, Rates
from ottla.operations.capacity.sheet import Line, evaluate
from ottla.operations.capacity.what_if import what_if

_DAY = 86400.0
_GIGABIT = 125e6
_MORE = ("records", "peak", "retention", "replication", "groups", "lagging", "members")


def _load(**changes: Any) -> Load:
    given_values: dict[str, Any] = {"records_per_second": 1e6, "record_bytes": 1000, "stored_record_bytes": 1010}
    return Load(**given_values | changes)


def _plan(load: Load, **changes: Any) -> ClusterPlan:
    settings: dict[str, Any] = {"machine": Machine(), "rules": Rules(), "rates": Rates()}
    return plan_cluster("cluster", load, **settings | changes)


@st.composite
def loads(draw: st.DrawFn) -> Load:
    groups = draw(st.integers(0, 20))
    size = draw(st.floats(1, 1e5))
    return Load(
        records_per_second=draw(st.floats(1, 1e7)),
        record_bytes=size,
        stored_record_bytes=stored_size(size, draw(st.floats(1, 10))),
        peak=draw(st.floats(1, 5)),
        retention=draw(st.floats(60, 30 * _DAY)),
        replication=draw(st.integers(1, 5)),
        groups=groups,
        lagging=draw(st.integers(0, groups)),
        topics=draw(st.integers(1, 1000)),
        members=draw(st.integers(1, 500)),
    )


machines = st.builds(
    Machine,
    link=st.floats(1e8, 1e10),
    disks=st.integers(1, 48),
    disk_bytes=st.floats(1e11, 2e13),
    disk_rate=st.floats(5e7, 2e9),
    cores=st.integers(2, 128),
    memory=st.floats(8e9, 1e12),
)


@given(
    loads(), machines, st.sampled_from(["records", "peak", "retention", "replication", "groups", "lagging", "members"])
)
def test_more_of_anything_never_needs_fewer_brokers(load: Load, machine: Machine, what: str) -> None:
    more = {
        "records": load.times(1.7),
        "retention": replace(load, retention=load.retention * 1.7),
        "replication": replace(load, replication=load.replication + 1),
        "groups": replace(load, groups=load.groups + 1),
        "lagging": replace(load, lagging=load.lagging + 1, groups=load.groups + 1),
        "members": replace(load, members=load.members * 2),
        "peak": replace(load, peak=load.peak * 1.3),
    }[what]
    before, after = _plan(load, machine=machine), _plan(more, machine=machine)
    assert after.needed >= before.needed
    for one, other in zip(before.limits, after.limits, strict=True):
        assert other.demand.value >= one.demand.value * (1 - 1e-9), one.key


@given(loads(), machines, st.integers(0, 3))
def test_the_planned_brokers_keep_every_limit_also_without_the_spare_ones(
    load: Load, machine: Machine, spare: int
) -> None:
    plan = _plan(load, machine=machine, rules=Rules(spare=spare))
    assert plan.is_enough
    for limit in plan.limits:
        assert limit.use(plan.brokers - spare) <= 1 + 1e-6, limit.key
    assert plan.brokers >= load.replication
    assert plan.brokers >= 2 * spare + 1
    sheet = plan.sheet
    assert sheet["partition_bytes"] <= Rules().partition_bytes * (1 + 1e-6)
    assert sheet["topic_rate"] <= sheet["partitions"] * sheet["partition_in"] * (1 + 1e-6)
    assert sheet["topic_rate"] <= sheet["partitions"] * sheet["partition_out"] * (1 + 1e-6)
    assert sheet["partitions"] >= load.members


@given(loads(), machines)
def test_with_one_broker_less_the_binding_limit_is_exceeded(load: Load, machine: Machine) -> None:
    plan = _plan(load, machine=machine)
    by_name = {limit.needed.term.name: limit for limit in plan.limits}
    limit = by_name.get(plan.binding.term.name)
    if limit is None:  # the number of replicas, or a majority
        assert plan.binding.value == max(load.replication, 3)
        assert all(limit.brokers <= plan.needed for limit in plan.limits)
    elif plan.needed > 2:
        # One less than planned, and the one that may be lost.
        assert limit.use(plan.needed - 2) > 1 - 1e-6
        assert all(other.brokers <= limit.brokers for other in plan.limits)


@given(loads(), machines, st.integers(1, 40))
def test_every_line_is_what_its_formula_gives(load: Load, machine: Machine, sites: int) -> None:
    case = Case(
        load=load,
        machine=machine,
        sites=Sites(count=sites, retention=min(_DAY, load.retention), replication=load.replication, machine=machine),
    )
    plan = make_plan(case)
    lines: list[Line] = [line for cluster in plan.clusters for line in cluster.sheet.lines]
    for line in [*lines, *plan.clients.lines]:
        values = {term.name: term.value for term in line.inputs}
        assert evaluate(line.formula, values) == line.value
        assert line.title


def test_each_limit_can_be_the_one_that_binds() -> None:
    free = Rates(broker_core=Figure(1e12, "free", is_measured=True))
    cases: dict[str, tuple[Load, Machine, Rates]] = {
        "network_in": (_load(groups=0, replication=3, retention=60), Machine(link=_GIGABIT), free),
        "network_out": (_load(groups=9, retention=60), Machine(link=_GIGABIT), free),
        "disk_rate": (_load(groups=2, lagging=2, retention=60), Machine(disks=1), free),
        "disk_space": (_load(retention=30 * _DAY), Machine(disks=1), free),
        "partitions": (_load(topics=50_000, records_per_second=1000), Machine(), free),
        "cpu": (_load(), Machine(cores=2), Rates()),
        "memory": (_load(retention=60), Machine(memory=8e9, link=1e11, disks=900), free),
        "replicas": (_load(records_per_second=1, replication=5), Machine(), free),
        "majority": (_load(records_per_second=1, replication=1), Machine(), free),
    }
    for key, (load, machine, rates) in cases.items():
        plan = _plan(load, machine=machine, rates=rates)
        assert plan.binding.term.name == f"brokers_{key}", key
        assert [term.name for term in plan.assumptions] == (["core_rate"] if key == "cpu" else []), key


def test_the_rules_of_thumb_of_the_notes() -> None:
    assert rule_of_thumb(3, _GIGABIT) == 6
    assert rule_of_thumb(3, 10 * _GIGABIT) == 30
    # Ten consumers at 1 Gbit/s saturate one broker at 10 Gbit/s.
    assert rule_of_thumb(1, 10 * _GIGABIT) == 10


def test_the_times_of_the_notes() -> None:
    # 1,000 partitions led by a broker that dies: 5 s; 1,000 replicas add 20 ms.
    load = _load(records_per_second=1, topics=3000, replication=1)
    plan = _plan(load, brokers=3)
    assert plan.sheet["broker_leaders"] == 1000
    assert plan.sheet["election"] == 5.0
    assert plan.sheet["replication_delay"] == pytest.approx(0.02 * 1050 / 1000)


def test_150_terabytes_a_day_with_two_copies_of_a_day() -> None:
    load = Load(
        records_per_second=150e9 / _DAY, record_bytes=1000, stored_record_bytes=1000, retention=_DAY, replication=2
    )
    plan = _plan(load)
    assert plan.sheet["mean_rate"] == pytest.approx(1.736e9, rel=1e-3)  # 13.9 Gbit/s
    assert plan.sheet["retained"] == pytest.approx(150e12)
    assert plan.sheet["partitions"] == 3000  # of 50 GB
    assert plan.partition_rule == "by_size"


def test_a_site_carries_its_part_and_the_mirror_reads_it() -> None:
    load = _load(retention=3 * _DAY, replication=2, groups=4)
    sites = Sites(count=4, retention=_DAY, replication=2, groups=1, machine=Machine(link=_GIGABIT))
    plan = make_plan(Case(load=load, sites=sites))
    assert plan.site is not None
    assert plan.site.load.bytes_per_second == pytest.approx(load.bytes_per_second / 4)
    assert plan.site.load.groups == 2
    assert plan.site.sheet["link"] == _GIGABIT
    assert plan.clients["uplink"] == pytest.approx(load.bytes_per_second / 4 / 0.7)
    assert plan.clients["mirror_cores"] >= 1
    with pytest.raises(ConfigError, match="longer than the aggregate"):
        make_plan(Case(load=load, sites=replace(sites, retention=4 * _DAY)))


def test_what_if_has_one_change_in_each_row() -> None:
    case = Case(load=_load(), sites=Sites(count=3, retention=_DAY, replication=3, machine=Machine()))
    rows = {variant.title: variant.plan for variant in what_if(case)}
    given_plan, lost = rows["as given"], rows["one broker lost"]
    assert given_plan is not None
    assert lost is not None
    assert (lost.cluster.brokers, lost.cluster.up) == (given_plan.cluster.brokers, given_plan.cluster.brokers - 1)
    assert lost.cluster.is_enough
    twice = rows["twice the rate"]
    more = rows["one site more"]
    assert twice is not None
    assert more is not None
    assert twice.case.load.records_per_second == 2 * case.load.records_per_second
    assert more.case.load.records_per_second == pytest.approx(case.load.records_per_second * 4 / 3)
    small = what_if(Case(load=_load(records_per_second=1, replication=3), brokers=3))
    reasons = {variant.title: variant.reason for variant in small if variant.plan is None}
    assert reasons == {"one replica more": "replication 4 needs as many brokers, and there are 3"}


def test_brokers_that_are_too_few_are_not_enough() -> None:
    plan = _plan(_load(), brokers=4)
    assert not plan.is_enough
    assert plan.needed > 4
    assert plan.busiest.key == plan.binding.term.name.removeprefix("brokers_")
    # With a broker lost, the others carry on with fewer replicas in sync.
    assert _plan(_load(records_per_second=1), brokers=3, without=1).is_enough


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"retention": 0}, "retention in seconds must be from 60"),
        ({"retention": 3}, "3 is three seconds, write 3d"),
        ({"records_per_second": -1}, "records per second must be from"),
        ({"records_per_second": float("nan")}, "must be a number"),
        ({"record_bytes": 0}, "the size of a record must be from 1"),
        ({"record_bytes": 5e9}, "bytes of one record"),
        ({"peak": 0.5}, "as a multiple of the mean"),
        ({"replication": 0}, "replication must be from 1"),
        ({"replication": 2.5}, "replication must be a whole number"),
        ({"groups": 1, "lagging": 2}, "2 lagging groups of 1"),
        ({"topics": 0}, "topics must be from 1"),
    ],
)
def test_a_load_that_cannot_be_is_refused(values: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        _load(**values)


def test_machines_and_rules_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="write 10Gbit/s"):
        Machine(link=10)
    with pytest.raises(ConfigError, match="write 4TB"):
        Machine(disk_bytes=4)
    with pytest.raises(ConfigError, match="a share, such as"):
        Rules(network_share=70)
    with pytest.raises(ConfigError, match="a quarter"):
        stored_size(1000, 0)
    with pytest.raises(ConfigError, match="replication 3 needs as many brokers"):
        _plan(_load(), brokers=2)
    with pytest.raises(ConfigError, match="none is left"):
        _plan(_load(), brokers=3, without=3)


def _report(kind: str, **changes: Any) -> dict[str, Any]:
    run = {"client": "ottla", "records": 1_000_000, "bytes": 10**9, "seconds": 2.0, "cpu_seconds": 1.0}
    settings = {"record_bytes": 1000, "partitions": 4, "threads": 2}
    return {"kind": kind, "date": "2026-01-01T00:00:00Z", "settings": settings, "runs": [run | changes]}


def test_measured_rates_replace_the_built_in_ones() -> None:
    rates = Rates()
    for kind in ("produce", "consume", "mirror"):
        rates = rates.with_report(_report(kind), "perf.json")
    assert rates.partition_in.value == 125e6
    assert rates.partition_out is not None
    assert rates.partition_out.value == 250e6
    assert rates.producer.of(1000).value == pytest.approx(1e-6)
    assert rates.producer.of(10).value == pytest.approx(1e-6)  # a smaller record may cost as much
    assert rates.producer.of(2000).value == pytest.approx(2e-6)
    assert rates.mirror.of(500).value == pytest.approx(0.5e-6)
    assert rates.producer.of(1).is_measured
    plan = make_plan(Case(load=_load(), rates=rates))
    values = outlook(plan)
    assert values["clients"]["producer_cores"]["inputs"]["producer_cost"]["assumed"] is False
    assert values["clients"]["archive_cores"]["inputs"]["archive_cost"]["assumed"] is True


@pytest.mark.parametrize(
    ("report", "text"),
    [
        ({}, "is not a report of 'ottla perf --json'"),
        ([], "is not a report of 'ottla perf --json'"),
        (_report("latency"), "this is latency"),
        (_report("produce", records=0), "has no measured records"),
        (_report("produce", client="java"), "is not a report"),
        (_report("produce", cpu_seconds=None), "is not a report"),
        (_report("produce", records=float("inf")), "is not a report"),
        (_report("produce", bytes=float("inf")), "has numbers that cannot be"),
        (_report("produce", seconds=float("nan")), "has numbers that cannot be"),
    ],
)
def test_what_is_no_report_is_refused(report: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Rates().with_report(report, "perf.json")
