"""A running gateway: one producer with one spool, and all listeners that hand records to it.

Settings and bound sockets come in. It starts everything in an order in which nothing is taken that cannot be kept, and
ends it in the opposite one: stop accepting, finish what was taken, flush, leave the rest in the spool. It handles no
signal and prints nothing.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Protocol

from ottla import __version__
from ottla.admin import Admin
from ottla.engines.fleet.planning import Units
from ottla.errors import NotDelivered, OttlaError
from ottla.events import PrometheusSink
from ottla.gateway.access.gate import Access, Gate
from ottla.gateway.access.rules import EVERYTHING
from ottla.gateway.counts import text_of
from ottla.gateway.datagram.listener import DatagramListener
from ottla.gateway.http.app import Path, StreamPath
from ottla.gateway.http.counters import Counters
from ottla.gateway.http.directory import Directory
from ottla.gateway.http.group_reads import GroupReads
from ottla.gateway.http.openapi import document
from ottla.gateway.http.ops import Ops, make_ops_app
from ottla.gateway.http.producing import Producing
from ottla.gateway.http.reading import Reading
from ottla.gateway.http.rest_consumers import RestConsumers
from ottla.gateway.http.routes import cold_paths, consumer_paths, hot_paths, make_app, read_paths
from ottla.gateway.http.server import HttpListener, bind
from ottla.gateway.http.status_pages import status_paths
from ottla.gateway.intake import Intake
from ottla.gateway.keys.writer import KeyedWriter
from ottla.gateway.listening import Listener
from ottla.gateway.passing import OWN, for_socket, for_syslog
from ottla.gateway.reading.groups import Groups
from ottla.gateway.reading.instances import Instances
from ottla.gateway.reading.log_reader import LogReader
from ottla.gateway.reading.news import News
from ottla.gateway.reading.pages import Pages
from ottla.gateway.reading.readers import Readers
from ottla.gateway.settings import LOOPBACK_HOSTS, Listen, Settings
from ottla.gateway.syslog.listener import SyslogListener
from ottla.produce.options import Batching, Buffering, Spool, WhenFull
from ottla.produce.producer import Producer
from ottla.wire.warm import warm

_log = logging.getLogger(__name__)
_LEAST_FLUSH_SECONDS = 1.0
_LEAST_DRAIN_SECONDS = 1.0


class Ending(Protocol):
    """What the end of a gateway needs of HTTP and of the listeners that answer nothing."""

    def start(self) -> None:
        """Begin to take records. Raises `OttlaError`."""

    def stop_accepting(self) -> None:
        """Take nothing new; what was begun may end."""

    def drain(self, seconds: float) -> bool:
        """Wait until what was begun has ended. Returns whether it has."""

    def close(self) -> None:
        """End at once."""


class Gateway:
    """One gateway. Constructing it connects nothing; `start` begins and `stop` ends it."""

    def __init__(self, settings: Settings, *, sockets: Mapping[str, Sequence[socket.socket]] | None = None) -> None:
        self.settings = settings
        self.counters = Counters()
        self.listeners: list[Ending] = []
        """All of them, HTTP first."""
        self.silent: dict[str, Listener] = {}
        """Those that answer nothing, by name: `socket`, `syslog`."""
        self.http_address: Listen | None = None
        self.ops_address: Listen | None = None
        self._sockets = {name: list(given) for name, given in (sockets or {}).items()}
        self._resources = ExitStack()
        self._http: HttpListener | None = None
        self._reading: Reading | None = None
        self._instances: Instances | None = None
        self._ops: HttpListener | None = None
        self._is_stopping = False
        self._end_by = 0.0

    @property
    def sockets(self) -> dict[str, list[socket.socket]]:
        """The listening sockets by listener, for the process that comes next."""
        return self._sockets

    def start(self) -> None:
        """Take records. Raises `OttlaError`, `SpoolInUse` while another gateway has the spool."""
        try:
            self._start()
        except BaseException:
            self._close()
            raise

    def _start(self) -> None:
        settings = self.settings
        self.http_address = self._bind("http", settings.http)
        self.ops_address = self._bind("ops", settings.ops)
        warm()  # before anything is taken: compiling takes seconds
        self._registry = _registry()
        self._producer = Producer(**self._producer_settings())
        self._resources.callback(self._close_producer)
        intake = Intake(self._producer, has_spool=settings.spool is not None)
        self._resources.callback(intake.close)
        self._directory = Directory(
            Admin(settings.cluster, client_id=settings.cluster.client_id),
            keeps=lambda topic: topic in self._producer.remembered_topics,
        )
        self._resources.callback(self._directory.close)
        self._directory.start()
        if "http" in self._sockets:
            self._http = self._http_listener(intake)
            self.listeners.append(self._http)
        self._add_silent(intake)
        for listener in self.listeners:
            listener.start()
        if "ops" in self._sockets:
            self._ops = self._ops_listener()
            self._ops.start()

    def stop(self, *, keep_sockets: bool = False) -> None:
        """Stop accepting, finish, flush, and leave the rest in the spool. `keep_sockets` for the one that comes next.

        Raises `NotDelivered` if records were lost.
        """
        deadline = time.monotonic() + self.settings.limits.drain_seconds
        self._is_stopping = True
        if keep_sockets:
            for silent in self.silent.values():
                self._sockets |= {OWN + name: list(given) for name, given in silent.hand_over().items()}
        else:
            for sock in self._sockets.pop("http", []):
                sock.close()
        if self._reading is not None:
            self._reading.stop()
        for listener in self.listeners:
            listener.stop_accepting()
        for listener in self.listeners:
            # A request that does not end must not cost the others what is in their sockets.
            if not listener.drain(max(_LEAST_DRAIN_SECONDS, deadline - time.monotonic())):
                _log.warning("a listener was ended with requests under way")
                listener.close()
        self._end_by = deadline
        self._close(keep_sockets=keep_sockets)

    def _close(self, *, keep_sockets: bool = False) -> None:
        if self._ops is not None:
            self._ops.close()
        for silent in self.silent.values():
            silent.close()
        try:
            self._resources.close()
        finally:
            if not keep_sockets:
                for sock in (sock for given in self._sockets.values() for sock in given):
                    sock.close()

    def _bind(self, name: str, address: Listen | None) -> Listen | None:
        """Listen, unless a socket was given; then check that it is not more open than the settings allow."""
        if name not in self._sockets:
            if address is None:
                return None
            self._sockets[name] = [bind(address.host, address.port)]
        if not self._sockets[name]:
            return None
        found = [
            Listen("localhost", 0) if sock.family == socket.AF_UNIX else Listen(*sock.getsockname()[:2])
            for sock in self._sockets[name]
        ]
        exposed = next((each for each in found if not each.is_loopback), None)
        if name == "http" and exposed is not None:
            self.settings.check_exposed(str(exposed))
        return exposed or found[0]  # the one that decides what is asked of clients

    def _producer_settings(self) -> dict[str, Any]:
        settings = self.settings
        spool = None
        if settings.spool is not None:
            spool = Spool(
                settings.spool,
                write_ahead=True,
                fsync=settings.spool_fsync,
                max_bytes=settings.spool_bytes,
                when_full=WhenFull.REFUSE,
            )
        return {
            "bootstrap": settings.cluster,
            "client_id": settings.cluster.client_id,
            "spool": spool,
            "audit": settings.audit,
            "events": [PrometheusSink(self._registry)],
            # The event loop must never wait: what has no room is refused, with a status that says so.
            "buffering": Buffering(bytes=settings.buffer_bytes, when_full=WhenFull.REFUSE),
            "batching": Batching(linger=settings.linger),
            "compression": settings.compression,
            "max_record_bytes": settings.max_record_bytes,
            "delivery_timeout": max(1.0, settings.limits.ack_seconds - 1.0),
        }

    def _http_listener(self, intake: Intake) -> HttpListener:
        settings = self.settings
        gate = Gate(self._access())
        self._resources.callback(gate.close)
        keyed = None
        if settings.keeps_keys:
            keyed = KeyedWriter(
                settings.cluster,
                gateway=settings.name,
                topic=settings.keys_topic,
                limits=settings.limits,
                max_record_bytes=settings.max_record_bytes,
            )
            self._resources.callback(lambda: keyed.close(self._seconds_to_flush()))
        producing = Producing(intake, self._directory, limits=settings.limits, counters=self.counters, keyed=keyed)
        is_honest = settings.v2_status == "honest"
        reads = self._read_paths(gate)
        app = make_app(
            producing, gate, reads=reads, counters=self.counters, is_honest=is_honest, compat=settings.compat
        )
        self._openapi = document(
            [
                *(hot.path for hot in hot_paths(producing, gate, is_honest=is_honest)),
                *reads,
                *cold_paths(producing, gate, is_honest=is_honest, compat=settings.compat),
            ],
            version=__version__,
        )
        return HttpListener(
            app,
            self._sockets["http"],
            limits=settings.limits,
            tls=None if settings.tls is None else settings.tls.context("http/1.1"),
            count=self.counters.hit,
        )

    def _add_silent(self, intake: Intake) -> None:
        """Make the listeners that answer nothing, on the sockets that were passed on, if there are any."""
        settings = self.settings
        to_socket = for_socket(settings.socket, self._sockets)
        if to_socket is not None:
            self.silent["socket"] = DatagramListener(to_socket, intake)
        to_syslog = for_syslog(settings.syslog, self._sockets, is_insecure=settings.is_insecure)
        if to_syslog is not None:
            self.silent["syslog"] = SyslogListener(to_syslog, intake)
        # Their descriptors have new owners.
        self._sockets = {name: given for name, given in self._sockets.items() if name in ("http", "ops")}
        self.listeners += self.silent.values()

    def _read_paths(self, gate: Gate) -> list[Path | StreamPath]:
        settings, limits = self.settings, self.settings.limits
        self._reading = reading = self._new_reading(gate)
        units = Units(records=settings.unit_records, bytes=settings.unit_bytes)
        groups = GroupReads(reading, Groups(reading.pages.log, settings.group_store, most=limits.groups, units=units))
        self._resources.callback(groups.close)
        return [*read_paths(reading, groups), *consumer_paths(self._new_consumers(reading))]

    def _new_consumers(self, reading: Reading) -> RestConsumers:
        settings, limits = self.settings, self.settings.limits
        self._instances = instances = Instances(
            settings.cluster,
            most=limits.consumers,
            idle_seconds=limits.consumer_idle_seconds,
            memory_bytes=limits.consumer_bytes,
            batch_bytes=limits.read_batch_bytes,
            match=lambda identity, pattern: consumers.match(identity, pattern),
        )
        self._resources.callback(instances.close)
        consumers = RestConsumers(
            reading, instances, base_uri=settings.base_uri, commits_next=settings.v2_commits == "next"
        )
        return consumers

    def _new_reading(self, gate: Gate) -> Reading:
        limits = self.settings.limits
        cluster = self.settings.cluster.cluster()
        pages = Pages(
            Readers(LogReader(cluster, max_batch_bytes=limits.read_batch_bytes), memory_bytes=limits.read_memory_bytes),
            News(cluster),
        )
        reading = Reading(pages, self._directory, gate, limits=limits, counters=self.counters)
        self._resources.callback(reading.close)
        return reading

    def _access(self) -> Access:
        """Without login on loopback, requests must name this machine: a web page could make a browser send others."""
        access = self.settings.access
        is_local = self.http_address is not None and self.http_address.is_loopback and not access.needs_login
        if access.hosts is not None or not is_local or self.settings.is_insecure:
            return access
        return replace(access, hosts=frozenset(LOOPBACK_HOSTS))

    def _ops_listener(self) -> HttpListener:
        ops = Ops(
            counters=self.counters,
            readiness=self.missing,
            gauges=self._gauges,
            events=self._event_metrics,
            openapi=getattr(self, "_openapi", {}),
        )
        limits = replace(self.settings.limits, body_bytes=1 << 16, connections=100)
        access = Access(rules=(EVERYTHING,))
        if self.ops_address is not None and self.ops_address.is_loopback:
            # Its pages show beginnings of messages: a web page could have a name that leads here.
            access = replace(access, hosts=frozenset((*LOOPBACK_HOSTS, *(self.settings.access.hosts or ()))))
        app = make_ops_app(ops, Gate(access), limits=limits, extra=self._status_pages())
        return HttpListener(app, self._sockets["ops"], name="ops", limits=limits)

    def _status_pages(self) -> list[Path]:
        listener = self.silent.get("socket")
        return status_paths(listener.snapshot) if isinstance(listener, DatagramListener) else []

    def missing(self) -> dict[str, str]:
        """Return what keeps it from taking records, by name. Empty if nothing does."""
        missing = {}
        if self._is_stopping:
            missing["gateway"] = "it is stopping"
        if not self._directory.is_fresh and not self._producer.remembered_topics:
            why = "there is no spool" if self.settings.spool is None else "the spool knows no topic yet"
            missing["brokers"] = f"none has answered lately, and {why}"
        return missing

    def _gauges(self) -> dict[str, float]:
        return {
            "http_connections": 0 if self._http is None else self._http.connections,
            "http_consumers": 0 if self._instances is None else len(self._instances),
            "http_streams": 0 if self._reading is None else len(self._reading.ends),
        }

    def _event_metrics(self) -> bytes:
        from prometheus_client import generate_latest

        counted = "".join(text_of(name, listener.counters()) for name, listener in self.silent.items())
        return generate_latest(self._registry) + counted.encode()

    def _seconds_to_flush(self) -> float:
        """Return how long something may still take to end."""
        return max(_LEAST_FLUSH_SECONDS, self._end_by - time.monotonic())

    def _close_producer(self) -> None:
        try:
            self._producer.close(self._seconds_to_flush())
        except NotDelivered as error:
            # Each was answered or counted when it failed. What is new is what nothing will deliver any more.
            if self.settings.spool is None:
                _log.warning("records were not delivered: %s", error)
        except OttlaError as error:
            _log.warning("the producer did not end cleanly: %s", error)


def _registry() -> Any:
    from prometheus_client import CollectorRegistry

    return CollectorRegistry()
