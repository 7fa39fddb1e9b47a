"""Checks of what a probe saw. Reports come in, findings go out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ottla.operations.health.findings import Finding, Severity, counted, typed
from ottla.operations.health.probe_tally import BrokerReport


def probe_findings(reports: Iterable[BrokerReport]) -> Iterator[Finding]:
    """Yield a finding for each broker that fails the probe, or lost, repeated or damaged records of it."""
    command = typed("health", "probe", "--for", "10s")
    for each in reports:
        name = f"broker {each.broker}"
        if not each.is_up:
            yield Finding(
                "probe",
                Severity.CRITICAL,
                f"{name} does not take and return records: {each.error}",
                (name,),
                command,
                name,
                each.down_since,
            )
        wrong = [
            text
            for number, text in (
                (each.lost, f"lost {counted(each.lost, 'record')} that it had acknowledged"),
                (each.corrupt, f"returned {counted(each.corrupt, 'damaged record')}"),
                (each.duplicates, f"returned {counted(each.duplicates, 'record')} twice"),
            )
            if number
        ]
        if wrong:
            yield Finding(
                "probe",
                Severity.CRITICAL if each.lost or each.corrupt else Severity.WARNING,
                f"{name} {' and '.join(wrong)}",
                (name,),
                command,
                f"{name} records",
            )
