"""Lag of everything that reads a cluster: in records, in seconds, and as a state by Burrow's rules.

`poll` looks once. A `Poller` and an `Evaluator` look again and again, so that there are states and trends. The core is
pure: `rules`, `window`, `forecast` and `evaluate` judge what polls saw, `headers` reads times off batches, `metrics`
and `burrow` turn judged groups into text. `poller`, `header_reader`, `limits` and `sources` ask brokers and read files;
`watcher`, `history` and `server` keep it going.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla._lazy import lazy

if TYPE_CHECKING:
    from ottla.operations.lag.evaluate import Evaluator
    from ottla.operations.lag.names import Selection
    from ottla.operations.lag.poll import poll
    from ottla.operations.lag.poller import Poller
    from ottla.operations.lag.rules import judge
    from ottla.operations.lag.server import LagServer
    from ottla.operations.lag.values import GroupLag, GroupType, LagRow, Method, Sample, Snapshot, State, Status
    from ottla.operations.lag.watcher import Watcher

_HOMES = {
    "Evaluator": "ottla.operations.lag.evaluate",
    "GroupLag": "ottla.operations.lag.values",
    "GroupType": "ottla.operations.lag.values",
    "LagRow": "ottla.operations.lag.values",
    "LagServer": "ottla.operations.lag.server",
    "Method": "ottla.operations.lag.values",
    "Poller": "ottla.operations.lag.poller",
    "Sample": "ottla.operations.lag.values",
    "Selection": "ottla.operations.lag.names",
    "Snapshot": "ottla.operations.lag.values",
    "State": "ottla.operations.lag.values",
    "Status": "ottla.operations.lag.values",
    "Watcher": "ottla.operations.lag.watcher",
    "judge": "ottla.operations.lag.rules",
    "poll": "ottla.operations.lag.poll",
}

__all__ = [
    "Evaluator",
    "GroupLag",
    "GroupType",
    "LagRow",
    "LagServer",
    "Method",
    "Poller",
    "Sample",
    "Selection",
    "Snapshot",
    "State",
    "Status",
    "Watcher",
    "judge",
    "poll",
]

if not TYPE_CHECKING:  # otherwise a type checker would accept any misspelled name
    __getattr__, __dir__ = lazy(__name__, _HOMES)
