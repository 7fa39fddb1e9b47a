"""What Kafka's own tools make of our batches, on the wire and on disk, and what we make of theirs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ottla.cluster import LocalCluster
from ottla.model import TopicPartition
from ottla.net.cluster import Cluster
from ottla.wire.batch import Batch, Codec
from ottla.wire.encode import NewBatch

from .clients import java, output
from .conftest import MakeTopic
from .ours import encoded, fetched, new_producer, read, stamped, write
from .samples import CODECS, TEXTS, Sent

pytestmark = pytest.mark.broker

NULL = "<null>"


def _line(record: Sent) -> str:
    """Format a record as the console producer reads it and the console consumer prints it."""
    headers = ",".join(f"{key}:{(value or b'').decode()}" for key, value in record.headers)
    texts = (NULL if part is None else part.decode() for part in (record.key, record.value))
    return "\t".join((headers, *texts))


@pytest.fixture(scope="module")
def batches() -> dict[str, list[NewBatch]]:
    """What we send with each codec, in several batches."""
    return {codec: encoded(TEXTS, codec, in_one_batch=40) for codec in CODECS}


@pytest.fixture(scope="module")
def written_by_us(cluster: Cluster, new_topic: MakeTopic, batches: dict[str, list[NewBatch]]) -> str:
    """A topic with a partition for each codec, written as by an idempotent producer."""
    topic = new_topic(partitions=len(CODECS))
    producer = new_producer(cluster)
    for partition, codec in enumerate(CODECS):
        tp = TopicPartition(topic, partition)
        own = [stamped(batch, producer, 40 * i) for i, batch in enumerate(batches[codec])]
        assert write(cluster, tp, own) == [0, 40, 80]
    return topic


def test_the_console_consumer_reads_every_codec_of_ours(kafka: LocalCluster, written_by_us: str) -> None:
    properties = {f"print.{what}": "true" for what in ("timestamp", "partition", "offset", "headers", "key")}
    properties["null.literal"] = NULL
    tool = java(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", kafka.bootstrap, "--topic", written_by_us, "--from-beginning"),
        *("--max-messages", str(len(TEXTS) * len(CODECS)), "--timeout-ms", "30000"),
        *(word for name, value in properties.items() for word in ("--formatter-property", f"{name}={value}")),
    )
    expected = {
        f"CreateTime:{record.time}\tPartition:{partition}\tOffset:{offset}\t{_line(record)}"
        for partition in range(len(CODECS))
        for offset, record in enumerate(TEXTS)
    }
    printed = output(tool).splitlines()
    assert len(printed) == len(expected)
    assert set(printed) == expected


@pytest.fixture(scope="module")
def dumped(kafka: LocalCluster, cluster: Cluster, written_by_us: str) -> dict[str, list[dict[str, Any]]]:
    """What the dump tool prints about each codec's log file: a dictionary per batch, with its records."""
    files = {}
    for partition, codec in enumerate(CODECS):
        leader = cluster.leader(written_by_us, partition).id
        folder = Path(kafka.status().directory) / f"broker-{leader}" / "data" / f"{written_by_us}-{partition}"
        files[codec] = str(folder / "00000000000000000000.log")
    options = ("--deep-iteration", "--print-data-log", "--files", ",".join(files.values()))
    text = output(java("org.apache.kafka.tools.DumpLogSegments", *options))
    parts = re.split(r"^Dumping (.*)$", text, flags=re.MULTILINE)
    by_file = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {codec: _parse(by_file[file]) for codec, file in files.items()}


def _parse(text: str) -> list[dict[str, Any]]:
    batches: list[dict[str, Any]] = []
    for line in text.splitlines():
        if line.startswith("baseOffset: "):
            batches.append({**_fields(line), "records": []})
        elif line.startswith("| offset: "):
            batches[-1]["records"].append(line)
    return batches


def _fields(line: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+): (\S+)", line))


