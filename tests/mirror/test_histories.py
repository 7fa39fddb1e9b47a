"""Every kill, freeze and loss that can happen to a mirror of one partition, in random order, on a model of a broker."""

from __future__ import annotations

import os

import pytest
from tests.mirror.simulation import Process, World, play, source_log

from ottla.mirror.terms import OffsetMap

HISTORIES = int(os.environ.get("OTTLA_HISTORIES", "400"))


def test_every_history_ends_with_an_exact_copy_and_shows_nobody_a_repeat() -> None:
    takeovers = 0
    for seed in range(HISTORIES):
        world, values = play(seed)
        assert world.broker.values() == values, f"seed {seed}"
        takeovers += world.epoch
    assert takeovers > HISTORIES, "nothing was taken over"


def test_the_map_leads_from_every_source_offset_to_the_same_record_and_back() -> None:
    for seed in range(HISTORIES // 4):
        world, values = play(seed)
        offsets = OffsetMap(world.terms())
        places = {
            value: header.base_offset + number
            for header, written in world.broker.log
            for number, value in enumerate(written)
        }
        marked = offsets.target_end
        for value in values:
            if places[value] < marked:
                assert offsets.target_of(int(value)) == places[value], f"seed {seed}: {value!r}"
                assert offsets.source_of(places[value]) == int(value), f"seed {seed}: {value!r}"


@pytest.mark.parametrize("seed", range(5))
def test_without_the_order_of_journal_and_batch_a_history_goes_wrong(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test of the test: batches that do not wait for the journal are found out."""
    from ottla.mirror import lane

    def careless(self: lane.Lane, now: float) -> lane.Outbound | None:
        if self.phase is not lane.Phase.RUNNING or self.in_flight >= lane.MOST_IN_FLIGHT:
            return None
        return next((batch for batch in self.queue if not batch.in_flight and not batch.is_acknowledged), None)

    monkeypatch.setattr(lane.Lane, "sendable", careless)
    with pytest.raises((AssertionError, LookupError)):
        _play_all(range(seed * 1000, seed * 1000 + 100))


def test_a_history_without_trouble_needs_one_takeover() -> None:
    import random

    chance = random.Random(1)
    log, values = source_log(chance, 20)
    world = World(chance, log)
    process = Process(world)
    for _ in range(2000):
        process.step()
    assert world.broker.values() == values
    assert world.epoch == 0


def _play_all(seeds: range) -> None:
    for seed in seeds:
        play(seed)
