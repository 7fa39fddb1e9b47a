"""The interface through which a program follows the partitions of its consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.model import TopicPartition

if TYPE_CHECKING:
    from ottla.consume.consumer import Consumer

Partitions = frozenset[TopicPartition]


class Listener:
    """Subclass it and override the methods you need.

    The consumer calls them inside its own methods, on the thread of that call. So a listener may commit, seek and
    pause. An exception that it raises comes out of the call of the consumer.
    """

    def assigned(self, consumer: Consumer, partitions: Partitions) -> None:
        """Called when the consumer gets partitions, before it returns any of their records; may seek."""

    def revoked(self, consumer: Consumer, partitions: Partitions) -> None:
        """Called before partitions go to other members; may still commit them."""

    def lost(self, consumer: Consumer, partitions: Partitions) -> None:
        """Called when other members may have the partitions already: a commit would be refused."""
