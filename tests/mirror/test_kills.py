"""Twenty faults while a mirror runs: the copy is exact, and no reader sees a record twice."""

from __future__ import annotations

import pytest
from tests.mirror.kills import FAULTS, Scene, faults

from ottla.cluster import LocalCluster

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_twenty_kills_lose_nothing_and_repeat_nothing(kafka: LocalCluster) -> None:
    scene = Scene(kafka, kafka, name="twenty-kills", seed=20)
    with scene.playing():
        scene.break_things(faults(20, scene.chance))
    assert scene.finish() > 1000
    assert scene.faults == FAULTS
