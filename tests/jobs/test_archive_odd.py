"""Records with something odd in them: archived, verified and replayed like all others."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from ottla.fetch.reader import Reader
from ottla.jobs import archive
from ottla.jobs.replay_source import Selection, open_source, records
from ottla.lake.contents import fingerprint
from ottla.lake.lake import Lake
from ottla.lake.layout import LakeSettings
from ottla.lake.verifying import Checked, verify_brokers, verify_files
from ottla.model import Fingerprint
from ottla.produce.producer import Producer
from ottla.testing import FakeKafka
from ottla.wire.decode import SCHEMA


def odd_headers(*names: bytes) -> pa.Array:
    """Return a column of headers with these names, which may be any bytes."""
    keys = pa.array(names, pa.binary()).view(pa.string())
    values = pa.array([b"1"] * len(names), pa.binary())
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(SCHEMA.field("headers").type.value_type))
    return pa.ListArray.from_arrays(pa.array(range(len(names) + 1), pa.int32()), pairs)


def test_names_of_headers_that_are_no_utf8_verify_and_replay(fake_kafka: FakeKafka, tmp_path: Path) -> None:
    fake_kafka.create_topic("odd")
    headers = odd_headers(b"\xff\xfe", b"good", b"\xc3", "\ufffd".encode())
    with Producer(fake_kafka.bootstrap) as producer:
        producer.send_table("odd", pa.table({"value": pa.array([b"x"] * 4, pa.binary()), "headers": headers}))
    settings = LakeSettings(partition_by=("topic", "date"), event_time="header:good")
    assert archive("odd", tmp_path / "lake", brokers=fake_kafka.bootstrap, layout=settings).records == 4
    lake = Lake.open(tmp_path / "lake")
    assert [str(finding) for finding in verify_files(lake, Checked(), deep=True)] == []
    with Reader(fake_kafka.bootstrap) as reader:
        assert list(verify_brokers(lake, reader, Checked())) == []
    source = open_source(str(lake.path))
    (partition,) = source.partitions
    fingerprints = [fingerprint(batch) for batch in records(partition, start=0, selection=Selection())]
    assert sum(fingerprints, Fingerprint()) == source.receipts[0].fingerprint, "what a replay compares at its end"
