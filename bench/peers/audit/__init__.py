"""What the audit benchmark asks of Ottla: producing with and without tallies, counting a topic, comparing two.

VARIANTS    what it can be asked for, by name: a function from a `Job` to what was `Moved`
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.harness import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of one variant: records into a topic, or all of a topic that has that many."""

    bootstrap: str
    topic: str
    records: int
    record_bytes: int
    other: str = ""
    """The topic to compare with."""


@dataclass(frozen=True, slots=True)
class Moved:
    """How many records went or were counted, and how long that took."""

    records: int
    time: Sample
    warmup: int = 0
