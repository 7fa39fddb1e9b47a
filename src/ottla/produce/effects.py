"""What the core of a producer asks its owner to do, as values: send, connect, store, search a log, and so on.

The core appends them to a queue and the owner carries them out in order. Each says which call must follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ottla.model import TopicPartition
from ottla.produce import topics
from ottla.produce.lane import Lane
from ottla.produce.outgoing import Identity, Outgoing
from ottla.produce.packing import Topic
from ottla.produce.participants import Join


class Carried(NamedTuple):
    """A batch in a request, with its topic and lane."""

    topic: Topic
    lane: Lane
    batch: Outgoing


class CallerToken:
    """Identifies a caller who sends a record itself. Its lifetime is that of the request."""

    __slots__ = ("__weakref__",)


class Send(NamedTuple):
    """A request to one broker, with one batch per partition. `answered`, `posted` or `lost` must follow."""

    broker: int
    acks: int
    carried: Mapping[TopicPartition, Carried]
    caller: CallerToken | None = None


class Connect(NamedTuple):
    """Connect to this broker: there are batches to send to it. `link_changed` follows."""

    broker: int


class Identify(NamedTuple):
    """Request a producer id. `identified` or `not_identified` must follow."""


class Search(NamedTuple):
    """Where to search a log.

    From `floor`, or, if that is -1 or not in the log, from the first record as old as the batches.
    """

    tp: TopicPartition
    floor: int
    created: float
    timestamp_ms: int


class ReadTail(NamedTuple):
    """Search the end of a log for these batches. `tail_read` or `tail_not_read` must follow."""

    topic: Topic
    lane: Lane
    search: Search
    counts: Mapping[Identity, int]


class Store(NamedTuple):
    """Write a batch to disk before it is sent. `stored`, `not_stored` or `damaged` must follow at once."""

    lane: Lane
    batch: Outgoing


class Replace(NamedTuple):
    """Replace a batch by its parts, on disk too if it is there."""

    lane: Lane
    whole: Outgoing
    parts: list[Outgoing]


Effect = Send | Connect | Identify | ReadTail | Store | Replace | Join | topics.Effect
"""What the core can ask for; `Topics` adds its own."""
