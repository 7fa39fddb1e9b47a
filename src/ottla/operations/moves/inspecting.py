"""Looks at the moves of a plan without touching them: how far they are, and whether the cluster is as planned.

Comes in: a cluster and a plan. Goes out: `Progress`, or a `Receipt`. It changes nothing.
"""

from __future__ import annotations

from ottla.admin.movement import running_reassignments
from ottla.net.cluster import Cluster
from ottla.operations.moves.checks import require_cluster
from ottla.operations.moves.measuring import Gauge
from ottla.operations.moves.plan_file import digest_of
from ottla.operations.moves.progress import Progress, Receipt, Stage, compare
from ottla.operations.moves.reading import layout_of
from ottla.operations.moves.run_files import RunFiles
from ottla.operations.moves.stages import left_bytes, view_of
from ottla.operations.moves.values import Plan


def progress_of(cluster: Cluster, plan: Plan, files: RunFiles) -> Progress:
    """Return how far a plan is. Raises `InputError` for a plan of another cluster."""
    deadline = cluster.deadline()
    running = running_reassignments(cluster, deadline=deadline)
    metadata = cluster.metadata({move.partition.topic for move in plan.moves}, deadline=deadline)
    require_cluster(plan, metadata)
    view = view_of(plan, metadata, running, min_in_sync={})
    left = left_bytes(plan, view, Gauge(cluster, plan).sizes(metadata, view.having(Stage.MOVING)))
    total = sum(sum(targets.values()) for targets in left.values())
    control = files.control()
    rate = control.rate if isinstance(control.rate, int) else None
    return Progress(view.stages, total, plan.moved_bytes, throttle=rate, is_paused=control.is_paused, lost=view.lost)


def verify_plan(cluster: Cluster, plan: Plan) -> Receipt:
    """Return what is as planned and what is not. Raises `InputError` for a plan of another cluster."""
    metadata = cluster.metadata({move.partition.topic for move in plan.moves})
    require_cluster(plan, metadata)
    differences = compare(plan, layout_of(metadata, {}))
    missing = {each.partition for each in differences}
    done = [move for move in plan.moves if move.partition not in missing]
    return Receipt(
        plan.cluster_id,
        plan.purpose,
        digest_of(plan),
        "incomplete" if differences else "complete",
        len(plan.moves),
        differences,
        sum(len(move.added) for move in done),
        sum(move.moved_bytes for move in done),
    )
