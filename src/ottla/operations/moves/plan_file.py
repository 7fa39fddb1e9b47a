"""Plans as files: JSON with the cluster's id, both layouts, sizes and a checksum.

Comes in: plans, or paths. Goes out: files that exist whole or not at all, or checked plans. Raises `InputError` for a
file that is damaged, or is no plan.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ottla.errors import InputError
from ottla.files import replace_whole
from ottla.model import TopicPartition
from ottla.operations.moves.values import Move, Plan

_KIND, _VERSION = "ottla moves", 1
_MOST = (1 << 31) - 1
"""Numbers of brokers and partitions have 32 bits."""


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain values."""
    rows: dict[str, Any] = {
        "kind": _KIND,
        "version": _VERSION,
        "cluster_id": plan.cluster_id,
        "purpose": plan.purpose,
        "lower_bound": plan.lower_bound,
        "moves": [
            {
                "topic": move.partition.topic,
                "partition": move.partition.partition,
                "before": list(move.before),
                "after": list(move.after),
                "size_bytes": move.size_bytes,
            }
            for move in plan.moves
        ],
    }
    return {**rows, "sha256": _digest(rows)}


def digest_of(plan: Plan) -> str:
    """Return what identifies the content of a plan."""
    return str(plan_json(plan)["sha256"])


def write_plan(path: Path, plan: Plan) -> None:
    """Write a plan to the file `path`. Raises `InputError` if the file cannot be written."""
    rows = plan_json(plan)
    moves = ",\n  ".join(json.dumps(move) for move in rows["moves"])
    head = {name: value for name, value in rows.items() if name != "moves"}
    text = f'{json.dumps(head, indent=1)[:-2]},\n "moves": [\n  {moves}\n ]\n}}\n'
    try:
        replace_whole(path, text.encode())
    except OSError as error:
        raise InputError(f"the plan {path} cannot be written: {error.strerror or error}") from error


def read_plan(path: Path) -> Plan:
    """Return the plan in the file `path`. Raises `InputError` if it is damaged or no plan."""
    try:
        rows = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"the plan {path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"the plan {path} is damaged: {error}") from error
    if not isinstance(rows, dict) or rows.get("kind") != _KIND:
        raise InputError(f"{path} is not a plan of moves: 'ottla reassign plan' makes one")
    if rows.get("version") != _VERSION:
        raise InputError(f"the plan {path} has version {rows.get('version')}, this program reads version {_VERSION}")
    digest = rows.pop("sha256", None)
    if digest != _digest(rows):
        raise InputError(f"the plan {path} is damaged or was edited: its checksum is wrong. Make it again")
    try:
        moves = tuple(_move(row) for row in rows["moves"])
        if len({move.partition for move in moves}) < len(moves):
            raise ValueError("a partition is in it twice")
        return Plan(str(rows["cluster_id"]), moves, int(rows["lower_bound"]), str(rows["purpose"]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"the plan {path} is damaged: {type(error).__name__} {error}") from error


def _move(row: dict[str, Any]) -> Move:
    before, after = tuple(map(int, row["before"])), tuple(map(int, row["after"]))
    for replicas in (before, after):
        if not replicas or len(set(replicas)) < len(replicas) or not all(0 <= each <= _MOST for each in replicas):
            raise ValueError(f"replicas {list(replicas)} of {row['topic']}-{row['partition']}")
    partition, size_bytes = int(row["partition"]), int(row["size_bytes"])
    if not (0 <= partition <= _MOST and size_bytes >= 0):
        raise ValueError(f"partition {partition} of {row['topic']} with {size_bytes} bytes")
    return Move(TopicPartition(str(row["topic"]), partition), before, after, size_bytes)


def _digest(rows: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
