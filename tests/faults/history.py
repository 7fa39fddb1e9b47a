"""Compares what was sent and reported with what a reader of another client finds in the log afterwards.

The outcomes that a producer reported to its callers come in, and the records of every partition from beginning to end.
A verdict goes out that names every contradiction between the two. A fault never excuses a contradiction.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from enum import IntEnum, StrEnum
from typing import NamedTuple

import confluent_kafka

UNKEYED = -1
_EXAMPLES = 5


class State(IntEnum):
    """The outcome that the caller was given."""

    OPEN = 0
    ACKED = 1
    FAILED = 2
    """The record is not in the log."""
    UNKNOWN = 3
    """It failed and may be in the log."""


class Kind(StrEnum):
    """Contradictions between the outcomes and the log."""

    LOST = "acknowledged and not in the log"
    MISACKED = "acknowledged for another place than it is at"
    DUPLICATE = "in the log more than once"
    REORDERED = "behind a record that its thread sent later"
    PHANTOM = "in the log and never sent like that"
    SCATTERED = "one key in several partitions"
    REVIVED = "said to be certainly not in the log, and there"
    OPEN = "without an outcome"


class Tag(NamedTuple):
    """What a record's value says about it. `counter` counts all records of its writer."""

    writer: int
    key: int
    counter: int

    def key_bytes(self) -> bytes | None:
        """The record's key."""
        return None if self.key == UNKEYED else b"key-%d" % self.key

    def value_bytes(self, padding: int = 0) -> bytes:
        """The record's value, followed by this many bytes of padding."""
        return b"%d|%d|%d|" % self + b"." * padding

    @classmethod
    def of(cls, value: bytes | None) -> Tag | None:
        """The tag in a value; None if there is none."""
        try:
            writer, key, counter, padding = (value or b"").split(b"|")
            return None if padding.strip(b".") else cls(int(writer), int(key), int(counter))
        except ValueError:
            return None


