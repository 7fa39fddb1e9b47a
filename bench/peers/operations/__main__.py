"""Look at the lag of a cluster, in a process of its own: the request is JSON on standard input, so is the answer.

Every way is ours: what differs is how the cluster is asked. Memory is the highest that the process ever took.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ottla.admin import Admin, OffsetSpec
from ottla.admin.all_brokers import Traffic
from ottla.admin.group_admin import GroupAdmin
from ottla.cli.lag.options import rare_collections
from ottla.model import TopicPartition
from ottla.net import Cluster
from ottla.net.connection import Connection

_WARM = 1


def lag(cluster: Cluster) -> Callable[[], tuple[int, int]]:
    """Look as `ottla lag serve` does: many groups in a request."""
    from ottla.operations.lag.evaluate import Evaluator
    from ottla.operations.lag.poller import Poller

    poller, evaluator = Poller(cluster), Evaluator()

    def look() -> tuple[int, int]:
        snapshot = evaluator.observe(poller.poll(), missing=poller.missing)
        rows = list(snapshot.rows())
        return len(rows), sum(row.lag_records or 0 for row in rows)

    return look


def without_times(cluster: Cluster) -> Callable[[], tuple[int, int]]:
    """Look without headers: lag in records only, as group by group has it."""
    from ottla.operations.lag.evaluate import Evaluator
    from ottla.operations.lag.poller import Poller

    poller, evaluator = Poller(cluster, with_times=False), Evaluator()

    def look() -> tuple[int, int]:
        snapshot = evaluator.observe(poller.poll(), missing=poller.missing)
        rows = list(snapshot.rows())
        return len(rows), sum(row.lag_records or 0 for row in rows)

    return look


def one_by_one(cluster: Cluster) -> Callable[[], tuple[int, int]]:
    """One OffsetFetch for each group, one ListOffsets to each leader for each topic."""
    groups, admin = GroupAdmin(cluster), Admin(cluster)

    def look() -> tuple[int, int]:
        committed = {group.name: groups.committed(group.name) for group in groups.list_groups()}
        topics: dict[str, set[TopicPartition]] = {}
        for offsets in committed.values():
            for tp in offsets:
                topics.setdefault(tp.topic, set()).add(tp)
        ends: dict[TopicPartition, int] = {}
        for partitions in topics.values():
            found = admin.list_offsets(partitions, OffsetSpec.LATEST)
            ends |= {tp: at.offset for tp, at in found.items()}
        lags = [ends[tp] - at.offset for offsets in committed.values() for tp, at in offsets.items()]
        return len(lags), sum(lags)

    return look


WAYS = {"lag": lag, "without_times": without_times, "one_by_one": one_by_one}


def main() -> None:
    """Look as often as asked, after one look that is not counted."""
    request: dict[str, Any] = json.loads(sys.stdin.read())
    traffic = _counted()
    looks = []
    with Cluster(request["bootstrap"]) as cluster, rare_collections():  # as the commands have them
        look = WAYS[request["way"]](cluster)
        for _ in range(_WARM + request["looks"]):
            before = (traffic.requests, traffic.size_bytes)
            began, cpu = time.perf_counter(), time.process_time()
            rows, records = look()
            looks.append(
                {
                    "seconds": time.perf_counter() - began,
                    "cpu_seconds": time.process_time() - cpu,
                    "requests": traffic.requests - before[0],
                    "size_bytes": traffic.size_bytes - before[1],
                    "rows": rows,
                    "records": records,
                }
            )
    json.dump({"first": looks[0], "looks": looks[_WARM:], "memory_bytes": _peak_bytes()}, sys.stdout)


def _peak_bytes() -> int:
    """Return the most memory that this process ever took. `getrusage` would count its parent before the exec."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def _counted() -> Traffic:
    """Count every request of this process and its response."""
    traffic = Traffic()
    submit = Connection.submit

    def counting(self: Connection, *args: Any, **given: Any) -> Any:
        pending = submit(self, *args, **given)
        traffic.requests += 1
        return _Measured(pending, traffic)

    Connection.submit = counting  # type: ignore[method-assign]
    return traffic


class _Measured:
    """A request whose response is counted when it is read."""

    def __init__(self, pending: Any, traffic: Traffic) -> None:
        self._pending = pending
        self._traffic = traffic
        self._is_counted = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pending, name)

    def result(self) -> Any:
        """Return the response."""
        body = self._pending.result()
        if not self._is_counted:
            self._is_counted = True
            self._traffic.size_bytes += len(body)
        return body

    def response(self) -> Any:
        """Return the response as an entity."""
        self.result()
        return self._pending.response()


if __name__ == "__main__":
    main()
