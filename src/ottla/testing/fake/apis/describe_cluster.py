"""DescribeCluster: the live brokers and the controller, for admin clients that ask this way."""

from __future__ import annotations

from typing import Any

from ottla.errors import ErrorCode
from ottla.testing.fake.apis.metadata import broker
from ottla.testing.fake.context import Context
from ottla.testing.fake.log import Refused
from ottla.testing.fake.messages import Tree
from ottla.testing.fake.state import CLUSTER_ID, ClusterState

KEY = 60
VERSIONS = range(3)


def handle(request: Any, state: ClusterState, context: Context) -> Tree:
    """Return the same brokers as Metadata."""
    try:
        context.check()
    except Refused as refused:
        return {"error_code": refused.code, "error_message": refused.message}
    return {
        "error_code": ErrorCode.none,
        "cluster_id": CLUSTER_ID,
        "controller_id": state.controller,
        "brokers": [broker(state, node) for node in sorted(state.live)],
    }
