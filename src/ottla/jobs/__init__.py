"""What to do with ranges of offsets: archive topics, and replay archives.

`archive` and `replay` do everything with one call. Below them are jobs (functions of one range that return a receipt)
and the rounds around them; a job knows no engine. Names are imported on first use: the process in which a Spark query
plans its batches does not need the modules that decode records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla._lazy import lazy

if TYPE_CHECKING:
    from ottla.jobs.archives import archive
    from ottla.jobs.brokers import Brokers
    from ottla.jobs.replay_throttle import Rate, Unit
    from ottla.jobs.replays import ReplayReport, replay

_HOMES = {
    "Brokers": "ottla.jobs.brokers",
    "Rate": "ottla.jobs.replay_throttle",
    "ReplayReport": "ottla.jobs.replays",
    "Unit": "ottla.jobs.replay_throttle",
    "archive": "ottla.jobs.archives",
    "replay": "ottla.jobs.replays",
}

__all__ = ["Brokers", "Rate", "ReplayReport", "Unit", "archive", "replay"]

if not TYPE_CHECKING:  # otherwise a type checker would accept every misspelt name
    __getattr__, __dir__ = lazy(__name__, _HOMES)
