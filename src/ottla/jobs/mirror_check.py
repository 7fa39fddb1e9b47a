"""Says what links would do, without writing anything: topics, new names, what is created or changed, what is refused.

Links come in, a `LinkCheck` for each goes out. Clusters are asked, each link on a thread of its own; brokers validate
what they would have to create. Problems between links (two that write to one topic, circles) are found by pure
functions over all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ottla.admin import Admin, Apply
from ottla.config import Timeouts
from ottla.errors import OttlaError
from ottla.jobs.mirror_link import Link
from ottla.jobs.mirrors import Mirroring
from ottla.mirror.topics import TopicPlan, creating, left_out, nothing_matches


class Place(NamedTuple):
    """A topic on a cluster."""

    cluster: str
    topic: str


class Edge(NamedTuple):
    """A topic that a link copies."""

    link: str
    source: Place
    target: Place


@dataclass(frozen=True, slots=True)
class LinkCheck:
    """What a link would do."""

    link: Link
    topics: tuple[TopicPlan, ...] = ()
    problems: tuple[str, ...] = ()
    """Why it, or a part of it, would fail or must not run."""
    notes: tuple[str, ...] = ()
    """What is worth knowing and no reason to refuse it."""
    source_id: str | None = None
    target_id: str | None = None

    @property
    def edges(self) -> tuple[Edge, ...]:
        """What it copies, if both clusters are known."""
        if self.source_id is None or self.target_id is None:
            return ()
        return tuple(
            Edge(self.link.name, Place(self.source_id, plan.source), Place(self.target_id, plan.target))
            for plan in self.topics
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "link": self.link.name,
            "source": self.link.source_brokers.bootstrap,
            "target": self.link.target_brokers.bootstrap,
            "topics": [
                {
                    "topic": plan.source,
                    "target_topic": plan.target,
                    "action": plan.action or "none",
                    "partitions": plan.partitions,
                    "target_partitions": plan.target_partitions,
                    "settings": dict(plan.settings),
                }
                for plan in self.topics
            ],
            "problems": list(self.problems),
            "notes": list(self.notes),
        }


def check_links(links: Sequence[Link], *, timeout: float, ask_brokers: bool = True) -> list[LinkCheck]:
    """Return what each link would do. Clusters that do not answer within `timeout` seconds are problems.

    Without `ask_brokers`, brokers do not validate what would be created.
    """
    if not links:
        return []
    with ThreadPoolExecutor(len(links), thread_name_prefix="ottla-mirror-check") as pool:
        checks = list(pool.map(lambda link: _check(link, timeout=timeout, ask_brokers=ask_brokers), links))
    between = problems_between([edge for check in checks for edge in check.edges])
    return [
        replace(check, problems=(*check.problems, *(text for link, text in between if link == check.link.name)))
        for check in checks
    ]


def problems_between(edges: Iterable[Edge]) -> list[tuple[str, str]]:
    """Return links and what is wrong between them: two that write to one topic, and circles. Pure."""
    rows = list(edges)
    problems: list[tuple[str, str]] = []
    writers: dict[Place, Edge] = {}
    for edge in rows:
        first = writers.setdefault(edge.target, edge)
        if first.link != edge.link:
            text = (
                f"topic {edge.source.topic} would go into {edge.target.topic}, which link {first.link} writes: rename"
                " the topics of one link, for example with '{source}.{topic}'"
            )
            problems.append((edge.link, text))
    for circle in circles(rows):
        way = " -> ".join([*(edge.source.topic for edge in circle), circle[-1].target.topic])
        names = ", ".join(dict.fromkeys(edge.link for edge in circle))
        text = f"topic {circle[0].source.topic} would go in a circle ({way}) by the links {names}, without end"
        problems += [(name, text) for name in dict.fromkeys(edge.link for edge in circle)]
    return problems


def circles(edges: Iterable[Edge]) -> list[tuple[Edge, ...]]:
    """Return the ways on which a record would come back to its topic, each once. Pure."""
    out: dict[Place, list[Edge]] = {}
    for edge in edges:
        out.setdefault(edge.source, []).append(edge)
    found: list[tuple[Edge, ...]] = []
    finished: set[Place] = set()

    def visit(place: Place, way: tuple[Edge, ...]) -> None:
        ancestors = [*(step.source for step in way), place]
        for edge in out.get(place, ()):
            if edge.target in ancestors:
                found.append((*way[ancestors.index(edge.target) :], edge))
            elif edge.target not in finished:
                visit(edge.target, (*way, edge))
        finished.add(place)

    for place in out:
        if place not in finished:
            visit(place, ())
    return found


def _check(link: Link, *, timeout: float, ask_brokers: bool) -> LinkCheck:
    limits = Timeouts(total=timeout, connect=min(10.0, timeout), request=min(30.0, timeout))
    hurried = replace(
        link,
        source=replace(link.source_brokers, timeouts=limits),
        target=replace(link.target_brokers, timeouts=limits),
    )
    with Mirroring(hurried) as mirroring:
        ids: dict[str, Any] = {}
        problems = []
        for side, cluster in (("source", mirroring.source), ("target", mirroring.target)):
            try:
                ids[f"{side}_id"] = cluster.metadata([]).cluster_id
            except OttlaError as error:
                problems.append(f"the {side} does not answer: {error}")
        if problems:
            return LinkCheck(link, problems=tuple(problems), **ids)
        try:
            looked, refused = mirroring.look()
            plans = tuple(looked)
            problems += [each.reason for each in refused]
        except OttlaError as error:
            return LinkCheck(link, problems=(str(error),), **ids)
        notes = [] if plans or refused else [nothing_matches(link.topics)]
        notes += [
            f"topic {plan.target} has {plan.target_partitions} partitions, topic {plan.source} only {plan.partitions}"
            for plan in plans
            if plan.target_partitions is not None and plan.target_partitions > plan.partitions
        ]
        notes += [
            f"topic {name} is called like one of MirrorMaker's own and is left out: name it to mirror it"
            for name in left_out(Admin(mirroring.source).topic_names(), link.topics)
        ]
        if ask_brokers:
            problems += _refused(mirroring, plans, replicas=link.replicas)
        return LinkCheck(link, plans, tuple(problems), tuple(notes), **ids)


def _refused(mirroring: Mirroring, plans: Iterable[TopicPlan], *, replicas: int) -> list[str]:
    """Return what the target's brokers would refuse."""
    problems = []
    try:
        mirroring.journal.check()
    except OttlaError as error:
        problems.append(f"the journal: {error}")
    admin = Admin(mirroring.target)
    for plan in plans:
        try:
            _validate(admin, plan, replicas)
        except OttlaError as error:
            problems.append(f"topic {plan.target}: {error}")
    return problems


def _validate(admin: Admin, plan: TopicPlan, replicas: int) -> None:
    if plan.target_partitions is None:
        creating(plan, replicas, admin.check_topic)
        return
    if plan.target_partitions < plan.partitions:
        admin.add_partitions(plan.target, plan.partitions, apply=Apply.CHECK)
    if plan.settings:
        admin.alter_settings(plan.target, plan.settings, apply=Apply.CHECK)
