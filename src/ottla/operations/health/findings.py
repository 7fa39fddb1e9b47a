"""What is wrong with a cluster, as values: a finding has a reason, what it affects, since when, and what to type next.

Findings come in, a `Verdict` goes out. Pure. It knows no check: those are in the modules `*_checks`.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any

SHOWN = 3
"""How many of the names that a finding affects are in its sentence; all are in `affects`."""


class Severity(IntEnum):
    """How bad a finding is. The worst one decides about the cluster."""

    NOTE = 0
    """Worth knowing; it does not count against the cluster."""
    WARNING = 1
    """Everything works, with less in reserve than intended, or not for long."""
    CRITICAL = 2
    """Something cannot be written or read, or is about to be lost."""


class State(IntEnum):
    """The verdict on a cluster."""

    HEALTHY = 0
    DEGRADED = 1
    """There are warnings."""
    UNHEALTHY = 2
    """Something is critical."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause, in one line."""

    check: str
    """The name of the check, such as offline-partitions."""
    severity: Severity
    reason: str
    """A sentence without its full stop."""
    affects: tuple[str, ...] = ()
    """Brokers, partitions, groups, by name."""
    command: str = ""
    """What to type next: a command of `ottla`, or one of Kafka's own tools."""
    subject: str = ""
    """What distinguishes several findings of one check: `broker 2`."""
    since: float | None = None
    """When it began, in seconds since 1970; None if unknown."""

    @property
    def key(self) -> tuple[str, str]:
        """What identifies the same finding at another time."""
        return self.check, self.subject

    def to_json(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "check": self.check,
            "severity": self.severity.name.lower(),
            "reason": self.reason,
            "subject": self.subject or None,
            "affects": list(self.affects),
            "since": None if self.since is None else shown_time(self.since),
            "command": self.command or None,
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """All findings of one look, the worst first, and what could not be looked at."""

    findings: tuple[Finding, ...] = ()
    unseen: tuple[str, ...] = ()
    """Why parts of the cluster could not be looked at, each in a sentence."""
    taken_at: float = 0.0
    cluster_id: str | None = None
    brokers: int = 0
    """Brokers that are up."""
    partitions: int = 0

    @property
    def state(self) -> State:
        """The state of the cluster, from its worst finding."""
        return State(max((finding.severity for finding in self.findings), default=Severity.NOTE))

    @property
    def is_complete(self) -> bool:
        """Whether everything could be looked at."""
        return not self.unseen

    def count(self, severity: Severity) -> int:
        """Return the number of findings of a severity."""
        return sum(finding.severity is severity for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "state": self.state.name.lower(),
            "complete": self.is_complete,
            "looked_at": shown_time(self.taken_at),
            "cluster_id": self.cluster_id,
            "brokers": self.brokers,
            "partitions": self.partitions,
            "findings": [finding.to_json() for finding in self.findings],
            "unseen": list(self.unseen),
        }


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings in the order in which to read them."""
    return tuple(sorted(findings, key=lambda each: (-each.severity, each.check, each.subject)))


def with_options(finding: Finding, options: Sequence[str]) -> Finding:
    """Return a finding whose command of `ottla` has these options."""
    words = shlex.split(finding.command)
    if not options or words[:1] != ["ottla"]:
        return finding
    end = words.index("--") if "--" in words else len(words)
    return replace(finding, command=shlex.join([*words[:end], *options, *words[end:]]))


def named(names: Collection[str]) -> str:
    """Return the first names, and how many more there are."""
    shown = list(names)[:SHOWN]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def typed(*words: object, name: str | None = None) -> str:
    """Return a command line of `ottla` that a shell understands. A name at its end may begin with a hyphen."""
    named_last = [] if name is None else ["--", name] if name.startswith("-") else [name]
    return shlex.join(["ottla", *map(str, words), *named_last])


def shown_time(seconds: float) -> str:
    """Return a time as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
