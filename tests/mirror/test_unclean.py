"""An unclean leader election at the source, on real brokers: the mirror notices it, and goes on only if it may."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.mirror.copies import link_of
from tests.mirror.copies import seen as seen_by_confluent
from tests.waiting import eventually

from ottla import Producer
from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.errors import OffsetsLost, OttlaError
from ottla.events import Event, RangeLost
from ottla.jobs.mirrors import mirror
from ottla.mirror.rules import Action, Policy

pytestmark = [pytest.mark.broker, pytest.mark.slow]
_TOPIC = "mirror-unclean"


def test_an_unclean_election_at_the_source_stops_the_mirror_or_is_reported(kafka: LocalCluster) -> None:
    with Admin(kafka.bootstrap) as admin:
        settings = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
        admin.create_topic(_TOPIC, assignments=[[2, 3]], settings=settings)
        link = replace(link_of(kafka.bootstrap, _TOPIC), replicas=3)
        _write(kafka, "both", 10)
        assert mirror(link).records == 10
        kafka.kill(3)
        _write(kafka, "only 2 has it", 10)
        assert mirror(link).records == 10
        kafka.kill(2)
        kafka.restart(3)
        eventually(lambda: _leader(admin) == 3, "an unclean election", seconds=60)
        _write(kafka, "after the election", 25)
        for _ in range(2):  # offsets 10 to 20 are other records now: a restart does not forget it
            with pytest.raises(OffsetsLost, match=r"truncated to offset 10 .* unclean leader election"):
                mirror(link)
        seen: list[Event] = []
        report = mirror(replace(link, rules=Policy(on_lost=Action.CONTINUE, patience=20.0)), events=[seen.append])
        assert report.records == 25
        assert [(event.start, event.stop, event.resume) for event in seen if isinstance(event, RangeLost)] == [
            (10, 20, 10)
        ]
        kafka.restart(2)
        values = _values(kafka)
        # All that a reader of the source ever saw, once, in its order; what was replaced meanwhile was reported.
        assert values[:20] == [f"both {n}" for n in range(10)] + [f"only 2 has it {n}" for n in range(10)]
        assert values[20:] == [f"after the election {n}" for n in range(25)]


def _write(kafka: LocalCluster, text: str, count: int) -> None:
    with Producer(kafka.bootstrap) as producer:
        producer.send_many(_TOPIC, [f"{text} {number}".encode() for number in range(count)])


def _leader(admin: Admin) -> int:
    try:
        (topic,) = admin.describe_topics(_TOPIC, timeout=5)
    except OttlaError:
        return -1
    return topic.partitions[0].leader


def _values(kafka: LocalCluster) -> list[str]:
    return [
        value.decode() for _, value, _, _ in seen_by_confluent(kafka.bootstrap, f"copy.{_TOPIC}") if value is not None
    ]
