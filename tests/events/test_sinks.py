"""The sinks: each event arrives in each sink, over a real socket, a real scrape, a real file."""

from __future__ import annotations

import json
import logging
import math
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest

from ottla.errors import ConfigError, OttlaError
from ottla.events import (
    EVENTS,
    BufferFull,
    ConnectionDown,
    ConnectionUp,
    Dropped,
    Event,
    Events,
    FlushAcknowledged,
    Flushed,
    FlushFailed,
    JsonLinesSink,
    LogSink,
    PrometheusSink,
    StatsdSink,
    StillDown,
    TimeDown,
)
from ottla.events.sinks import statsd as statsd_module
from ottla.events.sinks.statsd import DATAGRAM_BYTES

from .samples import ERROR, Bare, CacheMissed, Silent, in_threads, sample, samples

ACKNOWLEDGED = FlushAcknowledged("web.clicks", 3, 100, 4096, base_offset=7, seconds=0.0125, attempts=2)
OWN: list[Event] = [CacheMissed("clicks", 3, 0.5, -0.25, Path("x")), Bare(5, "noon"), Silent()]


class Statsd:
    """A socket where a statsd server would listen."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(10)
        self.address = "127.0.0.1:%d" % self._socket.getsockname()[1]  # noqa: UP031

    def datagram(self) -> bytes:
        return self._socket.recv(65536)

    def lines(self) -> list[str]:
        return self.datagram().decode().split("\n")

    def is_quiet(self) -> bool:
        # Datagrams to this machine are there when `sendto` returns.
        self._socket.setblocking(False)
        try:
            return not self._socket.recv(65536)
        except BlockingIOError:
            return True
        finally:
            self._socket.settimeout(10)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def server() -> Iterator[Statsd]:
    server = Statsd()
    yield server
    server.close()


@pytest.fixture
def sink(server: Statsd) -> Iterator[Callable[..., StatsdSink]]:
    made: list[StatsdSink] = []

    def make(**options: object) -> StatsdSink:
        made.append(StatsdSink(server.address, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for sink_made in made:
        sink_made.close()


def scrape(registry: CollectorRegistry) -> dict[str, float]:
    """What Prometheus would store: every series with its value."""
    lines = generate_latest(registry).decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


# All events through all sinks


@pytest.mark.parametrize("event", samples() + OWN, ids=lambda event: event.kind)
def test_every_event_arrives_in_every_sink(
    event: Event, server: Statsd, sink: Callable[..., StatsdSink], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    registry = CollectorRegistry()
    name = event.kind.replace(" ", "_").replace("!", "_")
    with Events(sink(), PrometheusSink(registry), JsonLinesSink(tmp_path / "events"), LogSink()) as hub:
        hub.emit(event)
    assert server.lines()[0].startswith(f"ottla.{name}.count")
    counted = f"ottla_{name.replace('.', '_')}_total"
    assert [value for series, value in scrape(registry).items() if series.split("{")[0] == counted] == [1.0]
    assert json.loads((tmp_path / "events").read_text())["event"] == event.kind
    assert [record.getMessage() for record in caplog.records] == [str(event)]


# statsd


def test_statsd_gets_counts_and_times_under_names_with_topic_and_partition(
    server: Statsd, sink: Callable[..., StatsdSink]
) -> None:
    sink()(ACKNOWLEDGED)
    assert server.lines() == [
        "ottla.flush_acknowledged.count.web_clicks.3:1|c",
        "ottla.flush_acknowledged.records.web_clicks.3:100|c",
        "ottla.flush_acknowledged.size_bytes.web_clicks.3:4096|c",
        "ottla.flush_acknowledged.time.web_clicks.3:12.500|ms",
        "ottla.flush_acknowledged.attempts.web_clicks.3:2|c",
    ]


def test_statsd_with_tags_keeps_names_plain(server: Statsd, sink: Callable[..., StatsdSink]) -> None:
    sink(prefix="shop.ottla", tags={"env": "prod,eu|\x1b"})(Flushed("web.clicks", 3, 100, 50, 90))
    assert server.lines()[:2] == [
        "shop.ottla.flushed.count:1|c|#env:prod_eu__,topic:web.clicks,partition:3",
        "shop.ottla.flushed.records:100|c|#env:prod_eu__,topic:web.clicks,partition:3",
    ]


def test_statsd_without_anything_to_tag_sends_no_tags(server: Statsd, sink: Callable[..., StatsdSink]) -> None:
    sink(tags={})(BufferFull(90, 100, "broker 1 is away"))
    assert server.lines() == [
        "ottla.buffer_full.count:1|c",
        "ottla.buffer_full.waiting_bytes:90|g",
        "ottla.buffer_full.limit_bytes:100|g",
    ]


def test_statsd_gauges_follow_a_broker_down_and_up(server: Statsd, sink: Callable[..., StatsdSink]) -> None:
    statsd = sink()
    statsd(StillDown(1, "kafka:9092", 40.5, "refused"))
    assert server.lines() == [
        "ottla.still_down.count.1:1|c",
        "ottla.still_down.seconds.1:40.500|g",
        "ottla.broker.up.1:0|g",
    ]
    statsd(TimeDown(1, "kafka:9092", 41))
    assert server.lines()[1:] == ["ottla.time_down.time.1:41000|ms", "ottla.still_down.seconds.1:0|g"]
    statsd(ConnectionUp(None, "kafka:9092", 0.002))
    assert "ottla.broker.up.kafka_9092:1|g" in server.lines()


def test_a_negative_gauge_is_not_taken_for_a_change(server: Statsd, sink: Callable[..., StatsdSink]) -> None:
    sink()(CacheMissed("clicks", 3, 0.5, -0.25, Path("x")))
    assert server.lines() == [
        "ottla.cache_missed.count.clicks:1|c",
        "ottla.cache_missed.lost_records.clicks:3|c",
        "ottla.cache_missed.wait_time.clicks:500|ms",
        "ottla.cache_missed.fill.clicks:0|g",
        "ottla.cache_missed.fill.clicks:-0.250|g",
    ]


@pytest.mark.parametrize("value", [None, "many", True, math.nan, math.inf, -1])
def test_statsd_leaves_out_what_is_no_amount(server: Statsd, sink: Callable[..., StatsdSink], value: object) -> None:
    sink()(Bare(value, 0))
    assert server.lines() == ["ottla.bare.count:1|c"]


def test_long_events_are_cut_into_datagrams_between_lines(server: Statsd, sink: Callable[..., StatsdSink]) -> None:
    sink(tags={"filler": "x" * 500})(ACKNOWLEDGED)
    datagrams = [server.datagram() for _ in range(3)]
    assert all(len(datagram) <= DATAGRAM_BYTES for datagram in datagrams)
    assert sum(len(datagram.split(b"\n")) for datagram in datagrams) == 5
    assert server.is_quiet()


def test_a_statsd_server_that_is_down_does_no_harm_and_is_found_again() -> None:
    first = Statsd()
    port = int(first.address.split(":")[1])
    first.close()
    sink = StatsdSink(first.address)
    for _ in range(10):
        sink(ACKNOWLEDGED)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as again:
        again.bind(("127.0.0.1", port))
        again.settimeout(10)
        sink(ACKNOWLEDGED)
        assert again.recv(65536).startswith(b"ottla.flush_acknowledged.count")
    sink.close()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "x" * 70])
def test_a_host_that_cannot_be_looked_up_is_not_asked_for_at_every_event(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    real = socket.getaddrinfo

    def counting(*args: object, **options: object) -> object:
        asked.append(args)
        return real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", counting)
    sink = StatsdSink(f"{host}:8125")
    for _ in range(5):
        sink(ACKNOWLEDGED)
    assert (len(asked), sink.lost) == (1, 5)


def test_a_name_with_both_kinds_of_addresses_means_ipv4(monkeypatch: pytest.MonkeyPatch, server: Statsd) -> None:
    port = int(server.address.split(":")[1])
    both = [
        (socket.AF_INET6, socket.SOCK_DGRAM, 17, "", ("::1", port, 0, 0)),
        (socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.0.1", port)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    sink = StatsdSink(f"localhost:{port}")
    sink(ACKNOWLEDGED)
    sink.close()
    assert server.lines()


def test_a_closed_statsd_sink_ignores_events(server: Statsd, sink: Callable[..., StatsdSink]) -> None:
    statsd = sink()
    statsd(ACKNOWLEDGED)
    statsd.close()
    statsd.close()
    statsd(ACKNOWLEDGED)
    assert server.lines()
    assert server.is_quiet()
    assert statsd.lost == 0


def test_statsd_sends_from_many_threads_arrive_whole(server: Statsd, sink: Callable[..., StatsdSink]) -> None:
    statsd = sink()
    in_threads(4, lambda: statsd(ACKNOWLEDGED), times=20)  # 80 small datagrams fit into the receive buffer
    got = [server.lines() for _ in range(80)]
    assert all(len(lines) == 5 for lines in got)


@pytest.mark.parametrize("address", ["", "host:99999", "a:b:c", "udp://host:1"])
def test_a_wrong_statsd_address_is_named(address: str) -> None:
    with pytest.raises(ConfigError, match=r"statsd address .* is not HOST:PORT, for example 127.0.0.1:8125"):
        StatsdSink(address)


@pytest.mark.parametrize("prefix", ["", "a b", ".a", "a:b"])
def test_a_wrong_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigError, match="prefix"):
        StatsdSink(prefix=prefix)
    with pytest.raises(ConfigError, match="prefix"):
        PrometheusSink(CollectorRegistry(), prefix)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("stats", "stats", 8125), ("stats:9092", "stats", 9092), ("[::1]", "::1", 8125), ("[::1]:9", "::1", 9)],
)
def test_the_statsd_port_is_8125_unless_given(text: str, host: str, port: int) -> None:
    assert statsd_module._parse(text) == (host, port)


# Prometheus


def test_prometheus_counts_by_topic_and_never_by_partition() -> None:
    registry = CollectorRegistry()
    sink = PrometheusSink(registry)
    sink(ACKNOWLEDGED)
    sink(FlushAcknowledged("web.clicks", 4, 50, 1000, base_offset=9, seconds=2.0, attempts=1))
    series = scrape(registry)
    assert series['ottla_flush_acknowledged_total{topic="web.clicks"}'] == 2
    assert series['ottla_flush_acknowledged_records_total{topic="web.clicks"}'] == 150
    assert series['ottla_flush_acknowledged_size_bytes_total{topic="web.clicks"}'] == 5096
    assert series['ottla_flush_acknowledged_seconds_sum{topic="web.clicks"}'] == 2.0125
    assert series['ottla_flush_acknowledged_seconds_bucket{le="0.025",topic="web.clicks"}'] == 1
    assert not [name for name in series if "partition" in name or "offset" in name]


def test_prometheus_gauges_follow_a_broker_down_and_up() -> None:
    registry = CollectorRegistry()
    sink = PrometheusSink(registry)
    sink(ConnectionDown(1, "kafka:9092", "refused"))
    sink(StillDown(1, "kafka:9092", 40.5, "refused"))
    sink(BufferFull(90, 100, "broker 1 is away"))
    series = scrape(registry)
    assert series['ottla_broker_up{broker="1"}'] == 0
    assert series['ottla_still_down_seconds{broker="1"}'] == 40.5
    assert series["ottla_buffer_full_waiting_bytes"] == 90
    sink(ConnectionUp(1, "kafka:9092", 0.01))
    sink(TimeDown(1, "kafka:9092", 41))
    series = scrape(registry)
    assert series['ottla_broker_up{broker="1"}'] == 1
    assert series['ottla_still_down_seconds{broker="1"}'] == 0
    assert series['ottla_time_down_seconds_sum{broker="1"}'] == 41


def test_prometheus_knows_all_metrics_before_the_first_event() -> None:
    registry = CollectorRegistry()
    PrometheusSink(registry, "shop")
    text = generate_latest(registry).decode()
    for kind in EVENTS:
        assert f"# TYPE shop_{kind.kind}_total counter" in text
    assert "# HELP shop_dropped_total Records were dropped" in text


def test_two_prometheus_sinks_of_one_registry_share_their_metrics() -> None:
    registry = CollectorRegistry()
    PrometheusSink(registry)(ACKNOWLEDGED)
    with Events(PrometheusSink(registry)) as hub:
        hub.emit(ACKNOWLEDGED)
    assert scrape(registry)['ottla_flush_acknowledged_total{topic="web.clicks"}'] == 2


def test_a_metric_name_that_is_taken_is_reported_when_the_sink_is_created() -> None:
    registry = CollectorRegistry()
    Counter("ottla_dropped_records", "mine", registry=registry)
    with pytest.raises(ConfigError, match=r"cannot register the metric ottla_dropped_records.*another prefix"):
        PrometheusSink(registry)


def test_topics_beyond_the_limit_are_counted_together() -> None:
    registry = CollectorRegistry()
    sink = PrometheusSink(registry, max_topics=2)
    for topic in ("a", "b", "c", "d", "a"):
        sink(sample(Dropped, topic=topic, records=10))
    series = scrape(registry)
    counts = {name: value for name, value in series.items() if name.startswith("ottla_dropped_records_total")}
    assert counts == {
        'ottla_dropped_records_total{topic="a"}': 20,
        'ottla_dropped_records_total{topic="b"}': 10,
        'ottla_dropped_records_total{topic="other"}': 20,
    }


def test_without_the_prometheus_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"pip install .ottla\[prometheus\]"):
        PrometheusSink()


def test_prometheus_counts_from_many_threads_add_up() -> None:
    registry = CollectorRegistry()
    sink = PrometheusSink(registry)
    in_threads(4, lambda: sink(Bare(2, 0)), times=200)
    assert scrape(registry)["ottla_bare_records_total"] == 1600


# JSON lines


def test_a_json_line_holds_time_kind_and_fields(tmp_path: Path) -> None:
    with Events(JsonLinesSink(tmp_path / "events.jsonl")) as hub:
        hub.emit(FlushFailed("clicks", 3, 100, 4096, error=ERROR))
        first = json.loads((tmp_path / "events.jsonl").read_text())  # there before the sink is closed
        hub.emit(ACKNOWLEDGED)
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert len(lines) == 2
    assert 1.7e9 < first.pop("time") < 1e10
    assert first == {
        "event": "flush_failed",
        "topic": "clicks",
        "partition": 3,
        "records": 100,
        "size_bytes": 4096,
        "error": f"BrokerError: {ERROR}",
    }


def test_what_json_cannot_hold_becomes_text_or_null(tmp_path: Path) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    values: list[object] = [Path("x"), math.nan, {(1, 2): 3}, [math.inf], b"\xff"]
    with Events(JsonLinesSink(tmp_path / "events")) as hub:
        for value in values:
            hub.emit(Bare(value, "noon"))
    lines = (tmp_path / "events").read_text().splitlines()
    objects = [json.loads(line, parse_constant=refuse) for line in lines]
    assert [entry["records"] for entry in objects] == ["x", None, "{(1, 2): 3}", "[inf]", "b'\\xff'"]
    assert {entry["time_"] for entry in objects} == {"noon"}


def test_a_closed_file_ignores_events_and_an_old_one_is_continued(tmp_path: Path) -> None:
    for _ in range(2):
        sink = JsonLinesSink(tmp_path / "events")
        sink(ACKNOWLEDGED)
        sink.close()
        sink.close()
        sink(ACKNOWLEDGED)
    assert len((tmp_path / "events").read_text().splitlines()) == 2


def test_making_a_file_sink_touches_no_disk_and_a_wrong_path_is_named(tmp_path: Path) -> None:
    sink = JsonLinesSink(tmp_path / "missing" / "events")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OttlaError, match=r"missing/events: No such file"):
        sink(ACKNOWLEDGED)
    (tmp_path / "missing").mkdir()
    sink(ACKNOWLEDGED)
    sink.close()
    assert len((tmp_path / "missing" / "events").read_text().splitlines()) == 1


def test_a_line_cut_by_a_full_disk_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "events"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    sink = JsonLinesSink(path)
    try:
        sink(ACKNOWLEDGED)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, before[1]))
        with pytest.raises(OttlaError, match=r"only 20 of \d+ bytes were written"):
            sink(ACKNOWLEDGED)
        with pytest.raises(OttlaError, match="File too large"):
            sink(ACKNOWLEDGED)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    sink(ACKNOWLEDGED)
    sink.close()
    first, torn, last = path.read_text().splitlines()
    assert len(torn) == 20
    assert json.loads(first)["event"] == json.loads(last)["event"] == "flush_acknowledged"


def test_lines_of_many_threads_are_whole(tmp_path: Path) -> None:
    sink = JsonLinesSink(os.fspath(tmp_path / "events"))
    in_threads(4, lambda: sink(ACKNOWLEDGED), times=200)
    sink.close()
    lines = (tmp_path / "events").read_text().splitlines()
    assert len(lines) == 800
    assert all(json.loads(line)["records"] == 100 for line in lines)


# Log


def test_each_event_has_its_own_level_and_unknown_ones_are_information() -> None:
    sink = LogSink()
    assert all(kind in sink._levels for kind in EVENTS)
    assert sink.level(Flushed) == logging.DEBUG
    assert sink.level(ConnectionDown) == logging.WARNING
    assert sink.level(FlushFailed) == logging.ERROR
    assert sink.level(Silent) == logging.INFO

    class Worse(ConnectionDown):
        """A user's refinement of one of ours."""

    assert sink.level(Worse) == logging.WARNING


def test_levels_and_logger_can_be_chosen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    sink = LogSink(logging.getLogger("shop"), {Flushed: logging.INFO, Event: logging.DEBUG})
    sink(Flushed("clicks", 0, 1, 2, 3))
    sink(Silent())
    assert caplog.record_tuples == [
        ("shop", logging.INFO, "flushed topic=clicks partition=0 records=1 size_bytes=2 raw_bytes=3")
    ]
    assert caplog.records[0].__dict__["ottla_event"] == Flushed("clicks", 0, 1, 2, 3)


@pytest.mark.parametrize("levels", [{"flushed": 10}, {int: 10}, {Flushed: "DEBUG"}])
def test_wrong_levels_are_refused(levels: dict[object, object]) -> None:
    with pytest.raises(ConfigError, match=r"maps event classes to levels such as logging\.INFO, got"):
        LogSink(levels=levels)  # type: ignore[arg-type]
