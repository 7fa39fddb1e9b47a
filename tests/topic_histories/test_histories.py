"""Topics that change in every way they can, under readers and consumers: nothing invented, nothing passed over."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.consume.ways import COOPERATIVE, EAGER, MODERN

from ottla.cluster import LocalCluster
from ottla.consume.options import GroupOptions
from ottla.engines.fleet import steward
from ottla.fetch.options import OnLost
from ottla.fetch.reader import Reader
from ottla.testing import FakeKafka

from .following import Follower, FollowsByReader, FollowsInGroup
from .following_archive import FollowsByArchive
from .following_fleet import FollowsInFleet
from .history import change, live
from .worlds import FakeWorld, RealWorld

HISTORIES = int(os.environ.get("OTTLA_TOPIC_HISTORIES", "0"))
"""How many of each kind; none: a few."""
_CLASSIC = GroupOptions(**EAGER | {"heartbeat_interval": 0.05})


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka(auto_create=None) as kafka:
        yield kafka


@pytest.fixture
def quick_steward(monkeypatch: pytest.MonkeyPatch) -> None:
    """It plans often."""
    monkeypatch.setattr(steward, "_MOST_TICK", 0.02)
    monkeypatch.setattr(steward, "_PLAN_SECONDS", 0.05)
    monkeypatch.setattr(steward, "_IDLE_PLAN_SECONDS", 0.05)


@pytest.fixture(scope="module")
def broker(hasty: LocalCluster) -> LocalCluster:
    return hasty


# On fake brokers, which can cut and compact their logs at once


@pytest.mark.parametrize("seed", range(HISTORIES or 4))
def test_a_reader_follows_through_everything(fake: FakeKafka, seed: int) -> None:
    world = FakeWorld(fake)
    world.create(2)
    live(world, FollowsByReader(world), seed=seed, changes=20)


@pytest.mark.parametrize("seed", range(HISTORIES or 4))
@pytest.mark.parametrize("on_lost", ["earliest", "error"])
def test_a_consumer_follows_through_everything(fake: FakeKafka, seed: int, on_lost: str) -> None:
    world = FakeWorld(fake)
    world.create(2)
    live(world, FollowsInGroup(world, "g", _CLASSIC, on_lost=on_lost), seed=seed, changes=20)


@pytest.mark.parametrize("seed", range(HISTORIES or 3))
def test_what_is_sold_as_proof_is_exact_after_every_change(fake: FakeKafka, seed: int) -> None:
    """One reader for a whole life; while nothing changes, what it says is what is there."""
    world, chance = FakeWorld(fake), random.Random(seed)
    world.create(2)
    with Reader(world.bootstrap) as reader:
        for _ in range(25):
            change(world, chance)
            there = {one.value for one in world.present}
            assert reader.count(world.topic) == len(there), world.diary
            assert reader.fingerprint(world.topic).count == len(there), world.diary
            values = [value for batch in reader.read(world.topic) for value in batch.column("value").to_pylist()]
            assert sorted(values) == sorted(there), world.diary
            assert {one.partition: one.stop for one in reader.ranges(world.topic)} == world.ends


@pytest.mark.parametrize("seed", range(HISTORIES or 2))
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_fleet_follows_through_everything(
    fake: FakeKafka, tmp_path: Path, store: str, seed: int, quick_steward: None
) -> None:
    world = FakeWorld(fake)
    world.create(2)
    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path}/fleet.db"
    live(world, FollowsInFleet(world, f"fleet-{store}-{seed}", url), seed=seed, changes=20)


@pytest.mark.parametrize("seed", range(HISTORIES or 2))
@pytest.mark.parametrize("on_lost", [OnLost.EARLIEST, OnLost.ERROR])
def test_an_archive_follows_through_everything(fake: FakeKafka, tmp_path: Path, on_lost: OnLost, seed: int) -> None:
    world = FakeWorld(fake)
    world.create(2)
    live(world, FollowsByArchive(world, tmp_path, on_lost=on_lost), seed=seed, changes=20)


# On real brokers


@pytest.mark.broker
@pytest.mark.parametrize("seed", range(HISTORIES or 1))
def test_a_reader_follows_a_real_topic(broker: LocalCluster, seed: int) -> None:
    with closing(RealWorld(broker.bootstrap)) as world:
        world.create(2)
        live(world, FollowsByReader(world), seed=seed, changes=12)


@pytest.mark.broker
@pytest.mark.parametrize("seed", range(HISTORIES or 2))
@pytest.mark.parametrize("way", ["eager", "modern"])
def test_a_consumer_follows_a_real_topic(broker: LocalCluster, way: str, seed: int) -> None:
    _follow_in_group(broker, way, seed, "earliest")


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.parametrize("seed", range(100, 100 + (HISTORIES or 10)))
@pytest.mark.parametrize("on_lost", ["earliest", "error"])
@pytest.mark.parametrize("way", ["eager", "cooperative", "modern"])
def test_consumers_follow_real_topics_for_long(broker: LocalCluster, way: str, on_lost: str, seed: int) -> None:
    _follow_in_group(broker, way, seed, on_lost)


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.parametrize("seed", range(100, 100 + (HISTORIES or 5)))
@pytest.mark.parametrize("who", ["fleet", "archive"])
def test_fleets_and_archives_follow_real_topics_for_long(
    broker: LocalCluster, tmp_path: Path, who: str, seed: int
) -> None:
    with closing(RealWorld(broker.bootstrap)) as world:
        world.create(2)
        follower: Follower = (
            FollowsInFleet(world, f"fleet-{world.topic}", f"sqlite:///{tmp_path}/fleet.db")
            if who == "fleet"
            else FollowsByArchive(world, tmp_path)
        )
        live(world, follower, seed=seed, changes=12)


def _follow_in_group(broker: LocalCluster, way: str, seed: int, on_lost: str) -> None:
    options = {"eager": EAGER, "cooperative": COOPERATIVE, "modern": MODERN}[way]
    with closing(RealWorld(broker.bootstrap)) as world:
        world.create(2)
        follower = FollowsInGroup(world, f"g-{world.topic}", GroupOptions(**options), on_lost=on_lost)
        live(world, follower, seed=seed, changes=12)
