"""Looks at a cluster again and again on a thread, and keeps the last verdict for those who ask: pages, programs.

Comes in: a cluster, an interval, and a probe if one runs. Goes out: the verdict of the last look with what the probe
saw since, as a value, as JSON and as metrics. Asking for it asks no broker.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from types import TracebackType

from ottla.net.cluster import Cluster
from ottla.operations.health.findings import Verdict, with_options, worst_first
from ottla.operations.health.judging import History, judge
from ottla.operations.health.looking import look
from ottla.operations.health.metrics import health_families, http_status, probe_families, render
from ottla.operations.health.probe_checks import probe_findings
from ottla.operations.health.prober import Prober
from ottla.operations.health.snapshot import Limits, Snapshot
from ottla.operations.serving import JSON_TYPE, Page, Routes


class Monitor:
    """Looks at a cluster, which stays open, from `start` to `stop`, or while a `with` block runs."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        every: float = 30.0,
        prober: Prober | None = None,
        limits: Limits | None = None,
        ignored: Collection[str] = (),
        timeout: float = 20.0,
        connection: Sequence[str] = (),
    ) -> None:
        """`connection` has the options with which commands to type next reach this cluster."""
        self._cluster = cluster
        self._every = every
        self._prober = prober
        self._limits = limits
        self._ignored = ignored
        self._timeout = timeout
        self._connection = connection
        self._history = History()
        self._last: tuple[Snapshot, Verdict] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="ottla-health", daemon=True)

    def __enter__(self) -> Monitor:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End after the look that runs."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> Verdict:
        """Look now, on this thread. Not while the monitor runs."""
        seen = look(self._cluster, timeout=self._timeout)
        verdict, self._history = judge(seen, self._history, limits=self._limits, ignored=self._ignored)
        self._last = seen, verdict
        return self._completed(verdict)

    def verdict(self) -> Verdict | None:
        """Return the last verdict, with what the probe has seen by now; None before the first."""
        return None if self._last is None else self._completed(self._last[1])

    def health_page(self) -> Page:
        """Return the last verdict and the reports of the probe as JSON; status 503 if the cluster is unhealthy."""
        verdict = self.verdict()
        reports = [] if self._prober is None else [each.to_json() for each in self._prober.reports()]
        content = {"state": "unknown"} if verdict is None else verdict.to_json()
        return Page(json.dumps({**content, "probe": reports}) + "\n", JSON_TYPE, http_status(verdict))

    def metrics_page(self) -> Page:
        """Return the metrics of the last look and of the probe, for Prometheus."""
        families = [] if self._prober is None else probe_families(self._prober.reports())
        if self._last is not None:
            seen, verdict = self._last
            families += health_families(seen, self._completed(verdict), now=time.time())
        return Page(render(families))

    @property
    def routes(self) -> Routes:
        """The pages, by path."""
        return {"/health": self.health_page, "/metrics": self.metrics_page}

    def _completed(self, verdict: Verdict) -> Verdict:
        is_probed = self._prober is not None and "probe" not in self._ignored
        probed = probe_findings(self._prober.reports()) if self._prober is not None and is_probed else ()
        findings = [with_options(each, self._connection) for each in (*verdict.findings, *probed)]
        return replace(verdict, findings=worst_first(findings))

    def _work(self) -> None:
        while not self._stopping.is_set():
            self.look()
            self._stopping.wait(self._every)
