"""Looking after a cluster: topics, their settings and offsets, and the groups that read them.

`Admin` sends what the pure modules of this room build and judge, routes it to the right brokers and waits until
the cluster as a whole has caught up. It moves no records.
"""

from __future__ import annotations

from ottla.admin.admin import Admin
from ottla.admin.committed import Committed
from ottla.admin.group_admin import GroupAdmin
from ottla.admin.groups import DescribedMember, GroupDescription, ListedGroup, PartitionLag
from ottla.admin.offsets import At, OffsetAt, OffsetSpec
from ottla.admin.settings import Setting, SettingSource, SettingType
from ottla.admin.sizes import ReplicaSize, ReplicaSizes
from ottla.admin.topics import Apply, NewTopic, TopicDescription

EARLIEST = OffsetSpec.EARLIEST
LATEST = OffsetSpec.LATEST
MAX_TIMESTAMP = OffsetSpec.MAX_TIMESTAMP

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "Admin",
    "Apply",
    "At",
    "Committed",
    "DescribedMember",
    "GroupAdmin",
    "GroupDescription",
    "ListedGroup",
    "NewTopic",
    "OffsetAt",
    "OffsetSpec",
    "PartitionLag",
    "ReplicaSize",
    "ReplicaSizes",
    "Setting",
    "SettingSource",
    "SettingType",
    "TopicDescription",
]
