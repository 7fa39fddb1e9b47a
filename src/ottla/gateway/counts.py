"""Counts what a listener did, by name and labels, as plain values that a Prometheus page or a status page can show.

Threads share a `Counts`. It must not grow without bound: the values of a label `topic` are limited, and what comes
after is counted under `other`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple

MOST_TOPICS = 200
_TOPIC = "topic"
_OTHER = "other"


class Count(NamedTuple):
    """One counter: its name, without the prefix of the product, its labels, and how much it has counted so far."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: int


_GAUGES = ("connections_open", "held")


def text_of(listener: str, counts: Iterable[Count]) -> str:
    """Return counters as Prometheus reads them: `ottla_gateway_LISTENER_NAME_total`."""
    lines: list[str] = []
    last = ""
    counts = tuple(counts)
    labelled = {count.name for count in counts if count.labels}
    for count in counts:
        if not count.labels and count.name in labelled:
            continue  # the zero that stands for a counter until something is counted
        is_gauge = count.name in _GAUGES
        name = f"ottla_gateway_{listener}_{count.name}{'' if is_gauge else '_total'}"
        if name != last:
            lines.append(f"# TYPE {name} {'gauge' if is_gauge else 'counter'}")
            last = name
        labels = ",".join(f'{label}="{_escaped(value)}"' for label, value in count.labels)
        lines.append(f"{name}{{{labels}}} {count.value}" if labels else f"{name} {count.value}")
    return "".join(f"{line}\n" for line in lines)


def _escaped(value: str) -> str:
    """Return the text of a label. Names of topics come from outside, whatever bytes they have."""
    text = value.encode("utf-8", "replace").decode("utf-8")
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Counts:
    """Counters that only grow."""

    def __init__(self, *names: str, most_topics: int = MOST_TOPICS) -> None:
        """Counters with a name in `names` are shown before anything was counted."""
        self._lock = threading.Lock()
        self._values: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {(name, ()): 0 for name in names}
        self._topics: set[str] = set()
        self._most_topics = most_topics

    def add(self, name: str, count: int = 1, **labels: str) -> None:
        """Add to a counter."""
        with self._lock:
            if _TOPIC in labels:
                labels[_TOPIC] = self._shown(labels[_TOPIC])
            key = name, tuple(sorted(labels.items()))
            self._values[key] = self._values.get(key, 0) + count

    def get(self, name: str, **labels: str) -> int:
        """Return a counter; without labels, the sum over all of them."""
        with self._lock:
            if labels:
                return self._values.get((name, tuple(sorted(labels.items()))), 0)
            return sum(value for (known, _), value in self._values.items() if known == name)

    def snapshot(self) -> tuple[Count, ...]:
        """Return all counters, sorted."""
        with self._lock:
            return tuple(Count(name, labels, value) for (name, labels), value in sorted(self._values.items()))

    def _shown(self, topic: str) -> str:
        if topic in self._topics:
            return topic
        if len(self._topics) >= self._most_topics:
            return _OTHER
        self._topics.add(topic)
        return topic
