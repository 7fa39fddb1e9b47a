"""What a program may want to know about its partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.model import TopicPartition

if TYPE_CHECKING:
    from ottla.consume.consumer import Consumer

Partitions = frozenset[TopicPartition]


class Listener:
    """Derive from it and replace what is of interest. All is called from within the consumer's own calls, on the thread
    that makes them, so that it may commit and seek."""

    def assigned(self, consumer: Consumer, partitions: Partitions) -> None:
        """These are this consumer's from now on; none of their records was handed out yet, and it may seek."""

    def revoked(self, consumer: Consumer, partitions: Partitions) -> None:
        """These go to others as soon as this returns; it may still commit them."""

    def lost(self, consumer: Consumer, partitions: Partitions) -> None:
        """Others may have these already: a commit would be refused."""
