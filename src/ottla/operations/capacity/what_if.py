"""What a plan becomes if one thing changes: one broker less, one site more, a longer retention, a higher rate.

A `Case` comes in; named variants with their plans go out. A variant that cannot be has its reason instead. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ottla.errors import ConfigError
from ottla.operations.capacity.plan import Case, Plan, make_plan


@dataclass(frozen=True, slots=True)
class Variant:
    """A change of a case, and what it leads to: a plan, or the reason why there is none."""

    title: str
    plan: Plan | None
    reason: str = ""


def _load(**changes: object) -> Callable[[Case], Case]:
    return lambda case: replace(case, load=replace(case.load, **changes))  # type: ignore[arg-type]


def _one_site_more(case: Case) -> Case:
    assert case.sites is not None
    grown = case.load.times((case.sites.count + 1) / case.sites.count)
    return replace(case, load=grown, sites=replace(case.sites, count=case.sites.count + 1))


def what_if(case: Case) -> list[Variant]:
    """Return the case as it is, and the usual variants of it."""
    load, planned = case.load, make_plan(case)
    fixed = replace(case, brokers=planned.cluster.brokers)
    changes: list[tuple[str, Callable[[Case], Case]]] = [
        ("as given", lambda case: case),
        ("one broker lost", lambda _: replace(fixed, without=case.without + 1)),
        ("two brokers lost", lambda _: replace(fixed, without=case.without + 2)),
    ]
    if case.sites is not None:
        changes.append(("one site more", _one_site_more))
    changes += [
        ("twice the rate", lambda case: replace(case, load=load.times(2))),
        ("twice the retention", _load(retention=2 * load.retention)),
        ("one group more", _load(groups=load.groups + 1)),
        ("one group reads from disk", _load(lagging=load.lagging + 1, groups=max(load.groups, load.lagging + 1))),
        ("one replica more", _load(replication=load.replication + 1)),
        ("links of 25 Gbit/s", lambda case: replace(case, machine=replace(case.machine, link=3.125e9))),
    ]
    return [_variant(title, case, change) for title, change in changes]


def _variant(title: str, case: Case, change: Callable[[Case], Case]) -> Variant:
    try:
        return Variant(title, make_plan(change(case)))
    except ConfigError as error:
        return Variant(title, None, str(error))
