"""`ottla capacity`: loads by options, by file and measured; and what is refused."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import run

from ottla import Producer
from ottla.admin import Admin
from ottla.cluster import LocalCluster

_SMALL = ("--cores", "8")
_LOAD = ("--messages", "1M/s", "--size", "1kB", "--retention", "3d", "--replication", "3", "--consumers", "4")


def _json(*options: str, code: int = 0) -> Any:
    result = run("capacity", *options, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_the_binding_limit_is_named_with_what_it_rests_on() -> None:
    result = run("capacity", *_LOAD, *_SMALL)
    assert result.exit_code == 0, result.output
    first, second, *_ = result.stdout.splitlines()
    assert re.fullmatch(r"cluster: \d+ brokers; the binding limit is broker CPU", first)
    assert "rests on a built-in figure: core rate = 20MB/s (Google's sizing page" in second
    given = run("capacity", *_LOAD, *_SMALL, "--broker-core-rate", "1GB/s").stdout
    assert "built-in figure" not in given
    (cluster,) = _json(*_LOAD, *_SMALL)["clusters"]
    assert (cluster["binding"], cluster["rests_on_assumed"]) == ("cpu", ["core_rate"])
    assert cluster["brokers"] == cluster["limits"]["cpu"]["brokers"] == int(first.split()[1])


def test_explain_shows_formula_inputs_and_sources() -> None:
    text = run("capacity", *_LOAD, "--explain").stdout
    assert "network in, all brokers: network_in_demand = write_rate * replication = 3.03GB/s" in text
    assert "      write_rate = 1.01GB/s\n      replication = 3  (given)\n" in text
    assert "core_rate = 20MB/s  (assumed: Google's sizing page" in text


def test_what_if_shows_a_row_for_each_change() -> None:
    text = run("capacity", *_LOAD, "--sites", "12", "--what-if").stdout
    for title in ("as given", "one broker lost", "one site more", "twice the retention", "one replica more"):
        assert re.search(rf"^{title} +\d+ ", text, re.MULTILINE), title
    rows = _json(*_LOAD, "--what-if")["what_if"]
    assert [row["what"] for row in rows][:2] == ["as given", "one broker lost"]
    assert rows[1]["clusters"][0]["up"] == rows[0]["clusters"][0]["brokers"] - 1


def test_brokers_that_are_there_are_judged() -> None:
    few = run("capacity", *_LOAD, "--brokers", "4")
    assert few.exit_code == 3
    assert few.stdout.startswith("cluster: 4 brokers: too few; ")
    assert "4 brokers are too few: they would use" in few.stderr
    enough = run("capacity", "--messages", "1k/s", "--brokers", "4", "--without", "1")
    assert enough.exit_code == 0, enough.output
    assert enough.stdout.startswith("cluster: 4 brokers, 3 of them up: enough; 3 are needed")


def test_a_file_has_the_same_values_and_options_win(tmp_path: Path) -> None:
    file = tmp_path / "load.toml"
    file.write_text(
        '[load]\nmessages = "1M/s"\nsize = "1kB"\nretention = "3d"\nreplication = 3\nconsumers = 4\n'
        '[machine]\nlink = "25Gbit/s"\ndisks = 24\n[rules]\nspare = 2\n'
        '[sites]\ncount = 3\nretention = "12h"\nlink = "1Gbit/s"\n'
    )
    sites = ("--sites", "3", "--site-retention", "12h", "--site-link", "1Gbit/s")
    same = (*_LOAD, "--link", "25Gbit/s", "--disks", "24", "--spare", "2", *sites)
    assert _json("--config", str(file)) == _json(*same)
    assert _json("--config", str(file), "--consumers", "1") == _json(*same, "--consumers", "1")


def test_a_rate_for_a_day_is_a_mean() -> None:
    assert "note: a rate for a day is a mean: --peak" in run("capacity", "--bytes", "150TB/d").stdout
    assert "note" not in run("capacity", "--bytes", "150TB/d", "--peak", "1.5").stdout


def test_measured_rates_are_used(tmp_path: Path) -> None:
    run_of_ours = {"client": "ottla", "records": 1000, "bytes": 10**6, "seconds": 0.01, "cpu_seconds": 0.002}
    settings = {"record_bytes": 1000, "partitions": 1, "threads": 1}
    report = {"kind": "produce", "date": "2026-01-01", "settings": settings, "runs": [run_of_ours]}
    file = tmp_path / "perf.json"
    file.write_text(json.dumps(report))
    values = _json(*_LOAD, "--rates", str(file))
    cost = values["clients"]["producer_cores"]["inputs"]["producer_cost"]
    assert (cost["value"], cost["assumed"]) == (pytest.approx(2e-6), False)
    assert "measured by 'ottla perf produce' on 2026-01-01" in cost["source"]
    file.write_text("{")
    broken = run("capacity", *_LOAD, "--rates", str(file))
    assert broken.exit_code == 2
    assert "is not a report of 'ottla perf --json'" in broken.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "the load is missing: pass either --messages or --bytes"),
        (("--messages", "1M/s", "--bytes", "1GB/s"), "pass either --messages or --bytes"),
        (("--messages", "-1"), "--messages: '-1' is not a rate of records"),
        (("--messages", "0"), "records per second must be from"),
        (("--messages", "1MB/s"), "are bytes or bits, not records"),
        (("--bytes", "150TB"), "is a size, not a rate"),
        (("--bytes", "1GB/s", "--compression", "4"), "--compression is for --messages"),
        (("--messages", "1M", "--compression", "0"), "the compression ratio must be from"),
        (("--messages", "1M", "--size", "1M/s"), "--size: '1M/s' is not a size"),
        (("--messages", "1M", "--size", "0"), "the size of a record must be from 1"),
        (("--messages", "1M", "--retention", "0"), "retention in seconds must be from 60"),
        (("--messages", "1M", "--retention", "3"), "3 is three seconds, write 3d"),
        (("--messages", "1M", "--replication", "0"), "replication must be from 1"),
        (("--messages", "1M", "--replication", "3.5"), "--replication: '3.5' is not a whole number"),
        (("--messages", "1M", "--brokers", "2"), "replication 3 needs as many brokers, and there are 2"),
        (("--messages", "1M", "--brokers", "3", "--without", "3"), "none is left"),
        (("--messages", "1M", "--link", "10Gb/s"), "may be bits or bytes: write 10Gbit/s or 10GB/s"),
        (("--messages", "1M", "--link", "10"), "write 10Gbit/s or 1.25GB/s"),
        (("--messages", "1M", "--lagging", "2"), "2 lagging groups of 1"),
        (("--messages", "1M", "--peak", "0.5"), "peak must be from 1"),
        (("--messages", "1M", "--consumer-rate", "0"), "--consumer-rate: '0': a rate must be more than 0"),
        (("--messages", "1M", "--site-link", "1Gbit/s"), "--site-link needs --sites"),
        (("--messages", "1M", "--sites", "0"), "sites must be from 1"),
        (("--messages", "1M", "--sites", "2", "--site-retention", "9d"), "keeps records longer"),
        (("--measure",), "no brokers: pass --bootstrap HOST:PORT"),
        (("--measure", "--bootstrap", "127.0.0.1:9", "--window", "0"), "is too small: at least 1s"),
    ],
)
def test_what_cannot_be_is_one_clear_error(arguments: tuple[str, ...], text: str) -> None:
    result = run("capacity", *arguments, env={"OTTLA_BOOTSTRAP": "", "OTTLA_DIR": "/nonexistent"})
    assert result.exit_code == 2, result.output
    assert text in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"load = 3", "load is a table: write [load]"),
        (b"[brokers]\n", "there is no table [brokers]: load, machine, rules, sites are accepted"),
        (b"[load]\nrecords = 3", "[load] has no key records"),
        (b"[load]\nmessages = [1]", "messages is a text or a number"),
        (b"[load", "is not TOML"),
        (b"\xff", "is not UTF-8"),
    ],
)
def test_a_file_that_is_wrong_is_one_clear_error(tmp_path: Path, content: bytes, text: str) -> None:
    file = tmp_path / "load.toml"
    file.write_bytes(content)
    result = run("capacity", "--config", str(file))
    assert result.exit_code == 2
    assert text in result.stderr


@pytest.mark.broker
def test_the_load_of_a_running_cluster_is_measured(kafka: LocalCluster) -> None:
    over = threading.Event()
    with Admin(kafka.bootstrap) as admin, Producer(kafka.bootstrap) as producer:
        admin.create_topic("capacity-cli", replicas=1)

        def send() -> None:
            while not over.wait(0.05):
                producer.send_many("capacity-cli", [b"x" * 1000] * 20)

        sender = threading.Thread(target=send)
        sender.start()
        try:
            options = ("--measure", "--bootstrap", kafka.bootstrap, "--window", "1s", "--consumers", "2")
            values = _json(*options, "--peak", "2")
        finally:
            over.set()
            sender.join()
        admin.delete_topics("capacity-cli")
    (cluster,) = values["clusters"]
    assert cluster["brokers"] == 3
    lines = cluster["lines"]
    assert lines["mean_rate"]["value"] > 10_000
    assert lines["write_rate"]["value"] == pytest.approx(2 * lines["mean_rate"]["value"])
    assert lines["read_rate"]["value"] == pytest.approx(2 * lines["write_rate"]["value"])


@pytest.mark.parametrize("option", ["--config", "--rates"])
def test_a_file_that_nests_without_end_is_an_error(tmp_path: Path, option: str) -> None:
    file = tmp_path / "deep"
    file.write_text(("a=" if option == "--config" else "") + "[" * 200_000)
    result = run("capacity", "--messages", "1M/s", option, str(file))
    assert result.exit_code == 2, result.stderr
    assert "is not TOML" in result.stderr or "is not a report" in result.stderr
