"""Local clusters by their files, for completion: it imports nothing that controls processes."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ottla.default_address import DIR_VARIABLE, clusters_folder

_STATE = "state.json"
"""As `cluster/state.py` has it."""


def cluster_names(directory: Path | None) -> list[str]:
    """Return the names of the clusters in a folder; without one, in the usual folder."""
    return [file.parent.name for file in _folder(directory).glob(f"*/{_STATE}")]


def broker_ids(directory: Path | None, name: str) -> list[str]:
    """Return the ids of the brokers of a cluster; none if it does not exist."""
    try:
        state = json.loads((_folder(directory) / name / _STATE).read_text(encoding="utf-8"))
        return [str(int(node["id"])) for node in state["nodes"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _folder(directory: Path | None) -> Path:
    return Path(directory or os.environ.get(DIR_VARIABLE) or clusters_folder())