@pytest.mark.parametrize("codec", CODECS)
def test_the_dump_tool_finds_our_batches_valid(
    dumped: dict[str, list[dict[str, Any]]], batches: dict[str, list[NewBatch]], codec: str
) -> None:
    seen = dumped[codec]
    assert [batch["isvalid"] for batch in seen] == ["true"] * 3
    assert [(batch["baseOffset"], batch["lastOffset"], batch["count"]) for batch in seen] == [
        ("0", "39", "40"),
        ("40", "79", "40"),
        ("80", str(len(TEXTS) - 1), str(len(TEXTS) - 80)),
    ]
    assert [batch["baseSequence"] for batch in seen] == ["0", "40", "80"]
    assert {(batch["isTransactional"], batch["isControl"], batch["magic"]) for batch in seen} == {
        ("false", "false", "2")
    }
    assert {batch["compresscodec"].lower() for batch in seen} == {codec}
    assert [batch["CreateTime"] for batch in seen] == [str(new.header.max_timestamp) for new in batches[codec]]
    assert [batch["size"] for batch in seen] == [str(new.header.size_bytes) for new in batches[codec]]


@pytest.mark.parametrize("codec", CODECS)
def test_the_dump_tool_reads_every_record_of_ours(dumped: dict[str, list[dict[str, Any]]], codec: str) -> None:
    lines = [line for batch in dumped[codec] for line in batch["records"]]
    assert len(lines) == len(TEXTS)
    for offset, (line, record) in enumerate(zip(lines, TEXTS, strict=True)):
        assert line.startswith(f"| offset: {offset} CreateTime: {record.time} ")
        assert f"keySize: {-1 if record.key is None else len(record.key)} " in line
        assert f"valueSize: {-1 if record.value is None else len(record.value)} " in line
        assert f"headerKeys: [{','.join(key for key, _ in record.headers)}]" in line
        assert record.value is None or f"payload: {record.value.decode()}" in line
        assert record.key is None or f" key: {record.key.decode()}" in line


@pytest.mark.parametrize("codec", CODECS)
def test_the_checksum_on_disk_is_the_one_we_sent(
    cluster: Cluster, dumped: dict[str, list[dict[str, Any]]], written_by_us: str, codec: str
) -> None:
    stored: list[Batch] = list(fetched(cluster, TopicPartition(written_by_us, CODECS.index(codec))))
    for batch in stored:
        batch.verify()
    assert [int(batch["crc"]) for batch in dumped[codec]] == [batch.header.crc for batch in stored]


@pytest.fixture(scope="module")
def written_by_java(kafka: LocalCluster, new_topic: MakeTopic) -> dict[str, str]:
    """A topic for each codec, written by the console producer; the five run in parallel."""
    properties = {"parse.key": "true", "parse.headers": "true", "null.marker": NULL}
    topics = {codec: new_topic() for codec in CODECS}
    tools = [
        java(
            "org.apache.kafka.tools.ConsoleProducer",
            *("--bootstrap-server", kafka.bootstrap, "--topic", topic, "--compression-codec", codec),
            *(word for name, value in properties.items() for word in ("--reader-property", f"{name}={value}")),
        )
        for codec, topic in topics.items()
    ]
    for tool in tools:
        output(tool, "".join(f"{_line(record)}\n" for record in TEXTS))
    return topics


@pytest.mark.parametrize("codec", CODECS)
def test_we_read_what_the_console_producer_wrote(cluster: Cluster, written_by_java: dict[str, str], codec: str) -> None:
    batches = list(fetched(cluster, TopicPartition(written_by_java[codec], 0)))
    assert {batch.header.codec for batch in batches} == {Codec[codec.upper()]}
    records = read(batches)
    assert [record._replace(time=0) for record in records] == [record._replace(time=0) for record in TEXTS]
    first, last = batches[0].header.base_timestamp, max(batch.header.max_timestamp for batch in batches)
    assert all(first <= record.time <= last for record in records)
