"""What the gateway counts: requests by route and status, records by topic, limits that were hit. Prometheus text out.

Labels are capped: names of topics come from outside. Threads share it; nothing here prints or serves.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping

from ottla.errors import OttlaError
from ottla.gateway.http.problems import Problem, problem_of

_MOST_TOPICS = 200
_OTHER = "other"
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Counters:
    """Counts of one gateway."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._topics: set[str] = set()
        self._requests: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._limits: defaultdict[str, int] = defaultdict(int)
        self._records: defaultdict[str, int] = defaultdict(int)
        self._failed: defaultdict[str, int] = defaultdict(int)
        self._lost: defaultdict[str, int] = defaultdict(int)
        self._read: defaultdict[str, int] = defaultdict(int)
        self._read_bytes: defaultdict[str, int] = defaultdict(int)
        self._ended: defaultdict[str, int] = defaultdict(int)
        self._seconds = [0] * (len(_BUCKETS) + 1)
        self._seconds_sum = 0.0

    def answered(self, route: str, status: int) -> None:
        """Count an answer. `route` is one of ours, never a path of a client."""
        with self._lock:
            self._requests[route, status] += 1

    def hit(self, limit: str) -> None:
        """Count a limit that was hit."""
        with self._lock:
            self._limits[limit] += 1

    def refused(self, problem: Problem) -> None:
        """Count the limit that a problem names, once."""
        if problem.limit and not problem.is_counted:
            problem.is_counted = True
            self.hit(problem.limit)

    def took(self, topic: str, records: int, *, failed: int = 0, seconds: float | None = None) -> None:
        """Count records that were taken, and how long it took until they were acknowledged."""
        with self._lock:
            label = self._label(topic)
            self._records[label] += records
            if failed:
                self._failed[label] += failed
            if seconds is not None:
                self._seconds_sum += seconds
                at = next((number for number, bound in enumerate(_BUCKETS) if seconds <= bound), len(_BUCKETS))
                self._seconds[at] += 1

    def read(self, topic: str, records: int, size_bytes: int) -> None:
        """Count records that were read for clients, and their keys and values."""
        with self._lock:
            label = self._label(topic)
            self._read[label] += records
            self._read_bytes[label] += size_bytes

    def ended(self, why: str) -> None:
        """Count a stream that has ended. `why` is one of ours."""
        with self._lock:
            self._ended[why] += 1

    def lost(self, topic: str, records: int, first_time: float, last_time: float, why: OttlaError) -> None:
        """Count records that were taken without waiting, and then not written."""
        self.refused(problem_of(why))
        with self._lock:
            self._lost[self._label(topic)] += records

    def _label(self, topic: str) -> str:
        if topic in self._topics:
            return topic
        if len(self._topics) < _MOST_TOPICS:
            self._topics.add(topic)
            return topic
        return _OTHER

    def text(self, gauges: Mapping[str, float]) -> str:
        """Return all counts, and gauges by name, as Prometheus reads them."""
        with self._lock:
            return "\n".join([*self._lines(), *_gauges(gauges), ""])

    def _lines(self) -> Iterator[str]:
        yield "# TYPE ottla_gateway_http_requests_total counter"
        for (route, status), count in sorted(self._requests.items()):
            yield f'ottla_gateway_http_requests_total{{route="{route}",status="{status}"}} {count}'
        yield "# TYPE ottla_gateway_http_limits_hit_total counter"
        for limit, count in sorted(self._limits.items()):
            yield f'ottla_gateway_http_limits_hit_total{{limit="{limit}"}} {count}'
        for name, counts in (
            ("records", self._records),
            ("failed", self._failed),
            ("lost", self._lost),
            ("read_records", self._read),
            ("read_bytes", self._read_bytes),
        ):
            yield f"# TYPE ottla_gateway_http_{name}_total counter"
            for topic, count in sorted(counts.items()):
                yield f'ottla_gateway_http_{name}_total{{topic="{topic}"}} {count}'
        yield "# TYPE ottla_gateway_http_streams_ended_total counter"
        for why, count in sorted(self._ended.items()):
            yield f'ottla_gateway_http_streams_ended_total{{why="{why}"}} {count}'
        yield "# TYPE ottla_gateway_http_produce_seconds histogram"
        total = 0
        for bound, count in zip((*map(str, _BUCKETS), "+Inf"), self._seconds, strict=True):
            total += count
            yield f'ottla_gateway_http_produce_seconds_bucket{{le="{bound}"}} {total}'
        yield f"ottla_gateway_http_produce_seconds_sum {self._seconds_sum:.6f}"
        yield f"ottla_gateway_http_produce_seconds_count {total}"


def _gauges(gauges: Mapping[str, float]) -> Iterator[str]:
    for name, value in sorted(gauges.items()):
        yield f"# TYPE ottla_gateway_{name} gauge"
        yield f"ottla_gateway_{name} {value:g}"