class LogRecord(NamedTuple):
    """A record in the log."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class History:
    """Everything that one thread sent, in compact form: a quarter of an hour has a million records."""

    def __init__(self, writer: int) -> None:
        self.writer = writer
        self.told: Counter[State] = Counter()
        self._states = bytearray()
        self._keys = array("b")
        self._partitions = array("h")
        self._offsets = array("q")

    def __len__(self) -> int:
        return len(self._states)

    @property
    def size_bytes(self) -> int:
        """The memory that the history itself takes."""
        return len(self) * (1 + 1 + 2 + 8)

    def sending(self, key: int) -> Tag:
        """Add the next record."""
        tag = Tag(self.writer, key, len(self))
        self._states.append(State.OPEN)
        self._keys.append(key)
        self._partitions.append(-1)
        self._offsets.append(-1)
        return tag

    def acknowledged(self, counter: int, *, partition: int, offset: int) -> None:
        """Record that the caller got this place."""
        self._tell(counter, State.ACKED)
        self._partitions[counter] = partition
        self._offsets[counter] = offset

    def failed(self, counter: int, *, maybe_written: bool) -> None:
        """Record that the caller got an error."""
        self._tell(counter, State.UNKNOWN if maybe_written else State.FAILED)

    def state(self, counter: int) -> State:
        """The outcome of a record."""
        return State(self._states[counter])

    def place(self, counter: int) -> tuple[int, int]:
        """The partition and offset that the caller got."""
        return self._partitions[counter], self._offsets[counter]

    def tag(self, counter: int) -> Tag:
        """The tag of a record that was sent."""
        return Tag(self.writer, self._keys[counter], counter)

    def acked_since(self, counter: int) -> int:
        """How many of the records from `counter` on were acknowledged."""
        return self._states.count(State.ACKED, counter)

    def all_told_before(self, counter: int) -> bool:
        """Whether every record before `counter` has its outcome."""
        return self._states.find(State.OPEN, 0, counter) < 0

    def _tell(self, counter: int, state: State) -> None:
        assert self._states[counter] == State.OPEN, f"record {counter} of writer {self.writer} has two outcomes"
        self._states[counter] = state
        self.told[state] += 1


class Verdict:
    """The result of a check. Clean if nothing contradicts."""

    def __init__(self) -> None:
        self.found: Counter[Kind] = Counter()
        self.examples: dict[Kind, list[str]] = defaultdict(list)
        self.told: Counter[State] = Counter()
        self.read = 0
        self.arrived = 0
        """Records of unknown outcome that are in the log: allowed, and worth knowing."""

    def find(self, kind: Kind, example: str) -> None:
        """Add a contradiction."""
        self.found[kind] += 1
        if len(self.examples[kind]) < _EXAMPLES:
            self.examples[kind].append(example)

    @property
    def clean(self) -> bool:
        """Whether all outcomes are true."""
        return not self.found

    def __str__(self) -> str:
        outcomes = ", ".join(f"{self.told[state]:,} {state.name.lower()}" for state in State if self.told[state])
        summary = f"{self.read:,} records read; outcomes: {outcomes or 'none'}"
        lines = [f"{summary}; {self.arrived:,} of unknown outcome arrived"]
        for kind, count in self.found.items():
            lines.append(f"{count:,} x {kind.name}: {kind}: {'; '.join(self.examples[kind])}")
        return "\n  ".join(lines)


def check(histories: Sequence[History], log: Iterable[LogRecord]) -> Verdict:
    """Compare. The log comes partition by partition or mixed, ascending within each partition."""
    verdict = Verdict()
    history_of = {history.writer: history for history in histories}
    seen = {history.writer: bytearray(len(history)) for history in histories}
    is_at_place = {history.writer: bytearray(len(history)) for history in histories}
    last_counter: dict[tuple[int, int], int] = {}
    partition_of_key: dict[int, int] = {}
    for record in log:
        verdict.read += 1
        tag = _sent_tag(history_of, record)
        if tag is None:
            verdict.find(Kind.PHANTOM, f"{record}")
            continue
        _check_order(verdict, last_counter, partition_of_key, tag, record)
        history, times = history_of[tag.writer], seen[tag.writer]
        times[tag.counter] = min(255, times[tag.counter] + 1)
        if times[tag.counter] > 1:
            verdict.find(Kind.DUPLICATE, f"{tag} also at {record.partition}@{record.offset}")
        if history.place(tag.counter) == (record.partition, record.offset):
            is_at_place[tag.writer][tag.counter] = 1
    for history in histories:
        for counter, (present, at_place) in enumerate(
            zip(seen[history.writer], is_at_place[history.writer], strict=True)
        ):
            _check_outcome(verdict, history, counter, there=bool(present), right=bool(at_place))
    return verdict


def _sent_tag(history_of: dict[int, History], record: LogRecord) -> Tag | None:
    tag = Tag.of(record.value)
    if tag is None or tag.writer not in history_of or not 0 <= tag.counter < len(history_of[tag.writer]):
        return None
    return tag if history_of[tag.writer].tag(tag.counter) == tag and tag.key_bytes() == record.key else None


def _check_order(
    verdict: Verdict, last: dict[tuple[int, int], int], homes: dict[int, int], tag: Tag, record: LogRecord
) -> None:
    before = last.get((tag.writer, record.partition), -1)
    if tag.counter < before:
        verdict.find(Kind.REORDERED, f"{tag} at {record.partition}@{record.offset}, behind its {before}")
    last[tag.writer, record.partition] = max(before, tag.counter)
    if tag.key != UNKEYED and homes.setdefault(tag.key, record.partition) != record.partition:
        verdict.find(Kind.SCATTERED, f"{tag} in {record.partition}, others in {homes[tag.key]}")


def _check_outcome(verdict: Verdict, history: History, counter: int, *, there: bool, right: bool) -> None:
    state = history.state(counter)
    verdict.told[state] += 1
    kind = None
    if state is State.OPEN:
        kind = Kind.OPEN
    elif state is State.ACKED and not right:
        kind = Kind.MISACKED if there else Kind.LOST
    elif state is State.FAILED and there:
        kind = Kind.REVIVED
    elif state is State.UNKNOWN and there:
        verdict.arrived += 1
    if kind is not None:
        partition, offset = history.place(counter)
        verdict.find(kind, f"{history.tag(counter)}, told {partition}@{offset}")


def read_log(bootstrap: str, topic: str, *, partitions: int, seconds: float = 60.0) -> Iterator[LogRecord]:
    """Yield every record of every partition, read by a new confluent-kafka consumer."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False, "check.crcs": True}
    )
    deadline = time.monotonic() + seconds
    with closing(consumer):
        tps = [confluent_kafka.TopicPartition(topic, number, 0) for number in range(partitions)]
        ends = {tp.partition: consumer.get_watermark_offsets(tp, timeout=seconds)[1] for tp in tps}
        unread = {number for number, end in ends.items() if end > 0}
        consumer.assign([tp for tp in tps if tp.partition in unread])
        while unread:
            for message in consumer.consume(10_000, 0.5):
                assert message.error() is None, message.error()
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                if offset < ends[partition]:
                    yield LogRecord(partition, offset, message.key(), message.value())
                if offset >= ends[partition] - 1:
                    unread.discard(partition)
            assert time.monotonic() < deadline, f"the partitions {unread} of {topic} were not read in {seconds} s"
