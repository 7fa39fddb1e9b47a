"""Keeps events as Prometheus metrics in a registry of `prometheus_client`, which is imported when a sink is created.

Each event becomes a counter and one metric per number in it, labeled by topic or broker. Never by partition: a time
series per partition can bring a Prometheus server down. It must not serve metrics itself.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ottla.errors import ConfigError
from ottla.events.measures import Measure, label_names, labels_of, measure_of, readings
from ottla.events.values import EVENTS, Event, field_names, fields_of

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

    _Family = Counter | Gauge | Histogram

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
"""Seconds: from an acknowledgement on the same machine to a broker that was down for half an hour."""
OTHER_TOPICS = "other"

_PREFIX = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")

_lock = threading.Lock()
# Several producers of a program write to the same series, and a registry rejects a name that is already registered.
_families: WeakKeyDictionary[CollectorRegistry, dict[str, _Family]] = WeakKeyDictionary()


class PrometheusSink:
    """Keeps metrics such as `ottla_flush_acknowledged_records_total{topic="clicks"}` in `registry`.

    The default is the default registry of `prometheus_client`. Sinks with the same registry and prefix share their
    metrics. Topics after the first `max_topics` are counted together under the label `other`. It has no `close`: the
    last values must stay to be scraped. Raises `ConfigError` if `prometheus_client` is missing or a name is taken.
    """

    def __init__(
        self, registry: CollectorRegistry | None = None, prefix: str = "ottla", *, max_topics: int = 200
    ) -> None:
        if not _PREFIX.fullmatch(prefix):
            raise ConfigError(f"Prometheus prefix {prefix!r} must be letters, digits and _, and not begin with a digit")
        self._client = _import_client()
        self._registry = self._client.REGISTRY if registry is None else registry
        self._prefix = prefix
        self._max_topics = max_topics
        self._topics: set[str] = set()
        # Looking up a series by its labels takes prometheus_client longer than counting.
        self._series_cache: dict[tuple[str, ...], Any] = {}
        with _lock:
            self._registry_families = _families.setdefault(self._registry, {})
        for kind in EVENTS:
            self._announce(kind)

    def __call__(self, event: Event) -> None:
        kind, fields = type(event), fields_of(event)
        labels = self._labels(fields)
        self._series(kind, event.kind, Measure.COUNT, labels).inc()
        for name, measure, value in readings(event, fields):
            series = self._series(kind, name, measure, labels)
            if measure is Measure.COUNT:
                series.inc(value)
            elif measure is Measure.TIME:
                series.observe(value)
            else:
                series.set(value)

    def _series(self, kind: type[Event], name: str, measure: Measure, labels: Mapping[str, str]) -> Any:
        """Return the series for these labels, from the cache or the registry."""
        key = (name, *labels.values())
        series = self._series_cache.get(key)
        if series is None:
            family = self._family(kind, name, measure, tuple(labels))
            series = self._series_cache[key] = family.labels(**labels) if labels else family
        return series

    def _labels(self, fields: Mapping[str, Any]) -> dict[str, str]:
        """Return the labels of an event, with the topic replaced by `other` beyond the limit."""
        labels = labels_of(fields)
        labels.pop("partition", None)
        topic = labels.get("topic")
        if topic is not None and topic not in self._topics:
            with _lock:
                if len(self._topics) < self._max_topics:
                    self._topics.add(topic)
                else:
                    labels["topic"] = OTHER_TOPICS
        return labels

    def _announce(self, kind: type[Event]) -> None:
        """Register what this event needs, so that a name conflict shows at once and not at the first event."""
        names = field_names(kind)
        labels = tuple(label for label in label_names(names) if label != "partition")
        self._family(kind, kind.kind, Measure.COUNT, labels)
        for name in names:
            measure = measure_of(kind, name)
            if measure is not None:
                self._family(kind, f"{kind.kind}.{name}", measure, labels)
        for name in kind.sets:
            self._family(kind, name, Measure.GAUGE, labels)

    def _family(self, kind: type[Event], name: str, measure: Measure, labels: tuple[str, ...]) -> Any:
        """Return the metric family of a name, registering it if it is new."""
        full = f"{self._prefix}_{_NOT_IN_NAMES.sub('_', name)}"
        # Without the lock: entries are only ever added.
        family = self._registry_families.get(full)
        if family is not None:
            return family
        with _lock:
            if full not in self._registry_families:
                self._registry_families[full] = self._registered(full, kind, measure, labels)
            return self._registry_families[full]

    def _registered(self, full: str, kind: type[Event], measure: Measure, labels: tuple[str, ...]) -> Any:
        """Register a metric family, with the event's docstring as its help text."""
        text = f"{(kind.__doc__ or kind.__name__).split(chr(10))[0]} ({measure.value})"
        try:
            if measure is Measure.COUNT:
                return self._client.Counter(full, text, labels, registry=self._registry)
            if measure is Measure.TIME:
                return self._client.Histogram(full, text, labels, registry=self._registry, buckets=BUCKETS)
            return self._client.Gauge(full, text, labels, registry=self._registry)
        except ValueError as exc:
            raise ConfigError(f"cannot register the metric {full}: {exc}. Choose another prefix") from exc


def _import_client() -> Any:
    try:
        import prometheus_client
    except ImportError as exc:
        raise ConfigError("PrometheusSink needs prometheus_client: pip install 'ottla[prometheus]'") from exc
    return prometheus_client
