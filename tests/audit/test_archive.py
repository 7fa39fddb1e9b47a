"""An archive is a tier: its receipts are tallies, and its files are read where a receipt has several buckets."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.audit import pipeline
from tests.audit.pipeline import BEGIN, Item
from tests.cli.commands import run

from ottla.cluster import LocalCluster
from ottla.errors import ConfigError, InputError, LakeError
from ottla.jobs import archive, compare, tally, tally_archive
from ottla.lake.writer import FileOptions

pytestmark = pytest.mark.broker


def _items(count: int, *, first: int = 0, spread: int = 3000) -> list[Item]:
    return [
        Item(n % 4, b"k%d" % n, None if n % 50 == 7 else b"v%d" % n, (BEGIN + n * spread // 4000) * 1000)
        for n in range(first, first + count)
    ]


def test_an_archive_has_the_records_of_its_topic(kafka: LocalCluster, tmp_path: Path) -> None:
    topic, lake = "archived-tier", tmp_path / "lake"
    pipeline.write(kafka.bootstrap, topic, [_items(4000)])
    archive(topic, lake, brokers=kafka.bootstrap, files=FileOptions())
    first = tally_archive(lake, tier="archive", audit=kafka.bootstrap, audit_topic="audit-archived")
    assert first.records == 4000
    pipeline.write(kafka.bootstrap, topic, [_items(40, first=4000, spread=40)], create=False)
    archive(topic, lake, brokers=kafka.bootstrap)
    again = tally_archive(lake, tier="archive", audit=kafka.bootstrap, audit_topic="audit-archived")
    assert again.records == 40
    assert tally_archive(lake, tier="archive", audit=kafka.bootstrap, audit_topic="audit-archived").records == 0
    with pytest.raises(ConfigError, match="in buckets of 600 s, and 60 s were asked for"):
        tally_archive(lake, tier="archive", audit=kafka.bootstrap, audit_topic="audit-archived", bucket_seconds=60)
    tally(topic, brokers=kafka.bootstrap, tier="log", audit_topic="audit-archived")
    comparison = compare(audit=kafka.bootstrap, audit_topic="audit-archived", tiers=["log", "archive"])
    assert {str(row.verdict) for row in comparison.rows} == {"complete"}
    assert sum(row.tiers[1].records or 0 for row in comparison.rows) == 4040
    for row in comparison.rows:
        assert row.tiers[0].bytes == row.tiers[1].bytes


def test_an_archive_with_nothing_new_says_that_it_is_still_counted(
    kafka: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, lake = "archived-idle", tmp_path / "lake"
    pipeline.write(kafka.bootstrap, topic, [_items(40)])
    archive(topic, lake, brokers=kafka.bootstrap)
    refreshed = []
    for seconds in (60.0, 60.0, 0.0):
        monkeypatch.setattr("ottla.jobs.archive_tallies._SIGN_SECONDS", seconds)
        report = tally_archive(lake, tier="archive", audit=kafka.bootstrap, audit_topic="audit-archived-idle")
        refreshed.append(report.refreshed)
    assert refreshed == [0, 0, 4]


def test_files_that_do_not_have_what_the_receipt_says_are_not_counted(kafka: LocalCluster, tmp_path: Path) -> None:
    topic, lake = "archived-damaged", tmp_path / "lake"
    pipeline.write(kafka.bootstrap, topic, [_items(4000)])
    archive(topic, lake, brokers=kafka.bootstrap)
    next(lake.rglob("*.parquet")).unlink()
    with pytest.raises(LakeError, match=r"archived-damaged-\d.* cannot be read"):
        tally_archive(lake, tier="archive", audit=kafka.bootstrap, audit_topic="audit-archived-damaged")
    with pytest.raises(InputError, match="has no topic other"):
        tally_archive(lake, tier="archive", audit=kafka.bootstrap, topics=["other"])


def test_the_command_counts_an_archive(kafka: LocalCluster, tmp_path: Path) -> None:
    topic, lake = "archived-command", tmp_path / "lake"
    pipeline.write(kafka.bootstrap, topic, [_items(100, spread=10)])
    archive(topic, lake, brokers=kafka.bootstrap)
    arguments = ("audit", "archive", str(lake), "--tier", "archive", "--audit-topic", "audit-archived-command")
    result = run(*arguments, "--bootstrap", kafka.bootstrap)
    assert result.exit_code == 0, result.output
    assert "100 records" in result.output
    assert "in 1 bucket for tier archive" in result.output
