"""The clients that are interrupted and forked: their calls, what a signal handler may do, and what must hold after."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Protocol

from tests.consume.consuming import CLASSIC, QUICK, SMALL, TIMES, committed, filled, rows

from ottla.admin import Admin
from ottla.consume.consumer import Consumer
from ottla.errors import BrokerError
from ottla.fetch.reader import Reader
from ottla.model import Record, TopicPartition
from ottla.testing import FakeKafka

TOPIC, PARTITIONS, BATCHES = "t", 2, 15
EACH = BATCHES * 10
"""The number of records in each partition."""
RECORDS = EACH * PARTITIONS
PLACES = {TopicPartition(TOPIC, number): EACH for number in range(PARTITIONS)}
Call = Callable[[], object]


def stock(kafka: FakeKafka) -> None:
    """The cluster that the subjects use."""
    kafka.create_topic(TOPIC, PARTITIONS)
    filled(kafka, TOPIC, PARTITIONS, batches=BATCHES)


class Subject(Protocol):
    """A client, its calls, and what is known about its state."""

    client: Any

    @property
    def calls(self) -> dict[str, Call]:
        """Return all blocking calls, by name."""

    def handler(self) -> None:
        """Do what a signal handler may do with the client."""

    def check(self) -> None:
        """Check that it works, or was closed and is replaced by another one, and that its results are right."""

    def close(self) -> None:
        """Close it, and check the final state."""


class Reading:
    """A reader has no state: whatever was interrupted, the next result is complete."""

    def __init__(self, kafka: FakeKafka, chance: random.Random) -> None:
        self._kafka = kafka
        self._chance = chance
        self._left: list[Iterator[object]] = []
        self.client = self._new()
        self._fingerprint = self.client.fingerprint(TOPIC)

    def _new(self) -> Reader:
        return Reader(self._kafka.bootstrap, fetching=SMALL, retry=QUICK, timeouts=TIMES)

    @property
    def calls(self) -> dict[str, Call]:
        client = self.client
        return {
            "read": self._read,
            "read a part": self._read_a_part,
            "read on": lambda: next(self._left[-1], None) if self._left else None,
            "decoded": lambda: sum(decoded.rows for decoded in client.decoded(TOPIC)),
            "batches": lambda: list(client.batches(TOPIC)),
            "fold": lambda: client.fold(lambda count, batch: count + 1, 0, TOPIC),
            "count": lambda: client.count(TOPIC),
            "profile": lambda: client.profile(TOPIC),
            "fingerprint": lambda: client.fingerprint(TOPIC),
            "offsets": lambda: client.offsets(TOPIC, "latest"),
            "ranges": lambda: client.ranges(TOPIC),
            "close": client.close,
        }

    def _read(self) -> None:
        assert sum(batch.num_rows for batch in self.client.read(TOPIC)) == RECORDS

    def _read_a_part(self) -> None:
        """Leave an iterator in the middle and drop it later."""
        iterator = self.client.read(TOPIC)
        self._left = [*self._left[-2:], iterator]
        for _ in range(self._chance.randrange(5)):
            next(iterator, None)

    def handler(self) -> None:
        assert self.client.offsets(TOPIC, "latest") == PLACES
        assert self.client.count(TOPIC) == RECORDS

    def check(self) -> None:
        if self.client._closed:
            self._left.clear()
            self.client.close()
            self.client = self._new()
        records = [row for batch in self.client.read(TOPIC) for row in rows(batch)]
        assert sorted(records) == [(tp.partition, offset) for tp in sorted(PLACES) for offset in range(EACH)]
        assert self.client.fingerprint(TOPIC) == self._fingerprint
        assert self.client.offsets(TOPIC, "latest") == PLACES

    def close(self) -> None:
        self._left.clear()
        self.client.close()


class Consuming:
    """A consumer: records come in order and without holes, and only those that were handed out are committed."""

    def __init__(self, kafka: FakeKafka, chance: random.Random) -> None:
        self._kafka = kafka
        self._chance = chance
        self._next = dict.fromkeys(PLACES, 0)
        """The next record of each partition, as the program expects it."""
        self._least = dict.fromkeys(PLACES, 0)
        """The same, or less after an interrupted seek."""
        self._most = dict.fromkeys(PLACES, 0)
        """The highest value it ever had."""
        self._records: Iterator[Record] | None = None
        self.client = self._new()
        for call in (self._poll, self._record, self.client.commit, self._seek):
            call()
        self.check()

    def _new(self) -> Consumer:
        self._records = None
        return Consumer(
            self._kafka.bootstrap,
            group="g",
            topics=TOPIC,
            commit_every=0.01,
            fetching=SMALL,
            retry=QUICK,
            timeouts=TIMES,
            options=CLASSIC,
        )

    @property
    def calls(self) -> dict[str, Call]:
        client = self.client
        return {
            "poll": self._poll,
            "records": self._record,
            "iterate": self._iterate,
            "commit": client.commit,
            "commit_soon": client.commit_soon,
            "committed": client.committed,
            "position": lambda: [client.position(tp) for tp in client.assignment],
            "seek": self._seek,
            "seek to a place": lambda: self._seek("earliest"),
            "pause": self._pause,
            "member": lambda: client.member,
            "subscribe": lambda: client.subscribe(TOPIC),
            "close": client.close,
        }

    # Polling, with an immediate check of the records

    def _poll(self) -> None:
        batch = self.client.poll(0.05)
        if batch is not None:
            self._got(rows(batch))

    def _iterate(self) -> None:
        if not any(self._has_more(tp) for tp in self.client.assignment):
            return
        for batch in self.client:
            self._got(rows(batch))
            return

    def open_records(self) -> Iterator[Record]:
        """An iterator in the middle of records."""
        self._seek()
        records = self.client.records()
        first = next(records)
        self._got([(first.partition, first.offset)])
        return records

    def _record(self) -> None:
        if not any(self._has_more(tp) for tp in self.client.assignment):
            return
        self._records = self.client.records() if self._records is None else self._records
        records, self._records = self._records, None  # one that was interrupted is over
        for record in itertools.islice(records, 3):
            self._got([(record.partition, record.offset)])
            if not any(self._has_more(tp) for tp in self.client.assignment):
                break
        self._records = records

    def _got(self, records: list[tuple[int, int]]) -> None:
        for partition, offset in records:
            tp = TopicPartition(TOPIC, partition)
            assert offset in (self._next[tp], self._least[tp]), f"{tp}: {offset} after {self._next[tp]}"
            self._next[tp] = self._least[tp] = offset + 1
            self._most[tp] = max(self._most[tp], offset + 1)

    def _has_more(self, tp: TopicPartition) -> bool:
        return self._next[tp] < EACH

    def _seek(self, place: Any = 0) -> None:
        for tp in sorted(self.client.assignment):
            self._least[tp] = 0
            self.client.seek(tp, place)
            self._next[tp] = 0

    def _pause(self) -> None:
        some = sorted(self.client.assignment)[:1]
        try:
            self.client.pause(*some)
            self.client.poll(0.0) if not some else None
        finally:
            self.client.resume(*some)

    def handler(self) -> None:
        self.client.stop()

    def check(self) -> None:
        offsets = committed(self._kafka)
        assert all(offsets.get((tp.topic, tp.partition), 0) <= EACH for tp in PLACES)
        if self.client._closed or self.client._stopped:
            self._begin_again()
        self.client.resume(*self.client.paused)  # the end of a pause may have been interrupted
        self._seek_if_done()
        if self._least != self._next:  # a seek was interrupted: it may or may not have happened
            self._seek()
        for _ in range(2000):
            self._poll()
            if not any(map(self._has_more, PLACES)):
                break
        assert self._next == PLACES, self._next
        self.client.commit()
        offsets = committed(self._kafka)
        committed_offsets = {tp: offsets[tp.topic, tp.partition] for tp in PLACES}
        assert committed_offsets == PLACES, committed_offsets

    def _seek_if_done(self) -> None:
        if not any(map(self._has_more, PLACES)):
            for _ in range(500):
                self._poll()
                if self.client.assignment == PLACES.keys():
                    break
            self._seek()
            self.client.commit()

    def _begin_again(self) -> None:
        """Continue with a new consumer at the committed offsets, which must not exceed what was handed out."""
        self.client.close()
        offsets = committed(self._kafka)
        for tp in PLACES:
            offset = offsets.get((tp.topic, tp.partition), 0)
            assert offset <= self._most[tp], f"{tp}: {offset} is committed, and was not handed out"
            self._next[tp] = self._least[tp] = offset
        self.client = self._new()

    def close(self) -> None:
        self.client.close()


class Administering:
    """An admin: each result is complete, and topics are as the last call left them."""

    def __init__(self, kafka: FakeKafka, chance: random.Random) -> None:
        self._kafka = kafka
        self._chance = chance
        self._closed = False
        self.client = self._new()

    def _new(self) -> Admin:
        return Admin(self._kafka.bootstrap, retry=QUICK, timeouts=TIMES)

    @property
    def calls(self) -> dict[str, Call]:
        client = self.client
        tp = TopicPartition(TOPIC, 0)
        return {
            "create_topic": self._create,
            "delete_topics": self._delete,
            "describe_topics": lambda: client.describe_topics([TOPIC]),
            "topic_names": client.topic_names,
            "list_offsets": lambda: client.list_offsets(TOPIC),
            "log_ranges": lambda: client.log_ranges(TOPIC),
            "settings": lambda: client.settings(TOPIC),
            "committed": lambda: client.groups.committed("other"),
            "set_offsets": lambda: client.groups.set_offsets("other", {tp: 3}),
            "close": self._close,
        }

    def _create(self) -> None:
        with suppress(BrokerError):  # it is there
            self.client.create_topic("new", partitions=1)

    def _delete(self) -> None:
        with suppress(BrokerError):  # it is not there
            self.client.delete_topics("new")

    def _close(self) -> None:
        self._closed = True
        self.client.close()

    def handler(self) -> None:
        assert TOPIC in self.client.topic_names()

    def check(self) -> None:
        if self._closed:
            self._closed = False
            self.client.close()
            self.client = self._new()
        assert TOPIC in self.client.topic_names()
        self._delete()
        self.client.create_topic("new", partitions=1)
        self.client.delete_topics("new")
        assert [topic.name for topic in self.client.describe_topics([TOPIC])] == [TOPIC]

    def close(self) -> None:
        self.client.close()


SUBJECTS: list[Callable[[FakeKafka, random.Random], Subject]] = [Reading, Consuming, Administering]
