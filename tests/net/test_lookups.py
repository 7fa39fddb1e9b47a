"""Background metadata lookups: each has one result, and addresses that do not answer are reported as events."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from tests.waiting import eventually

from ottla.config import Retry, Timeouts
from ottla.errors import NoBrokerReachable
from ottla.events import ConnectionDown, Event, Events, TimeDown
from ottla.net import Cluster
from ottla.net.background import BackgroundTasks
from ottla.net.lookups import Lookups
from ottla.net.refresh import Lookup, LookupResult
from ottla.testing import FakeKafka

from .test_cluster import closed_port

QUICK = Retry(initial=0.005, maximum=0.05)
TIMES = Timeouts(connect=0.5, request=1.0, total=1.0)


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka(topics={"t": 2}) as fake:
        yield fake


class Stand:
    """Lookups without a loop: `result` does the work of the loop."""

    def __init__(self, cluster: Cluster) -> None:
        self.events: list[Event] = []
        self._background = BackgroundTasks(wake=lambda: None, name="lookups")
        self._lookups = Lookups(cluster, background=self._background, events=Events(self.events.append))

    def result(self, topic: str = "t", *, create: bool = False) -> LookupResult:
        self._lookups.run(Lookup(frozenset([topic]), create, 0.3, 0.0))
        results: list[LookupResult] = []

        def is_there() -> bool:
            self._background.collect()
            results.extend(self._lookups.done())
            return bool(results)

        eventually(is_there)
        (looked,) = results
        return looked


def test_a_lookup_brings_metadata_and_creates_only_what_it_may(kafka: FakeKafka) -> None:
    with Cluster(kafka.bootstrap, retry=QUICK, timeouts=TIMES, chance=random.Random(1)) as cluster:
        stand = Stand(cluster)
        known = stand.result()
        assert known.error is None
        assert known.metadata is not None
        assert len(known.metadata.topics["t"].partitions) == 2
        refused = stand.result("new")
        assert refused.metadata is None or not refused.metadata.topics["new"].partitions
        created = stand.result("new", create=True)
        assert created.error is not None or created.metadata is not None
        eventually(lambda: "new" in kafka._dispatcher.state.topics)


def test_an_address_that_does_not_answer_is_reported_once_and_how_long_it_was_away(kafka: FakeKafka) -> None:
    kafka.all_down()
    address, dead = kafka.addresses[1], closed_port()
    with Cluster(f"{address},{dead}", retry=QUICK, timeouts=TIMES, chance=random.Random(1)) as cluster:
        stand = Stand(cluster)
        for _ in range(2):
            looked = stand.result()
            assert isinstance(looked.error, NoBrokerReachable)
        down = [event for event in stand.events if isinstance(event, ConnectionDown)]
        assert {(event.broker_id, event.address) for event in down} == {(None, str(address)), (None, str(dead))}
        assert len(down) == 2
        kafka.all_up()
        eventually(lambda: stand.result().error is None)
        back = [event for event in stand.events if isinstance(event, TimeDown)]
        assert {event.address for event in back} == {str(address), str(dead)}
        assert all(event.seconds > 0 for event in back)


def test_brokers_that_are_known_are_left_to_their_links(kafka: FakeKafka) -> None:
    with Cluster(kafka.bootstrap, retry=QUICK, timeouts=TIMES, chance=random.Random(1)) as cluster:
        stand = Stand(cluster)
        assert stand.result().error is None
        kafka.all_down()
        assert isinstance(stand.result().error, NoBrokerReachable)
        assert stand.events == []
