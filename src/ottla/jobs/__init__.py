"""What to do with ranges of offsets: archive topics, replay archives, count topics and compare tiers.

`archive`, `replay`, `tally`, `compare` and `find_differences` do everything with one call. Below them are jobs
(functions of one range that return a receipt) and the rounds around them; a job knows no engine. Names are imported on
first use: the process in which a Spark query plans its batches does not need the modules that decode records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla._lazy import lazy

if TYPE_CHECKING:
    from ottla.jobs.archive_tallies import tally_archive
    from ottla.jobs.archives import archive
    from ottla.jobs.brokers import Brokers
    from ottla.jobs.comparisons import Comparison, compare
    from ottla.jobs.finding import find_differences
    from ottla.jobs.replay_throttle import Rate, Unit
    from ottla.jobs.replays import ReplayReport, replay
    from ottla.jobs.tallies import TallyReport, tally

_HOMES = {
    "Brokers": "ottla.jobs.brokers",
    "Comparison": "ottla.jobs.comparisons",
    "Rate": "ottla.jobs.replay_throttle",
    "ReplayReport": "ottla.jobs.replays",
    "TallyReport": "ottla.jobs.tallies",
    "Unit": "ottla.jobs.replay_throttle",
    "archive": "ottla.jobs.archives",
    "compare": "ottla.jobs.comparisons",
    "find_differences": "ottla.jobs.finding",
    "replay": "ottla.jobs.replays",
    "tally": "ottla.jobs.tallies",
    "tally_archive": "ottla.jobs.archive_tallies",
}

__all__ = [
    "Brokers",
    "Comparison",
    "Rate",
    "ReplayReport",
    "TallyReport",
    "Unit",
    "archive",
    "compare",
    "find_differences",
    "replay",
    "tally",
    "tally_archive",
]

if not TYPE_CHECKING:  # otherwise a type checker would accept every misspelt name
    __getattr__, __dir__ = lazy(__name__, _HOMES)
