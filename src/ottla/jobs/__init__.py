"""What to do with ranges of offsets: archive, replay and mirror topics, count them and compare tiers.

`archive`, `replay`, `mirror`, `tally`, `compare` and `find_differences` do everything with one call. Below them are
jobs (functions of one range that return a receipt) and the rounds around them; a job knows no engine. Names are
imported on first use: the process in which a Spark query plans its batches does not need the modules that decode
records.
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
    from ottla.jobs.mirror_link import Link
    from ottla.jobs.mirror_report import Mirrored, MirrorReport
    from ottla.jobs.mirrors import mirror
    from ottla.jobs.replay_throttle import Rate, Unit
    from ottla.jobs.replays import ReplayReport, replay
    from ottla.jobs.tallies import TallyReport, tally
    from ottla.mirror.rules import Policy

_HOMES = {
    "Brokers": "ottla.jobs.brokers",
    "Comparison": "ottla.jobs.comparisons",
    "Link": "ottla.jobs.mirror_link",
    "MirrorReport": "ottla.jobs.mirror_report",
    "Mirrored": "ottla.jobs.mirror_report",
    "Policy": "ottla.mirror.rules",
    "Rate": "ottla.jobs.replay_throttle",
    "ReplayReport": "ottla.jobs.replays",
    "TallyReport": "ottla.jobs.tallies",
    "Unit": "ottla.jobs.replay_throttle",
    "archive": "ottla.jobs.archives",
    "compare": "ottla.jobs.comparisons",
    "find_differences": "ottla.jobs.finding",
    "mirror": "ottla.jobs.mirrors",
    "replay": "ottla.jobs.replays",
    "tally": "ottla.jobs.tallies",
    "tally_archive": "ottla.jobs.archive_tallies",
}

__all__ = [
    "Brokers",
    "Comparison",
    "Link",
    "MirrorReport",
    "Mirrored",
    "Policy",
    "Rate",
    "ReplayReport",
    "TallyReport",
    "Unit",
    "archive",
    "compare",
    "find_differences",
    "mirror",
    "replay",
    "tally",
    "tally_archive",
]

if not TYPE_CHECKING:  # otherwise a type checker would accept every misspelt name
    __getattr__, __dir__ = lazy(__name__, _HOMES)
