"""A thousand planted faults in a pipeline of four tiers: all of them are named, and clean data raises none."""

from __future__ import annotations

import random

import pytest
from tests.audit import pipeline
from tests.audit.pipeline import Log, Planted

from ottla.audit.compare import Verdict
from ottla.audit.differences import Found, Leftover, leftover
from ottla.cluster import LocalCluster
from ottla.jobs import compare, find_differences, finding, tally

pytestmark = pytest.mark.broker
TIERS = ("made", "edge", "aggregate", "archive")
AUDIT = "audit-planted"
TOPIC = "clicks"
PER_KIND = 56
"""Six kinds of faults on three ways: 1,008 faults."""


@pytest.fixture(scope="module")
def planted(kafka: LocalCluster) -> list[Planted]:
    """Four tiers with faults between them; all of them are counted."""
    chance = random.Random(20)
    logs = pipeline.clean(24_000, chance=chance)
    _write(kafka, TIERS[0], logs)
    done = []
    for tier in TIERS[1:]:
        logs, faults = pipeline.passed_on(logs, PER_KIND, chance)
        _write(kafka, tier, logs)
        done.append(faults)
    return done


def _write(kafka: LocalCluster, tier: str, logs: dict[int, Log]) -> None:
    pipeline.write(kafka.bootstrap, f"planted-{tier}", logs.values())
    tally(f"planted-{tier}", brokers=kafka.bootstrap, tier=tier, audit_topic=AUDIT, names={f"planted-{tier}": TOPIC})


def test_each_fault_is_named_by_partition_and_offset(kafka: LocalCluster, planted: list[Planted]) -> None:
    assert sum(faults.faults for faults in planted) >= 1000
    for left, right, faults in zip(TIERS, TIERS[1:], planted, strict=False):
        differences = list(
            find_differences(
                f"planted-{left}", left=kafka.bootstrap, right=kafka.bootstrap, right_topic=f"planted-{right}"
            )
        )
        named = {(str(found.verdict), found.side, found.partition, found.offset) for found in differences}
        assert len(named) == len(differences)
        assert named == faults.expected
        moved = {
            (found.partition, found.offset): found.other_partition
            for found in differences
            if "another partition" in found.detail
        }
        assert moved == faults.moved


def test_large_buckets_are_narrowed_until_what_differs_fits_into_memory(
    kafka: LocalCluster, planted: list[Planted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "_AT_ONCE", 30)
    monkeypatch.setattr(finding, "MOST_CELLS", 40)
    most = 0

    def counted(left: Found, right: Found) -> Leftover:
        nonlocal most
        most = max(most, len(left.offsets), len(right.offsets))
        return leftover(left, right)

    monkeypatch.setattr(finding, "leftover", counted)
    differences = find_differences(
        "planted-made", left=kafka.bootstrap, right=kafka.bootstrap, right_topic="planted-edge"
    )
    named = {(str(found.verdict), found.side, found.partition, found.offset) for found in differences}
    assert named == planted[0].expected
    assert 0 < most <= 60


def test_only_what_differs_is_kept_though_every_bucket_has_faults(
    kafka: LocalCluster, planted: list[Planted], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(planted[0].buckets) >= 12
    compared = kept = 0

    def counted(left: Found, right: Found) -> Leftover:
        nonlocal compared, kept
        rest = leftover(left, right)
        compared += len(left.offsets) + len(right.offsets)
        kept += sum(column.nbytes for side in (rest.left, rest.right) for column in side)
        assert all(column.base is None for side in (rest.left, rest.right) for column in side), "no view of more"
        return rest

    monkeypatch.setattr(finding, "leftover", counted)
    named = list(
        find_differences("planted-made", left=kafka.bootstrap, right=kafka.bootstrap, right_topic="planted-edge")
    )
    assert compared > 40_000, "all buckets were compared"
    assert kept <= 2 * 48 * len(named)


def test_each_bucket_with_a_fault_has_a_verdict_and_no_other_has(kafka: LocalCluster, planted: list[Planted]) -> None:
    comparison = compare(audit=kafka.bootstrap, audit_topic=AUDIT, tiers=TIERS)
    assert {row.start for row in comparison.rows} == {
        pipeline.BEGIN + number * pipeline.BUCKET for number in range(13) if number < 12 or _has(comparison, number)
    }
    for number, faults in enumerate(planted):
        wrong = {row.start for row in comparison.rows if row.tiers[number + 1].verdict is not Verdict.COMPLETE}
        assert wrong == faults.buckets
    assert comparison.has_faults


def _has(comparison: object, number: int) -> bool:
    return any(row.start == pipeline.BEGIN + number * pipeline.BUCKET for row in comparison.rows)  # type: ignore[attr-defined]


def test_what_was_late_is_missing_until_it_arrives(kafka: LocalCluster, planted: list[Planted]) -> None:
    pipeline.write(kafka.bootstrap, "planted-edge", [planted[0].late], create=False)
    named = {
        (found.partition, found.offset)
        for found in find_differences(
            "planted-made", left=kafka.bootstrap, right=kafka.bootstrap, right_topic="planted-edge"
        )
    }
    late = {(record.partition, record.time) for record in planted[0].late}
    assert len(late) == PER_KIND
    assert len(named) == len(planted[0].expected) - PER_KIND


def test_a_copy_without_faults_raises_none(kafka: LocalCluster, planted: list[Planted]) -> None:
    logs = pipeline.clean(24_000, chance=random.Random(20))
    for name in ("left", "right"):
        pipeline.write(kafka.bootstrap, f"clean-{name}", logs.values())
        tally(
            f"clean-{name}",
            brokers=kafka.bootstrap,
            tier=name,
            audit_topic="audit-clean",
            names={f"clean-{name}": TOPIC},
        )
    differences = find_differences("clean-left", left=kafka.bootstrap, right=kafka.bootstrap, right_topic="clean-right")
    assert list(differences) == []
    comparison = compare(audit=kafka.bootstrap, audit_topic="audit-clean", tiers=("left", "right"))
    assert {row.verdict for row in comparison.rows} == {Verdict.COMPLETE}
    assert sum(row.tiers[1].records or 0 for row in comparison.rows) == 24_000
