"""Whether a topic is still the one that it was: a name can be deleted and created again, an id cannot.

Topics with the ids under which they were read come in; those that have another id now go out. Brokers learn of new
topics one after the other, so one that names another id may be behind: a topic counts as replaced only when no broker
knows the old id any more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from uuid import UUID

from ottla.admin.everywhere import ask_each
from ottla.errors import NetworkError, OttlaError
from ottla.model import TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.deadline import Deadline
from ottla.net.discovery import MetadataQuery, metadata_request
from ottla.net.metadata import Topic, from_response

Identity = tuple[str, UUID]
"""A name, and the id that it had."""
_SECONDS = 3.0
"""For the brokers that are asked beside the first one: one that is away must not hold up the others."""


class TopicCreatedAgain(OttlaError):
    """Another topic has the name of the one that `partitions` are of."""

    def __init__(self, partitions: Collection[TopicPartition]) -> None:
        self.partitions = frozenset(partitions)
        named = ", ".join(sorted({at.topic for at in partitions}))
        super().__init__(f"deleted and created again under the same name: {named}")


def replaced(cluster: Cluster, topics: Collection[Identity], *, deadline: Deadline) -> frozenset[Identity]:
    """Those whose name has another id by now; one that is only gone is not among them."""
    if not topics:
        return frozenset()
    names = frozenset(name for name, _ in topics)
    metadata = cluster.metadata(names, deadline=deadline)
    suspects = frozenset(one for one in topics if _has_another(metadata.topics.get(one[0]), one[1]))
    if not suspects or len(metadata.brokers) < 2:
        return suspects
    question = MetadataQuery(frozenset(name for name, _ in suspects))
    answers = ask_each(
        cluster,
        metadata.brokers.values(),
        lambda version_of: metadata_request(version_of, question),
        deadline=deadline.sooner(_SECONDS),
    )
    told = [from_response(answer).topics for answer in answers.values() if not isinstance(answer, NetworkError)]
    return suspects - {(name, topic.id) for topics in told for name, topic in topics.items() if topic.id is not None}


def refuse_replaced(cluster: Cluster, ids: Mapping[TopicPartition, UUID | None], *, deadline: Deadline) -> None:
    """Raises TopicCreatedAgain when one of the partitions is of a topic whose name has another id by now."""
    known = {at: (at.topic, topic_id) for at, topic_id in ids.items() if topic_id is not None}
    others = replaced(cluster, frozenset(known.values()), deadline=deadline)
    gone = [at for at, identity in known.items() if identity in others]
    if gone:
        raise TopicCreatedAgain(gone)


def _has_another(topic: Topic | None, topic_id: UUID) -> bool:
    return topic is not None and topic.id is not None and topic.id != topic_id
