"""Administration of a cluster: topics, their settings and offsets, and consumer groups.

`Admin` sends the messages that the pure modules of this package build and check. It routes them to the right brokers
and waits until the whole cluster has caught up. It must not move records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla._lazy import lazy

if TYPE_CHECKING:
    from ottla.admin.admin import Admin
    from ottla.admin.committed import Committed
    from ottla.admin.group_admin import GroupAdmin
    from ottla.admin.groups import DescribedMember, GroupDescription, ListedGroup, PartitionLag
    from ottla.admin.offsets import EARLIEST, LATEST, MAX_TIMESTAMP, At, OffsetAt, OffsetSpec
    from ottla.admin.settings import Setting, SettingSource, SettingType
    from ottla.admin.sizes import ReplicaSize, ReplicaSizes
    from ottla.admin.topics import Apply, NewTopic, TopicDescription

_HOMES = {
    "Admin": "ottla.admin.admin",
    "Apply": "ottla.admin.topics",
    "At": "ottla.admin.offsets",
    "Committed": "ottla.admin.committed",
    "DescribedMember": "ottla.admin.groups",
    "EARLIEST": "ottla.admin.offsets",
    "GroupAdmin": "ottla.admin.group_admin",
    "GroupDescription": "ottla.admin.groups",
    "LATEST": "ottla.admin.offsets",
    "ListedGroup": "ottla.admin.groups",
    "MAX_TIMESTAMP": "ottla.admin.offsets",
    "NewTopic": "ottla.admin.topics",
    "OffsetAt": "ottla.admin.offsets",
    "OffsetSpec": "ottla.admin.offsets",
    "PartitionLag": "ottla.admin.groups",
    "ReplicaSize": "ottla.admin.sizes",
    "ReplicaSizes": "ottla.admin.sizes",
    "Setting": "ottla.admin.settings",
    "SettingSource": "ottla.admin.settings",
    "SettingType": "ottla.admin.settings",
    "TopicDescription": "ottla.admin.topics",
}

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

if not TYPE_CHECKING:  # otherwise a type checker would accept any misspelled name
    __getattr__, __dir__ = lazy(__name__, _HOMES)
