"""Looking after a cluster: topics and the offsets of their partitions.

`Admin` sends what the pure modules of this room build and judge, routes it to the right brokers and waits until
the cluster as a whole has caught up. It moves no records.
"""

from __future__ import annotations

from ottla.admin.admin import Admin
from ottla.admin.offsets import At, OffsetAt, OffsetSpec
from ottla.admin.topics import NewTopic, TopicDescription

EARLIEST = OffsetSpec.EARLIEST
LATEST = OffsetSpec.LATEST
MAX_TIMESTAMP = OffsetSpec.MAX_TIMESTAMP

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "Admin",
    "At",
    "NewTopic",
    "OffsetAt",
    "OffsetSpec",
    "TopicDescription",
]
