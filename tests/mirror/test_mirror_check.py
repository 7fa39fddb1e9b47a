"""What links would do, and what must not run: without a broker where that is enough."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.mirror.copies import link_of, new_topic

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.jobs.mirror_check import Edge, Place, check_links, circles, problems_between


def _edge(link: str, source: str, target: str) -> Edge:
    """From `cluster/topic` to `cluster/topic`."""
    return Edge(link, Place(*source.split("/")), Place(*target.split("/")))


def test_circles_are_found_over_any_number_of_links() -> None:
    there, back = _edge("a", "x/t", "y/t"), _edge("b", "y/t", "x/t")
    assert circles([there, _edge("b", "y/t", "x/y.t")]) == []
    assert circles([there, back]) == [(there, back)]
    assert circles([_edge("a", "x/t", "x/t")]) == [(_edge("a", "x/t", "x/t"),)]
    three = [_edge("a", "x/t", "y/t"), _edge("b", "y/t", "z/t"), _edge("c", "z/t", "x/t")]
    assert circles([_edge("d", "w/t", "x/t"), *three]) == [tuple(three)]
    diamond = [_edge("a", "x/t", "y/t"), _edge("b", "x/t", "z/t"), _edge("c", "y/t", "w/a"), _edge("d", "z/t", "w/b")]
    assert circles(diamond) == []


def test_two_links_into_one_topic_and_circles_are_problems_of_their_links() -> None:
    first, second = _edge("oslo", "x/t", "hub/t"), _edge("bergen", "y/t", "hub/t")
    ((link, text),) = problems_between([first, second])
    assert link == "bergen"
    assert "topic t would go into t, which link oslo writes" in text
    problems = problems_between([_edge("oslo", "x/t", "hub/t"), _edge("back", "hub/t", "x/t")])
    assert [name for name, _ in problems] == ["oslo", "back"]
    assert all("topic t would go in a circle (t -> t -> t) by the links oslo, back" in text for _, text in problems)
    assert problems_between([first, replace_target(second, "hub/y.t")]) == []


def replace_target(edge: Edge, target: str) -> Edge:
    return edge._replace(target=Place(*target.split("/")))


@pytest.mark.broker
def test_a_check_says_what_would_be_created_grown_and_altered_and_writes_nothing(kafka: LocalCluster) -> None:
    new = new_topic(kafka.bootstrap, "check-new", partitions=2, settings={"retention.ms": "86400000"})
    grown = new_topic(kafka.bootstrap, "check-grown", partitions=3)
    altered = new_topic(kafka.bootstrap, "check-altered", settings={"retention.ms": "86400000"})
    with Admin(kafka.bootstrap) as admin:
        for name in (grown, altered):
            admin.create_topic(f"copy.{name}", replicas=1)
    link = replace(link_of(kafka.bootstrap, new, grown, altered, "check-nothing-*"), journal="mirror-check-no-journal")
    (check,) = check_links([link], timeout=20.0)
    assert check.problems == ()
    assert {plan.source: (plan.target, plan.action) for plan in check.topics} == {
        new: (f"copy.{new}", "create"),
        grown: (f"copy.{grown}", "grow"),
        altered: (f"copy.{altered}", "alter"),
    }
    row = check.to_json()["topics"][0]
    assert row["settings"] == {"retention.ms": "86400000"}
    with Admin(kafka.bootstrap) as admin:
        names = admin.topic_names()
        assert f"copy.{new}" not in names
        assert "mirror-check-no-journal" not in names
        assert len(admin.describe_topics(f"copy.{grown}")[0].partitions) == 1


@pytest.mark.broker
def test_a_check_names_what_would_be_refused(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "check-refused")
    link = link_of(kafka.bootstrap, topic, name="one")
    twin = replace(link, name="two")
    itself = replace(link, name="itself", rename="{topic}")
    missing = replace(link, name="missing", topics=("no-such-topic-anywhere",))
    replicas = replace(link, name="replicas", replicas=9, rename="r.{topic}")
    away = replace(link, name="away", source="127.0.0.1:1", rename="a.{topic}")
    other = new_topic(kafka.bootstrap, "check-journal")
    no_journal = replace(link, name="journal", journal=other, rename="j.{topic}")
    nothing = replace(link, name="nothing", topics=("no-such-*",))
    links = [link, twin, itself, missing, replicas, away, no_journal, nothing]
    checks = {check.link.name: check for check in check_links(links, timeout=2.0)}
    assert checks["one"].problems == ()
    assert "which link one writes" in checks["two"].problems[0]
    assert "into itself" in checks["itself"].problems[0]
    assert "there is no topic 'no-such-topic-anywhere'" in checks["missing"].problems[0]
    assert any(f"topic r.{topic}: " in problem for problem in checks["replicas"].problems)
    assert "the source does not answer" in checks["away"].problems[0]
    assert "must be compacted" in checks["journal"].problems[0]
    assert checks["nothing"].problems == ()
    assert "no topic at the source matches no-such-*" in checks["nothing"].notes[0]
