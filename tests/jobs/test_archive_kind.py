"""The archive job on a fleet: it travels without credentials, and values from a store are checked."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ottla import Producer
from ottla.config import Scram, Security
from ottla.engines.fleet import jobs
from ottla.engines.fleet.store import open_store
from ottla.errors import InputError, NotALake
from ottla.jobs.archive_kind import ArchiveKind
from ottla.jobs.archive_range import ArchiveRange, Brokers
from ottla.lake.lake import Lake
from ottla.lake.layout import LakeSettings
from ottla.lake.writer import FileOptions
from ottla.model import Isolation, OffsetRange
from ottla.testing.fake.kafka import FakeKafka

_PASSWORD = "a-password-of-kafka"


def job_for(path: Path, brokers: Brokers) -> ArchiveRange:
    lake = Lake.create(path, LakeSettings(partition_by=("topic",)))
    return ArchiveRange(brokers=brokers, path=str(lake.path), settings=lake.settings)


@pytest.fixture
def brokers(fake_kafka: FakeKafka) -> Brokers:
    fake_kafka.create_topic("clicks")
    with Producer(fake_kafka.bootstrap) as producer:
        producer.send_many("clicks", [b"one", b"two"])
    return Brokers(bootstrap=fake_kafka.bootstrap)


def test_a_node_makes_the_job_with_brokers_and_credentials_of_its_own(brokers: Brokers, tmp_path: Path) -> None:
    asked = replace(
        job_for(tmp_path / "lake", replace(brokers, isolation=Isolation.READ_UNCOMMITTED)),
        options=FileOptions(file_bytes=1 << 20, level=None),
    )
    row = json.loads(json.dumps(ArchiveKind(brokers).job_row(asked)))
    own = replace(brokers, client_id="node")
    made = ArchiveKind(own, folders=[tmp_path]).job(row)
    assert made == replace(asked, brokers=replace(asked.brokers, client_id="node"))


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"path": "/"}, NotALake, "no archive"),
        ({"path": "lake"}, InputError, "is not an absolute path"),
        ({"run": "../../x"}, InputError, "is not the id of a run"),
        ({"cluster": "another"}, InputError, "is about cluster another"),
        ({"options": {"file_bytes": -1}}, ValueError, "file_bytes"),
        ({"isolation": "some"}, ValueError, "isolation"),
    ],
)
def test_a_node_refuses_what_it_must_not_do(
    brokers: Brokers, tmp_path: Path, change: dict[str, Any], error: type[Exception], text: str
) -> None:
    kind = ArchiveKind(brokers)
    row = {**kind.job_row(job_for(tmp_path / "lake", brokers)), **change}
    with pytest.raises(error, match=text):
        kind.job(row)


def test_a_node_with_folders_works_nowhere_else(brokers: Brokers, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    row = ArchiveKind(brokers).job_row(job_for(tmp_path / "lake", brokers))
    (tmp_path / "mine" / "link").symlink_to(tmp_path / "lake")
    kind = ArchiveKind(brokers, folders=[tmp_path / "mine"])
    for path in (row["path"], f"{tmp_path}/mine/../lake", f"{tmp_path}/mine/link"):
        with pytest.raises(InputError, match="in none of the folders"):
            kind.job({**row, "path": path})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("staged", "_ottla/ledger/00000000000000000001.json"),
        ("staged", "/etc/passwd"),
        ("staged", f"_ottla/staging/{'0' * 32}-{'0' * 32}/../../../victim"),
        ("path", "../victim"),
        ("path", "/etc/passwd"),
    ],
)
def test_a_result_that_names_other_files_is_refused(brokers: Brokers, tmp_path: Path, field: str, value: str) -> None:
    result = job_for(tmp_path / "lake", brokers)(OffsetRange("clicks", 0, 0, 2))
    kind = ArchiveKind(brokers)
    row: dict[str, Any] = json.loads(json.dumps(kind.result_row(result)))
    assert kind.result(row) == result
    row["files"][0][field] = value
    with pytest.raises(InputError, match="names files that no job can have written"):
        kind.result(row)


def test_no_password_comes_into_the_store(brokers: Brokers, tmp_path: Path) -> None:
    """Not even into SQLite's write-ahead log: checks everything that is written while a job runs."""
    asked = job_for(tmp_path / "lake", brokers)
    secret = replace(brokers, security=Security(sasl=Scram("alice", _PASSWORD)))
    store = open_store(f"sqlite:///{tmp_path}/fleet.db", "jobs")
    with closing(store), closing(sqlite3.connect(tmp_path / "fleet.db")):
        # The driver works, too, without SASL, which the fake broker lacks. The job that goes into the store is one with
        # a password.
        kind = _Travelling(ArchiveKind(brokers), replace(asked, brokers=secret))
        results = list(jobs.run(asked, [OffsetRange("clicks", 0, 0, 2)], kind=kind, store=store))
        assert [result.receipt.count for result in results] == [2]
        written = b"".join(file.read_bytes() for file in tmp_path.glob("fleet.db*"))
    assert asked.run.encode() in written, "it is what the job was put into"
    assert _PASSWORD.encode() not in written


class _Travelling:
    """Puts another job into the store than the one that runs here."""

    name = "archive"

    def __init__(self, kind: ArchiveKind, job: ArchiveRange) -> None:
        self._kind, self._job = kind, job
        self.job, self.result, self.result_row = kind.job, kind.result, kind.result_row

    def job_row(self, job: ArchiveRange, /) -> Any:
        return self._kind.job_row(self._job)
