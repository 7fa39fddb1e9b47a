"""Archiving with one call, as programs do it."""

from __future__ import annotations

from pathlib import Path

import pyarrow.dataset as ds
import pytest

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.errors import BrokerError, ConfigError, InputError, LakeError
from ottla.fetch.reader import Reader
from ottla.jobs import archive
from ottla.lake.lake import Lake
from ottla.lake.layout import LakeSettings
from ottla.model import Fingerprint
from ottla.produce.producer import Producer

pytestmark = pytest.mark.broker
TOPIC = "jobs-archives"


@pytest.fixture(scope="module")
def filled(kafka: LocalCluster) -> str:
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic(TOPIC, partitions=2, replicas=1)
    _send(kafka.bootstrap, 3000)
    return kafka.bootstrap


def _send(bootstrap: str, count: int) -> None:
    with Producer(bootstrap) as producer:
        producer.send_many(TOPIC, [(b"%d" % number, b"value") for number in range(count)])


def _rows(folder: Path) -> int:
    return int(ds.dataset(folder, format="parquet", partitioning="hive").count_rows())


def test_a_second_call_goes_on_where_the_first_one_stopped(filled: str, tmp_path: Path) -> None:
    first = archive(TOPIC, tmp_path / "lake", brokers=filled, layout=LakeSettings(partition_by=("topic",)))
    assert first.records == _rows(tmp_path / "lake")
    _send(filled, 500)
    second = archive([TOPIC], tmp_path / "lake", brokers=filled, workers=1)
    assert second.records == 500
    assert archive(TOPIC, tmp_path / "lake", brokers=filled).records == 0
    assert _rows(tmp_path / "lake") == first.records + 500
    receipts = [receipt for entry in Lake.open(tmp_path / "lake").ledger.entries() for receipt in entry.receipts]
    with Reader(filled) as reader:
        assert sum((receipt.fingerprint for receipt in receipts), Fingerprint()) == reader.fingerprint(TOPIC)


def test_another_layout_than_the_archive_has_is_refused(filled: str, tmp_path: Path) -> None:
    archive(TOPIC, tmp_path / "lake", brokers=filled, layout=LakeSettings(partition_by=("topic",)))
    with pytest.raises(LakeError, match="partitioned by topic, not date"):
        archive(TOPIC, tmp_path / "lake", brokers=filled, layout=LakeSettings(partition_by=("date",)))


def test_plain_arguments_are_a_layout_and_an_existing_archive_keeps_what_is_left_out(
    filled: str, tmp_path: Path
) -> None:
    archive(TOPIC, tmp_path / "lake", brokers=filled, partition_by="topic,date", event_time="json:ts", engine="local")
    settings = Lake.open(tmp_path / "lake").settings
    assert settings == LakeSettings(partition_by=("topic", "date"), event_time="json:ts")
    assert archive(TOPIC, tmp_path / "lake", brokers=filled, partition_by=["topic", "date"]).records == 0
    with pytest.raises(LakeError, match="delta"):
        archive(TOPIC, tmp_path / "lake", brokers=filled, format="delta")
    with pytest.raises(ConfigError, match="mutually exclusive"):
        archive(TOPIC, tmp_path / "lake", brokers=filled, format="parquet", layout=settings)
    with pytest.raises(ConfigError, match="accepted are 'local', 'spark'"):
        archive(TOPIC, tmp_path / "lake", brokers=filled, engine="fleet")


def test_an_offset_that_a_shorter_partition_does_not_have_starts_there_at_its_end(
    kafka: LocalCluster, tmp_path: Path
) -> None:
    topic = "jobs-archives-short"
    with Admin(kafka.bootstrap) as admin, Producer(kafka.bootstrap) as producer:
        admin.create_topic(topic, partitions=2, replicas=1)
        for number in range(5):
            producer.send(topic, b"%d" % number, partition=0)
        producer.send(topic, b"only", partition=1)
        producer.flush()
        with pytest.raises(InputError, match="start is offset 6, which is beyond the end of every partition"):
            archive(topic, tmp_path / "lake", brokers=kafka.bootstrap, start=6)
        assert archive(topic, tmp_path / "lake", brokers=kafka.bootstrap, start=2).records == 3
        producer.send(topic, b"next", partition=1)
        producer.flush()
    assert archive(topic, tmp_path / "lake", brokers=kafka.bootstrap).records == 1


@pytest.mark.usefixtures("hasty_about_unknown_topics")
def test_an_unknown_topic_leaves_no_folder(filled: str, tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match="no-such-topic"):
        archive("no-such-topic", tmp_path / "lake", brokers=filled)
    assert not (tmp_path / "lake").exists()
