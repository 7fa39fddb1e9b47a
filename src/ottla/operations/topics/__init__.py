"""Topics as a file declares them: read the file, compare it with a cluster, apply the difference, write one from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla._lazy import lazy

if TYPE_CHECKING:
    from ottla.operations.topics.applying import apply_plan, live_topics
    from ottla.operations.topics.comparing import Action, Allow, Change, LiveTopic, Plan, diff
    from ottla.operations.topics.declaration import Declaration, DeclaredTopic
    from ottla.operations.topics.exporting import export
    from ottla.operations.topics.reading import read_declaration

_HOMES = {
    "Action": "ottla.operations.topics.comparing",
    "Allow": "ottla.operations.topics.comparing",
    "Change": "ottla.operations.topics.comparing",
    "Declaration": "ottla.operations.topics.declaration",
    "DeclaredTopic": "ottla.operations.topics.declaration",
    "LiveTopic": "ottla.operations.topics.comparing",
    "Plan": "ottla.operations.topics.comparing",
    "apply_plan": "ottla.operations.topics.applying",
    "diff": "ottla.operations.topics.comparing",
    "export": "ottla.operations.topics.exporting",
    "live_topics": "ottla.operations.topics.applying",
    "read_declaration": "ottla.operations.topics.reading",
}

__all__ = [
    "Action",
    "Allow",
    "Change",
    "Declaration",
    "DeclaredTopic",
    "LiveTopic",
    "Plan",
    "apply_plan",
    "diff",
    "export",
    "live_topics",
    "read_declaration",
]

if not TYPE_CHECKING:  # otherwise a type checker would accept any misspelled name
    __getattr__, __dir__ = lazy(__name__, _HOMES)
