"""`ottla perf` on real brokers, with few records: figures, peers, pages, Ctrl-C, and topics left as they were."""

from __future__ import annotations

import json
import signal
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from tests.cli.commands import SECONDS, program, run
from tests.waiting import eventually

from ottla import Producer
from ottla.admin import Admin
from ottla.cli.output.plots import Axis, Bar, Curve, bar_plot, line_plot, ticks
from ottla.cli.perf.java import consumed, produced
from ottla.cluster import LocalCluster
from ottla.errors import LocalClusterError
from ottla.operations.perf.workload import Workload

_FEW = ("--warmup", "0", "--replicas", "1")


def _perf(kafka: LocalCluster, kind: str, topic: str, *options: str) -> Result:
    sides = ("--from", kafka.bootstrap) if kind == "mirror" else ("--bootstrap", kafka.bootstrap)
    return run("perf", kind, topic, *sides, *options)


def _topics(kafka: LocalCluster) -> list[str]:
    with Admin(kafka.bootstrap) as admin:
        return admin.topic_names()


def _report(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.broker
@pytest.mark.parametrize(("api", "acks"), [("send", "0"), ("send_many", "all"), ("send_table", "1")])
def test_producing_is_measured_and_the_topic_removed(kafka: LocalCluster, api: str, acks: str, tmp_path: Path) -> None:
    topic = f"perf-produce-{api}"
    options = ("--records", "3000", "--size", "200B", "--partitions", "3", "--threads", "2", "--api", api, "--json")
    result = _perf(kafka, "produce", topic, *options, "--codec", "lz4", "--acks", acks, *_FEW)
    report = _report(result)
    assert f"created {topic} for this test: removed at its end" in result.stderr
    assert topic not in _topics(kafka)
    (ours,) = report["runs"]
    assert (ours["client"], ours["records"], ours["bytes"], ours["failed"]) == ("ottla", 3000, 600_000, 0)
    assert ours["records_per_second"] == pytest.approx(3000 / ours["seconds"], rel=1e-3)
    assert ours["cpu_microseconds_per_record"] > 0
    latency = ours["latency_seconds"]
    assert 0 < latency["min"] <= latency["p50"] <= latency["p99"] <= latency["max"] < SECONDS
    assert sum(second["records"] for second in ours["series"]) == 3000
    assert report["settings"]["partitions"] == 3
    assert {"processor", "cores"} <= report["machine"].keys()
    assert {"python", "ottla"} <= report["versions"].keys()
    file = tmp_path / "produce.json"
    file.write_text(result.stdout)
    plan = _report(run("capacity", "--messages", "1M/s", "--size", "200B", "--rates", str(file), "--json"))
    cost = plan["clients"]["producer_cores"]["inputs"]["producer_cost"]
    assert cost["value"] == pytest.approx(ours["cpu_microseconds_per_record"] * 1e-6, rel=1e-3)
    assert cost["assumed"] is False


@pytest.mark.broker
def test_a_rate_is_kept_and_latency_counts_from_when_a_record_was_due(kafka: LocalCluster) -> None:
    options = ("--records", "300", "--rate", "300/s", "--json", *_FEW)
    (ours,) = _report(_perf(kafka, "produce", "perf-rate", *options))["runs"]
    assert ours["records"] == 300
    # The last record is due 299 intervals after the first one.
    assert ours["seconds"] >= 299 / 300


@pytest.mark.broker
def test_an_existing_topic_is_written_to_only_if_told(kafka: LocalCluster) -> None:
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic("perf-existing", replicas=1)
        for kind in ("produce", "latency"):
            refused = _perf(kafka, kind, "perf-existing", "--records", "5")
            assert refused.exit_code == 2
            assert "topic perf-existing exists: pass --existing" in refused.stderr
        assert sum(map(len, admin.log_ranges("perf-existing").values())) == 0
        told = _perf(kafka, "produce", "perf-existing", "--records", "5", "--existing", *_FEW)
        assert told.exit_code == 0, told.output
        assert sum(map(len, admin.log_ranges("perf-existing").values())) == 5
        admin.delete_topics("perf-existing")


@pytest.mark.broker
def test_a_record_that_is_refused_ends_the_test_with_its_reason(kafka: LocalCluster) -> None:
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic("perf-small", replicas=1, settings={"max.message.bytes": "500"})
        options = ("--existing", "--size", "2kB", "--records", "10", *_FEW)
        refused = _perf(kafka, "produce", "perf-small", *options)
        assert refused.exit_code == 1
        assert "perf-small" in refused.stderr
        assert refused.stdout == ""
        admin.delete_topics("perf-small")
    nowhere = run("perf", "produce", "perf-nowhere", "--bootstrap", "127.0.0.1:9", "--timeout", "2s")
    assert nowhere.exit_code == 1
    assert "127.0.0.1:9" in nowhere.stderr


@pytest.mark.broker
@pytest.mark.parametrize("kind", ["produce", "consume", "latency"])
def test_a_secure_cluster_is_measured_too(kafka: LocalCluster, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    user, password = next(iter(kafka.status().users.items()))
    monkeypatch.setenv("OTTLA_PASSWORD", password)
    assert kafka.secure_bootstrap is not None
    secure = ("--bootstrap", kafka.secure_bootstrap, "--ca-file", str(kafka.status().ca_file), "--username", user)
    (ours,) = _report(run("perf", kind, f"perf-secure-{kind}", *secure, "--records", "100", "--json", *_FEW))["runs"]
    assert (ours["records"], ours["failed"]) == (100, 0)
    refused = run("perf", "produce", "a", *secure, "--beside", "confluent")
    assert refused.exit_code == 2
    assert "--beside needs a listener without TLS and SASL" in refused.stderr


@pytest.mark.broker
def test_consuming_an_existing_topic_leaves_it_as_it_is(kafka: LocalCluster) -> None:
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic("perf-consume", replicas=1)
        with Producer(kafka.bootstrap) as producer:
            producer.send_many("perf-consume", [(b"key", b"value")] * 50)
        report = _report(_perf(kafka, "consume", "perf-consume", "--json", "--warmup", "0"))
        (ours,) = report["runs"]
        assert (ours["records"], ours["bytes"]) == (50, 50 * 5)
        assert report["settings"]["record_bytes"] == 5
        again = _report(_perf(kafka, "consume", "perf-consume", "--json", "--warmup", "0", "--duration", "0.3s"))
        assert again["runs"][0]["records"] > 50
        assert "times from beginning to end" in again["runs"][0]["notes"][0]
        too_many = _perf(kafka, "consume", "perf-consume", "--threads", "2")
        assert too_many.exit_code == 2
        assert "2 threads for 1 partitions" in too_many.stderr
        assert sum(map(len, admin.log_ranges("perf-consume").values())) == 50
        assert not [group for group in admin.groups.list_groups() if "perf" in group.name]
        admin.delete_topics("perf-consume")


@pytest.mark.broker
def test_the_same_work_by_other_clients(kafka: LocalCluster, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    options = ("--records", "2000", "--beside", "confluent,java", "--html", str(page), "--json", *_FEW)
    report = _report(_perf(kafka, "produce", "perf-beside", *options))
    assert [(row["client"], row["records"]) for row in report["runs"]] == [
        ("ottla", 2000),
        ("confluent", 2000),
        ("java", 2000),
    ]
    assert report["ratios"].keys() == {"confluent", "java"}
    for ratios in report["ratios"].values():
        assert {"rate", "cpu_per_record", "p50", "p99"} <= ratios.keys()
    _check_page(page.read_text())
    text = _perf(kafka, "consume", "perf-beside", "--records", "2000", "--beside", "java,confluent", *_FEW[2:])
    assert text.exit_code == 0, text.output
    assert [line.split()[0] for line in text.stdout.splitlines()[2:5]] == ["ottla", "java", "confluent"]
    assert "times the rate" in text.stdout
    assert "perf-beside" not in _topics(kafka)


@pytest.mark.broker
def test_latency_is_measured_from_producer_to_consumer(kafka: LocalCluster, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    options = ("--records", "200", "--rate", "500/s", "--partitions", "3", "--html", str(page), "--json")
    (ours,) = _report(_perf(kafka, "latency", "perf-latency", *options, "--warmup", "0.2s", "--replicas", "1"))["runs"]
    assert (ours["records"], ours["failed"]) == (200, 0)
    latency = ours["latency_seconds"]
    assert 0 < latency["p50"] <= latency["max"]
    assert latency["acknowledged p50"] > 0
    _check_page(page.read_text())
    assert "perf-latency" not in _topics(kafka)


@pytest.mark.broker
def test_mirroring_is_measured_and_its_copies_removed(kafka: LocalCluster) -> None:
    result = _perf(
        kafka, "mirror", "perf-mirror", "--records", "2000", "--partitions", "2", "--replicas", "1", "--json"
    )
    (ours,) = _report(result)["runs"]
    assert ours["records"] == 2000
    assert ours["bytes"] > 2000 * 100
    assert [name for name in _topics(kafka) if "perf-mirror" in name] == []  # others belong to other tests


@pytest.mark.broker
def test_ctrl_c_gives_the_report_of_what_was_measured(kafka: LocalCluster) -> None:
    arguments = ("perf", "produce", "perf-stopped", "--bootstrap", kafka.bootstrap, "--duration", "1h", "--json")
    with program(*arguments, *_FEW, "--rate", "1000/s") as process:
        assert process.stderr is not None
        assert process.stdout is not None
        while b"created" not in process.stderr.readline():
            pass
        _wait_for_records(kafka, "perf-stopped")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == 128 + signal.SIGINT
    (ours,) = json.loads(output)["runs"]
    assert ours["interrupted"] is True
    assert ours["records"] > 0
    assert "perf-stopped" not in _topics(kafka)


def _wait_for_records(kafka: LocalCluster, topic: str) -> None:
    with Admin(kafka.bootstrap) as admin:
        eventually(lambda: sum(map(len, admin.log_ranges(topic).values())) > 100)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("produce",), "missing argument 'TOPIC...'"),
        (("produce", "a", "--rate", "0"), "it must be more than 0"),
        (("produce", "a", "--rate", "10MB/s"), "are bytes or bits, not records"),
        (("produce", "a", "--records", "-1"), "too small: at least 1"),
        (("produce", "a", "--size", "3MB"), "1 to 1,000,000 are accepted"),
        (("produce", "a", "--size", "1kB", "--batch-size", "1kB"), "cannot hold a record"),
        (("produce", "a", "--beside", "aiokafka"), "not a client to compare with"),
        (("produce", "a", "--beside", "java", "--threads", "2"), "have one thread: pass --threads 1"),
        (("produce", "a", "b", "--beside", "java"), "take one topic"),
        (("produce", "a", "--beside", "java", "--tls"), "needs a listener without TLS"),
        (("latency", "a", "--size", "10B"), "at least 24 bytes"),
        (("mirror", "a"), "--from HOST:PORT,... is missing"),
    ],
)
def test_a_wrong_command_line_is_refused(arguments: tuple[str, ...], text: str) -> None:
    nowhere = () if arguments[0] == "mirror" else ("--bootstrap", "127.0.0.1:9")
    result = run("perf", *arguments, *nowhere)
    assert result.exit_code == 2, result.output
    assert text in result.stderr
    assert result.stdout == ""


def test_a_missing_peer_is_said_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.cli.perf.peers.is_installed", lambda packages: False)
    nowhere = ("--bootstrap", "127.0.0.1:9")
    result = run("perf", "produce", "a", "--beside", "confluent", *nowhere)
    assert result.exit_code == 2
    assert result.stderr == "error: --beside confluent: it is not installed: pip install confluent-kafka\n"
    java = run("perf", "consume", "a", "--beside", "java", *nowhere)
    assert java.stderr == "error: --beside java: it needs extra packages: pip install 'ottla[cluster]'\n"
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    java = run("perf", "consume", "a", "--beside", "java", *nowhere)
    assert java.exit_code == 2
    assert "--beside java: no suitable Java found" in java.stderr


def test_a_page_into_nowhere_is_refused_before_anything_is_measured() -> None:
    result = run("perf", "produce", "a", "--html", "/nowhere/at/all.html", "--bootstrap", "127.0.0.1:9")
    assert result.exit_code == 1
    assert "there is no folder /nowhere/at" in result.stderr


def test_what_kafkas_tools_print_is_read() -> None:
    printed = (
        "501 records sent, 100.1 records/sec (0.01 MB/sec), 1.0 ms avg latency, 2.0 ms max latency.\n"
        "1000 records sent, 5000.000000 records/sec (0.48 MB/sec), 12.34 ms avg latency, 99.00 ms max latency,"
        " 10 ms 50th, 20 ms 95th, 30 ms 99th, 40 ms 99.9th.\n"
        "400 steady state records sent, 8000.000000 records/sec (0.76 MB/sec), 2.34 ms avg latency,"
        " 9.00 ms max latency, 1 ms 50th, 2 ms 95th, 3 ms 99th, 4 ms 99.9th.\n"
    )
    measured = produced(printed, Workload(topics=("a",)), 3.0)
    assert (measured.records, measured.seconds, measured.size_bytes) == (400, 0.05, 40_000)
    assert (measured.latencies["p99.9"], measured.latencies["max"]) == (0.004, 0.009)
    row = "2026-01-01 00:00:00:000, 2026-01-01 00:00:02:000, 9.5367, 4.7, 100000, 50000.0, 300, 500, 19.0, 200000.0"
    read = consumed(f"start.time, end.time\n{row}\n", 1.0)
    assert (read.records, read.seconds, read.size_bytes) == (100_000, 0.5, round(9.5367 * (1 << 20)))
    with pytest.raises(LocalClusterError, match="ProducerPerformance printed no result"):
        produced("nothing", Workload(topics=("a",)), 0.0)
    with pytest.raises(LocalClusterError, match="ConsumerPerformance printed no result"):
        consumed("nothing", 0.0)


class _Page(HTMLParser):
    """Collects what a page would load, and whether its tags are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [f"{tag} {name}={value}" for name, value in attrs if name in ("src", "href")]


def _check_page(page: str) -> None:
    parser = _Page()
    parser.feed(page)
    assert parser.loaded == []
    assert "prefers-color-scheme:dark" in page
    assert "url(" not in page
    plots = list(_svgs(page))
    assert len(plots) >= 2
    for plot in plots:
        ElementTree.fromstring(plot)


def _svgs(page: str) -> Iterator[str]:
    for part in page.split("<svg ")[1:]:
        yield "<svg " + part.partition("</svg>")[0] + "</svg>"


def test_plots_have_round_ticks() -> None:
    assert ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(3, 47) == pytest.approx([10, 20, 30, 40])
    assert ticks(0, 1.9e9) == pytest.approx([0, 5e8, 1e9, 1.5e9])
    assert ticks(5, 5) == [5]


def test_plots_are_svg_also_of_nothing_one_point_and_text_from_outside() -> None:
    axis = Axis(label="<s>", show=lambda value: f"{value:g}")
    logarithmic = Axis(label="s", show=lambda value: f"{value:g}", is_logarithmic=True)
    assert line_plot("none", [Curve("a", [])], x=axis, y=axis) == ""
    assert line_plot("none", [Curve("a", [(0, None)])], x=axis, y=axis) == ""
    assert line_plot("none", [Curve("a", [(0, 0.0)])], x=axis, y=logarithmic) == ""
    assert bar_plot("none", [], show=str) == ""
    curves = [Curve("a & <b>\x1b", [(0, 1.0), (1, None), (2, 3.0), (3, 4.0)]), Curve("one", [(1, 2.0)])]
    for y in (axis, logarithmic):
        plot = ElementTree.fromstring(line_plot("<title>", curves, x=axis, y=y))
        kinds = [element.tag.rpartition("}")[2] for element in plot]
        assert kinds.count("polyline") == 1  # a gap ends a line; a single point is a dot
        assert kinds.count("circle") == 2
    bars = ElementTree.fromstring(bar_plot("rates", [Bar("a<", 10.0), Bar("b", 0.0)], show=str))
    widths = [float(element.attrib["width"]) for element in bars if element.tag.endswith("rect")]
    assert widths[0] > 0 == widths[1]
