"""The health of a cluster: a verdict with reasons, and an end-to-end probe.

`look` asks brokers, `judge` is pure, `Prober` writes and reads through every broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla._lazy import lazy

if TYPE_CHECKING:
    from ottla.operations.health.findings import Finding, Severity, State, Verdict
    from ottla.operations.health.judging import History, judge
    from ottla.operations.health.looking import look
    from ottla.operations.health.probe_tally import BrokerReport
    from ottla.operations.health.prober import Prober
    from ottla.operations.health.snapshot import Limits, Snapshot

_HOMES = {
    "BrokerReport": "ottla.operations.health.probe_tally",
    "Finding": "ottla.operations.health.findings",
    "History": "ottla.operations.health.judging",
    "Limits": "ottla.operations.health.snapshot",
    "Prober": "ottla.operations.health.prober",
    "Severity": "ottla.operations.health.findings",
    "Snapshot": "ottla.operations.health.snapshot",
    "State": "ottla.operations.health.findings",
    "Verdict": "ottla.operations.health.findings",
    "judge": "ottla.operations.health.judging",
    "look": "ottla.operations.health.looking",
}

__all__ = [
    "BrokerReport",
    "Finding",
    "History",
    "Limits",
    "Prober",
    "Severity",
    "Snapshot",
    "State",
    "Verdict",
    "judge",
    "look",
]

if not TYPE_CHECKING:  # otherwise a type checker would accept any misspelled name
    __getattr__, __dir__ = lazy(__name__, _HOMES)
