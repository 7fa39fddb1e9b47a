"""Moves of replicas: plans that move as little as possible, and runs that throttle themselves and clean up.

`make_plan` is pure; `run_plan` carries a plan out. `ottla reassign`, `ottla brokers drain` and `ottla topics replicas`
use both. Needs the extra `operations` for plans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla._lazy import lazy

if TYPE_CHECKING:
    from ottla.operations.moves.pacing import Limits
    from ottla.operations.moves.plan_file import read_plan, write_plan
    from ottla.operations.moves.planning import make_plan
    from ottla.operations.moves.progress import Progress, Receipt
    from ottla.operations.moves.reading import Survey, survey
    from ottla.operations.moves.run_files import Control, RunFiles
    from ottla.operations.moves.runner import RunOptions, run_plan
    from ottla.operations.moves.values import Cost, Goal, Layout, Move, Plan, Racks

_HOMES = {
    "Control": "ottla.operations.moves.run_files",
    "Cost": "ottla.operations.moves.values",
    "Goal": "ottla.operations.moves.values",
    "Layout": "ottla.operations.moves.values",
    "Limits": "ottla.operations.moves.pacing",
    "Move": "ottla.operations.moves.values",
    "Plan": "ottla.operations.moves.values",
    "Progress": "ottla.operations.moves.progress",
    "Racks": "ottla.operations.moves.values",
    "Receipt": "ottla.operations.moves.progress",
    "RunFiles": "ottla.operations.moves.run_files",
    "RunOptions": "ottla.operations.moves.runner",
    "Survey": "ottla.operations.moves.reading",
    "make_plan": "ottla.operations.moves.planning",
    "read_plan": "ottla.operations.moves.plan_file",
    "run_plan": "ottla.operations.moves.runner",
    "survey": "ottla.operations.moves.reading",
    "write_plan": "ottla.operations.moves.plan_file",
}

__all__ = [
    "Control",
    "Cost",
    "Goal",
    "Layout",
    "Limits",
    "Move",
    "Plan",
    "Progress",
    "Racks",
    "Receipt",
    "RunFiles",
    "RunOptions",
    "Survey",
    "make_plan",
    "read_plan",
    "run_plan",
    "survey",
    "write_plan",
]

if not TYPE_CHECKING:  # otherwise a type checker would accept any misspelled name
    __getattr__, __dir__ = lazy(__name__, _HOMES)
