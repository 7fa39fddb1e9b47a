"""The shape that several responses share: a list of topics, each with a list of partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.testing.fake.messages import Tree


def by_partition(request: Any, respond: Callable[[Any, Any], Tree], *, name_field: str = "name") -> Tree:
    """Return a response with the result of `respond(topic, partition)` for each partition of the request."""
    return {
        "topics": [
            {
                name_field: getattr(topic, name_field),
                "partitions": [respond(topic, partition) for partition in topic.partitions],
            }
            for topic in request.topics
        ]
    }
