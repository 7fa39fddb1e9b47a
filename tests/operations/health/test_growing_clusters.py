"""The probe while a broker joins: brokers of its own, because other tests expect three."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.waiting import eventually

from ottla.cluster import LocalCluster
from ottla.net import Cluster
from ottla.operations.health import Prober, State, judge, look, prober


@pytest.mark.broker
def test_a_broker_that_joins_is_probed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prober, "_STEWARD_SECONDS", 0.3)
    with (
        LocalCluster("growing", brokers=1, dir=tmp_path, heap_bytes=256 << 20) as kafka,
        Cluster(kafka.bootstrap) as cluster,
        Prober(cluster, every=0.5) as probing,
    ):
        eventually(lambda: [each.broker for each in probing.reports() if each.received] == [1])
        added = kafka.add()
        eventually(lambda: [each.broker for each in probing.reports() if each.received] == [1, added])
        assert [each.partition for each in probing.reports()] == [0, 1]
        seen = look(cluster)
        verdict, _ = judge(seen)
        assert verdict.state is State.HEALTHY, verdict
        assert seen.quorum is not None
        assert [each.id for each in seen.quorum.observers] == [added]
        assert [each.lost + each.duplicates for each in probing.reports()] == [0, 0]
