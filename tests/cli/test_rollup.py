"""`ottla rollup`: what it refuses before Spark is started, and one run as a program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.commands import read_back, run, run_program
from tests.transactions.reading import Log

from ottla.admin import Admin
from ottla.cli.rollup import kafka_options
from ottla.cluster import LocalCluster
from ottla.config import Plain, Scram, Security, Tls
from ottla.produce.producer import Producer
from ottla.spark.options import cluster_access

BROKERS = ("--bootstrap", "127.0.0.1:1")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--to", "out"), "missing option '--window'"),
        (("--window", "1m"), "missing option '--to'"),
        (("--window", "soon", "--to", "out"), "--window: 'soon' is not a duration"),
        (("--window", "1m", "--by", "user", "--to", "out"), "--by: 'user' is not a field of a record"),
        (("--window", "1m", "--sum", "json:", "--to", "out"), "--sum: 'json:' is not a field of a record"),
        (("--window", "1m", "--event-time", "now", "--to", "out"), "--event-time: 'now' is not a field of a record"),
        (("--window", "1m", "--to", "a b"), "--to: 'a b' is not a topic name"),
        (("--window", "1m", "--to", "out"), "--checkpoint PATH is required for results to a topic"),
        (("--window", "1m", "--to", "/out", "--mode", "update"), "--mode update needs a topic"),
        (("--window", "1m", "--to", "/out", "--follow", "--until", "latest"), "mutually exclusive"),
        (("--window", "1m", "--by", "json:a", "--by", "json:a", "--to", "/out"), "would have a twice"),
    ],
)
def test_wrong_use_is_reported_before_anything_starts(arguments: tuple[str, ...], told: str) -> None:
    ended = run("rollup", "clicks", *arguments, *BROKERS)
    assert ended.exit_code == 2
    assert told in ended.output


def test_security_reaches_the_data_source() -> None:
    """Options that the command makes are read back by the source as what they were made of."""
    for security in (
        Security(),
        Security(sasl=Plain("me", 'a "b" \\c')),
        Security(tls=Tls(ca_file="/etc/ca.pem"), sasl=Scram("me", "secret", "SCRAM-SHA-256")),
    ):
        found = cluster_access(kafka_options("localhost:9092", security)).resolved_security()
        assert (found.protocol, found.sasl) == (security.protocol, security.sasl)
        assert (found.tls is None) == (security.tls is None)
        if found.tls is not None:
            assert str(found.tls.ca_file) == "/etc/ca.pem"


@pytest.mark.broker
def test_a_topic_that_does_not_exist_is_reported_before_spark_is_started(kafka: LocalCluster, tmp_path: Path) -> None:
    ended = run("rollup", "nowhere", "--window", "1m", "--to", str(tmp_path / "x"), "--bootstrap", kafka.bootstrap)
    assert ended.exit_code == 1
    assert "nowhere" in ended.output
    assert not (tmp_path / "x").exists()


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.long
def test_a_run_tells_what_was_read_made_and_not_to_be_read(kafka: LocalCluster, tmp_path: Path) -> None:
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic("cli-rollup", partitions=1)
        admin.create_topic("cli-rollup-out", partitions=1)
    values = [json.dumps({"ts": 1767225600 + second, "user": "u", "n": second}).encode() for second in range(200)]
    with Producer(kafka.bootstrap) as producer:
        producer.send_many("cli-rollup", [*values, b"nothing"])
    ended = run_program(
        *("rollup", "cli-rollup", "--window", "1m", "--by", "json:user", "--count", "--sum", "json:n"),
        *("--event-time", "json:ts", "--watermark", "1s", "--to", "cli-rollup-out", "--tasks", "1"),
        *(
            "--checkpoint",
            str(tmp_path / "checkpoint"),
            "--master",
            "local[1]",
            "--bootstrap",
            kafka.bootstrap,
            "--json",
        ),
    )
    assert ended.returncode == 0, ended.stderr.decode()
    told = json.loads(ended.stdout)
    assert (told["records"], told["unreadable"], told["results"]) == (201, 1, 3)
    with Log(kafka.bootstrap) as log:
        rows = [json.loads(value) for value in log.committed("cli-rollup-out")]
    assert [(row["count"], row["sum_n"]) for row in rows] == [(60, 1770.0), (60, 5370.0), (60, 8970.0)]
    assert {one.key() for one in read_back(kafka.bootstrap, "cli-rollup-out", 3)} == {b"u"}
