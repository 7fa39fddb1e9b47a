"""All routes of the HTTP listener, put together from the handlers of each API."""

from __future__ import annotations

from collections.abc import Iterable

from ottla.gateway.access.gate import Gate
from ottla.gateway.http.app import App, Handler, HotPath, Path, StreamPath
from ottla.gateway.http.compat import Flasfka, Kafboy
from ottla.gateway.http.counters import Counters
from ottla.gateway.http.group_reads import GroupReads
from ottla.gateway.http.native import Native
from ottla.gateway.http.producing import Producing
from ottla.gateway.http.reading import Reading
from ottla.gateway.http.reads import Reads
from ottla.gateway.http.rest import Rest
from ottla.gateway.http.rest_bodies import V2
from ottla.gateway.http.rest_consumers import RestConsumers
from ottla.gateway.http.rest_v3 import RestV3


def hot_paths(producing: Producing, gate: Gate, *, is_honest: bool) -> list[HotPath]:
    """Return the routes that are matched first."""
    native, rest = Native(producing, gate), Rest(producing, gate, is_honest=is_honest)
    write = Path("POST", "/v1/topics/{topic}/records", native.produce, "Write records")
    write_v2 = Path("POST", "/topics/{topic}", rest.produce, "Write records, as REST Proxy v2", V2)
    return [HotPath("/v1/topics/", "/records", write), HotPath("/topics/", "", write_v2)]


def cold_paths(producing: Producing, gate: Gate, *, is_honest: bool, compat: frozenset[str]) -> list[Path | StreamPath]:
    """Return all other routes."""
    native, rest = Native(producing, gate), Rest(producing, gate, is_honest=is_honest)
    v3 = RestV3(producing, gate)
    topic, cluster = "/topics/{topic}", "/v3/clusters/{cluster}"
    partition = topic + "/partitions/{partition}"
    paths: list[Path | StreamPath] = [
        Path("GET", "/v1/topics", native.topics, "Names of topics"),
        Path("GET", "/v1/topics/{topic}", native.topic, "Partitions of a topic with their offsets"),
        Path("GET", "/topics", rest.topics, "Names of topics, as v2", V2),
        Path("GET", topic, rest.topic, "A topic, as v2", V2),
        Path("GET", topic + "/partitions", rest.partitions, "Partitions, as v2", V2),
        Path("GET", partition, rest.partition, "A partition, as v2", V2),
        Path("POST", partition, rest.produce_to, "Write records to a partition, as v2", V2),
        Path("GET", partition + "/offsets", rest.offsets, "Offsets of a partition, as v2", V2),
        Path("GET", "/brokers", rest.brokers, "Ids of brokers, as v2", V2),
        Path("GET", "/v3/clusters", v3.clusters, "The cluster, as v3"),
        Path("GET", cluster, v3.cluster, "The cluster, as v3"),
        Path("GET", cluster + "/topics", v3.topics, "Topics, as v3"),
        Path("GET", cluster + topic, v3.topic, "A topic, as v3"),
        Path("POST", cluster + topic + "/records:batch", v3.batch, "Write a batch of records, as v3"),
        StreamPath("POST", cluster + topic + "/records", v3.stream, "Write a stream of records, as v3"),
    ]
    if "kafboy" in compat:
        paths += _kafboy(Kafboy(producing, gate))
    if "flasfka" in compat:  # last: its templates fit every path
        flasfka = Flasfka(producing, gate)
        paths += [
            Path("POST", "/{topic}/", flasfka.send, "Write messages, as flasfka"),
            Path("POST", "/{topic}/{key}/", flasfka.send, "Write messages with a key, as flasfka"),
        ]
    return paths


def read_paths(reading: Reading, groups: GroupReads) -> list[Path | StreamPath]:
    """Return the routes that read."""
    reads = Reads(reading)
    group = "/v1/groups/{group}/topics/{topic}"
    records = "/v1/topics/{topic}/records"
    return [
        Path(
            "GET",
            "/v1/topics/{topic}/partitions/{partition}/records",
            reads.partition,
            "Read a partition, a page or a stream",
        ),
        Path("GET", records, reads.topic, "Read all partitions, a page or a stream"),
        Path("POST", group + "/fetch", groups.fetch, "Lease the next records of a group"),
        Path("POST", group + "/acknowledge", groups.acknowledge, "Leased records are done"),
        Path("POST", group + "/release", groups.release, "Give leased records back"),
        Path("POST", group + "/extend", groups.extend, "Begin the time of a lease again"),
        Path("GET", group, groups.state, "The state of a group"),
        Path("DELETE", group, groups.delete, "Delete a group with its positions"),
    ]


def consumer_paths(consumers: RestConsumers) -> list[Path | StreamPath]:
    """Return the routes of consumer instances."""
    instance = "/consumers/{group}/instances/{instance}"
    routes: list[tuple[str, str, Handler, str]] = [
        ("POST", "/consumers/{group}", consumers.create, "Create a consumer instance, as v2"),
        ("DELETE", instance, consumers.delete, "Delete an instance, as v2"),
        ("POST", instance + "/subscription", consumers.subscribe, "Subscribe to topics or a pattern, as v2"),
        ("GET", instance + "/subscription", consumers.subscription, "Topics of an instance, as v2"),
        ("DELETE", instance + "/subscription", consumers.unsubscribe, "Unsubscribe, as v2"),
        ("POST", instance + "/assignments", consumers.assign, "Assign partitions, as v2"),
        ("GET", instance + "/assignments", consumers.assignment, "Partitions of an instance, as v2"),
        ("GET", instance + "/records", consumers.records, "Read records, as v2"),
        ("POST", instance + "/offsets", consumers.commit, "Commit offsets, as v2"),
        ("GET", instance + "/offsets", consumers.committed, "Committed offsets, as v2"),
        ("POST", instance + "/positions", consumers.seek, "Continue at offsets or times, as v2"),
        (
            "POST",
            instance + "/positions/beginning",
            consumers.seek_to_beginning,
            "Continue at the first records, as v2",
        ),
        ("POST", instance + "/positions/end", consumers.seek_to_end, "Continue behind the last records, as v2"),
    ]
    return [Path(method, template, handler, summary, V2) for method, template, handler, summary in routes]


def make_app(
    producing: Producing,
    gate: Gate,
    *,
    reads: Iterable[Path | StreamPath],
    counters: Counters,
    is_honest: bool = True,
    compat: frozenset[str] = frozenset(),
) -> App:
    """Return the application of the HTTP listener."""
    return App(
        gate,
        limits=producing.limits,
        counters=counters,
        hot=hot_paths(producing, gate, is_honest=is_honest),
        paths=[*reads, *cold_paths(producing, gate, is_honest=is_honest, compat=compat)],
    )


def _kafboy(kafboy: Kafboy) -> list[Path | StreamPath]:
    paths: list[Path | StreamPath] = [Path("GET", "/disco", kafboy.disco, "The name of the node, as kafboy")]
    for prefix in ("", "/batch"):
        for way, handler in (("async", kafboy.send_async), ("sync", kafboy.send_sync)):
            template = f"{prefix}/{way}/{{topic}}"
            paths.append(Path("POST", template, handler, f"Write records, {way}, as kafboy"))
            paths.append(Path("GET", template, kafboy.refuse, "Refused, as kafboy"))
    return paths
