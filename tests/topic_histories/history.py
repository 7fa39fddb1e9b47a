"""A random history: changes of the world, and steps of its follower in between, until all is said and judged."""

from __future__ import annotations

import random
import time

from .following import Follower
from .judging import complaints, missing
from .world import World

_ALL = -1
"""So many steps as it takes to have everything."""
PATIENCE = 60.0
"""Seconds in which a follower must have everything, once nothing changes any more."""


def live(world: World, follower: Follower, *, seed: int, changes: int) -> None:
    """Lives through it, and fails with the diary if something is wrong. The follower is closed then."""
    chance = random.Random(seed)
    try:
        for _ in range(changes):
            if chance.random() < 0.08:
                follower.restart(None if chance.random() < 0.5 else lambda: _recreate(world, chance))
            else:
                change(world, chance)
            steps = chance.choice((0, 0, 1, 5, _ALL, _ALL))
            if steps == _ALL:
                _catch_up(world, follower, seed)
            for _ in range(steps):
                follower.step()
        for partition in range(len(world.logs)):
            world.write(partition, 3)
        _catch_up(world, follower, seed)
    finally:
        follower.close()
    _check(world, follower, seed)
    committed = follower.committed
    if committed is not None:
        assert committed == world.ends, _told(world, follower, seed, [f"committed is {committed}, not {world.ends}"])


def change(world: World, chance: random.Random) -> None:
    """Something happens to the topic."""
    partition = chance.randrange(len(world.logs))
    log = world.logs[partition]
    kinds = ["write"] * 6 + ["expire", "expire", "grow", "recreate", "recreate"]
    kinds += ["cut", "cut"] * world.can_cut + ["compact"] * world.can_compact
    match chance.choice(kinds):
        case "write":
            world.write(partition, chance.randrange(1, 30))
        case "expire" if log.end > log.start:
            world.expire(partition, chance.randint(log.start + 1, log.end))
        case "grow" if len(world.logs) < 4:
            world.grow()
        case "cut" if log.end > log.start:
            world.cut(partition, chance.randint(log.start, log.end - 1))
            if chance.random() < 0.5:
                world.write(partition, chance.randrange(1, 30))
        case "compact":
            world.compact(partition)
        case "recreate":
            _recreate(world, chance)


def _recreate(world: World, chance: random.Random) -> None:
    # As many records as before, now and then: nothing about the offsets tells the topics apart.
    ends = list(world.ends.values())
    counts = ends if chance.random() < 0.4 else [chance.randrange(30) for _ in range(3)]
    world.recreate(len(world.logs) if counts is ends else chance.randint(1, 3), counts)


def _catch_up(world: World, follower: Follower, seed: int) -> None:
    until = time.monotonic() + PATIENCE
    while missing(world, follower) or not all(_is_there(world, follower, partition) for partition in world.ends):
        follower.step()
        if time.monotonic() > until:
            where = {partition: follower.position(partition) for partition in world.ends}
            wrong = [f"it is at {where}, and not at {world.ends}", *missing(world, follower)]
            raise AssertionError(_told(world, follower, seed, wrong))
    for _ in range(3):
        follower.step()


def _is_there(world: World, follower: Follower, partition: int) -> bool:
    log, position = world.logs[partition], follower.position(partition)
    return position is None or position == log.end


def _check(world: World, follower: Follower, seed: int) -> None:
    wrong = complaints(world, follower)
    assert not wrong, _told(world, follower, seed, wrong)


def _told(world: World, follower: Follower, seed: int, wrong: list[str]) -> str:
    said = [str(entry) for entry in follower.story if type(entry).__name__ != "Handed"]
    return "\n".join([f"seed {seed}", *wrong[:10], "-- it said", *said, "-- what happened", *world.diary])
