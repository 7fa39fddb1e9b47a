"""Checks whether a topic is still the same: a name can be deleted and created again, an id cannot.

Comes in: topics with the ids under which they were read. Goes out: those that have another id now. Brokers learn of new
topics one after the other, so a broker that reports another id may be behind: a topic counts as replaced only if no
broker knows the old id any more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from uuid import UUID

from ottla.admin.all_brokers import ask_each
from ottla.errors import NetworkError, OttlaError
from ottla.model import TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.deadline import Deadline
from ottla.net.discovery import MetadataQuery, metadata_request
from ottla.net.metadata import Topic, from_response

Identity = tuple[str, UUID]
"""A name, and the id it had."""
_SECONDS = 3.0
"""The time for the brokers besides the first: one that is down must not delay the others."""


class TopicCreatedAgain(OttlaError):
    """Another topic now has the name of the topic that `partitions` belong to."""

    def __init__(self, partitions: Collection[TopicPartition]) -> None:
        self.partitions = frozenset(partitions)
        named = ", ".join(sorted({tp.topic for tp in partitions}))
        super().__init__(f"deleted and created again under the same name: {named}")


def replaced(cluster: Cluster, topics: Collection[Identity], *, deadline: Deadline) -> frozenset[Identity]:
    """Return the topics whose name has another id now. One that is merely deleted is not among them."""
    if not topics:
        return frozenset()
    names = frozenset(name for name, _ in topics)
    metadata = cluster.metadata(names, deadline=deadline)
    suspects = frozenset(identity for identity in topics if _has_another(metadata.topics.get(identity[0]), identity[1]))
    if not suspects or len(metadata.brokers) < 2:
        return suspects
    query = MetadataQuery(frozenset(name for name, _ in suspects))
    responses = ask_each(
        cluster,
        metadata.brokers.values(),
        lambda version_of: metadata_request(version_of, query),
        deadline=deadline.sooner(_SECONDS),
    )
    known_topics = [
        from_response(response).topics for response in responses.values() if not isinstance(response, NetworkError)
    ]
    return suspects - {
        (name, topic.id) for topics in known_topics for name, topic in topics.items() if topic.id is not None
    }


def refuse_replaced(cluster: Cluster, ids: Mapping[TopicPartition, UUID | None], *, deadline: Deadline) -> None:
    """Raise `TopicCreatedAgain` if the topic of a partition has another id now."""
    known = {tp: (tp.topic, topic_id) for tp, topic_id in ids.items() if topic_id is not None}
    replaced_topics = replaced(cluster, frozenset(known.values()), deadline=deadline)
    affected = [tp for tp, identity in known.items() if identity in replaced_topics]
    if affected:
        raise TopicCreatedAgain(affected)


def _has_another(topic: Topic | None, topic_id: UUID) -> bool:
    return topic is not None and topic.id is not None and topic.id != topic_id
