"""DescribeConfigs: the settings that a topic was created with; brokers have none."""

from __future__ import annotations

from typing import Any

from ottla.errors import ErrorCode
from ottla.testing.fake.context import Context
from ottla.testing.fake.log import Refused
from ottla.testing.fake.messages import Tree
from ottla.testing.fake.state import ClusterState

KEY = 32
VERSIONS = range(1, 5)

_TOPIC = 2
_SET_FOR_TOPIC = 1
_STRING = 2


def handle(request: Any, state: ClusterState, context: Context) -> Tree:
    """Return one result for each resource."""
    return {"results": [_describe(state, context, item) for item in request.resources]}


def _describe(state: ClusterState, context: Context, item: Any) -> Tree:
    resource = {"resource_type": item.resource_type, "resource_name": item.resource_name}
    try:
        context.check(item.resource_name)
        configs = state.topic_named(item.resource_name).configs if item.resource_type == _TOPIC else {}
    except Refused as refused:
        return {**resource, "error_code": refused.code, "error_message": refused.message}
    names = item.configuration_keys  # null asks for all
    rows = [
        {"name": name, "value": value, "config_source": _SET_FOR_TOPIC, "config_type": _STRING}
        for name, value in sorted(configs.items())
        if names is None or name in names
    ]
    return {**resource, "error_code": ErrorCode.none, "configs": rows}
