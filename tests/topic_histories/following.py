"""What follows a topic, as the judge sees it, and the readers and consumers of Ottla as such."""

from __future__ import annotations

import queue
import threading
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from ottla.config import Retry, Timeouts
from ottla.consume.consumer import Consumer
from ottla.consume.options import GroupOptions
from ottla.errors import OffsetsLost
from ottla.events import Event, RangeLost
from ottla.fetch.options import Fetching
from ottla.fetch.reader import Reader
from ottla.model import TopicPartition

from .world import World

TIMES = Timeouts(connect=5.0, request=5.0, total=30.0, metadata_age=0.2)
RETRY = Retry(initial=0.01, maximum=0.2)
SMALL = Fetching(memory_bytes=1 << 16, request_bytes=1 << 10, max_wait=0.05)
ANY = -1
"""Of every partition."""


class Handed(NamedTuple):
    """A record as the follower gave it to its program."""

    partition: int
    offset: int
    value: bytes


class Lost(NamedTuple):
    """What the follower said that it could not hand out: the offsets `[start, stop)`, going on at `resume`."""

    partition: int
    start: int
    stop: int
    resume: int
    reason: str


class Again(NamedTuple):
    """The follower said that records of a partition may come once more."""

    partition: int
    reason: str


class Restarted(NamedTuple):
    """The follower ended as it should, and another one took over from it at this moment of the world."""

    ended: int
    began: int


Entry = Handed | Lost | Again | Restarted


class Follower(Protocol):
    """Follows the topic of a world, from its beginning on.

    `story` is all that it handed out and said, in that order. It hands out a record twice only after it said `Lost` or
    `Again`.
    """

    @property
    def story(self) -> list[Entry]:
        """All of it until now."""

    follows_cuts: bool
    """Whether it knows a log that was cut back and has grown again, by the epochs of its leaders: those who keep bare
    offsets cannot."""

    tells: bool
    """Whether the judge hears all that it says."""

    def step(self) -> None:
        """Follows for a moment; returns soon, whether something came or not."""

    def position(self, partition: int) -> int | None:
        """The offset of the next record, as it says itself; None when it does not say."""

    def restart(self, meanwhile: Any = None) -> None:
        """Ends as a program does that has done its work, calls `meanwhile`, and begins again."""

    def close(self) -> None:
        """Ends."""

    @property
    def committed(self) -> dict[int, int] | None:
        """What others will go on with, by partition, once it is closed; None if that is kept nowhere."""


class Story(list[Entry]):
    """What was handed out and said."""

    def batch(self, records: pa.RecordBatch | pa.Table) -> None:
        """These were handed out."""
        self.extend(
            Handed(partition, offset, value)
            for partition, offset, value in zip(
                records.column("partition").to_pylist(),
                records.column("offset").to_pylist(),
                records.column("value").to_pylist(),
                strict=True,
            )
        )


class FollowsByReader:
    """`Reader.read(topic, stop=None)`, on a thread of its own."""

    committed = None

    follows_cuts = tells = True

    def __init__(self, world: World) -> None:
        self.story: list[Entry] = Story()
        self._world = world
        self._queue: queue.SimpleQueue[pa.RecordBatch | Lost | BaseException] = queue.SimpleQueue()
        self._reached: dict[int, int] = {}
        self._reader = Reader(
            world.bootstrap,
            on_lost="earliest",
            events=[self._hear],
            timeouts=TIMES,
            retry=RETRY,
            fetching=SMALL,
        )
        self._iterator = self._reader.read(world.topic, stop=None)
        self._thread = threading.Thread(target=self._follow, name="history-reader", daemon=True)
        self._thread.start()

    def step(self) -> None:
        """What has come until now."""
        try:
            item = self._queue.get(timeout=0.02)
        except queue.Empty:
            return
        while True:
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, Lost):
                self.story.append(item)
                self._reached[item.partition] = item.resume
            else:
                assert isinstance(self.story, Story)
                self.story.batch(item)
                self._reached[item.column("partition")[0].as_py()] = item.column("offset")[-1].as_py() + 1
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return

    def position(self, partition: int) -> int | None:
        """After the last one that came."""
        return self._reached.get(partition)

    def restart(self, meanwhile: Any = None) -> None:
        """A reader keeps no place: it goes on."""
        if meanwhile is not None:
            meanwhile()

    def close(self) -> None:
        """Ends it, and its thread."""
        self._reader.close()
        self._thread.join(30)

    def _hear(self, event: Event) -> None:
        # Told by the thread that fetches, before records that were fetched earlier are handed out: the judge knows.
        if isinstance(event, RangeLost):
            self._queue.put(Lost(event.partition, event.start, event.stop, event.resume, event.reason))

    def _follow(self) -> None:
        try:
            for batch in self._iterator:
                self._queue.put(batch)
        except BaseException as error:
            if not self._reader._closed:
                self._queue.put(error)


class FollowsInGroup:
    """`Consumer` with automatic commits, by either protocol; with `on_lost="error"` it goes on where the error says."""

    follows_cuts = tells = True

    def __init__(self, world: World, group: str, options: GroupOptions, *, on_lost: str = "earliest") -> None:
        self.story: list[Entry] = Story()
        self._world = world
        self._group = group
        self._options = options
        self._on_lost = on_lost
        self._consumer = self._begin()

    def step(self) -> None:
        """One poll."""
        assert isinstance(self.story, Story)
        try:
            batch = self._consumer.poll(0.02)
        except OffsetsLost as error:
            self.story.append(Lost(error.partition, error.start, error.stop, error.resume, error.reason))
            self._consumer.seek(TopicPartition(error.topic, error.partition), error.resume)
            return
        if batch is not None:
            self.story.batch(batch)

    def position(self, partition: int) -> int | None:
        """Its own word."""
        where = TopicPartition(self._world.topic, partition)
        return self._consumer.position(where) if where in self._consumer.assignment else None

    def restart(self, meanwhile: Any = None) -> None:
        """Another program of the group."""
        ended = self._world.clock
        self._end()
        if meanwhile is not None:
            meanwhile()
        self.story.append(Restarted(ended, self._world.clock))
        self._consumer = self._begin()

    def close(self) -> None:
        """Commits and ends."""
        self._end()

    @property
    def committed(self) -> dict[int, int] | None:
        """By the group."""
        return self._world.committed(self._group)

    def _begin(self) -> Consumer:
        return Consumer(
            self._world.bootstrap,
            group=self._group,
            topics=self._world.topic,
            commit_every=0.1,
            on_lost=self._on_lost,
            options=self._options,
            events=[self._hear],
            timeouts=TIMES,
            retry=RETRY,
            fetching=SMALL,
        )

    def _end(self) -> None:
        with self._consumer:
            pass  # a block that ends well: all that was handed out is done

    def _hear(self, event: Event) -> None:
        if isinstance(event, RangeLost):
            self.story.append(Lost(event.partition, event.start, event.stop, event.resume, event.reason))
