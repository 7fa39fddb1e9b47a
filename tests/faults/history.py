"""What was sent and what became of it, compared with what a reader that is not ours finds in the log afterwards.

In come the outcomes that a producer told its callers, and the records of every partition from beginning to end; out
goes a verdict that names each way in which the two contradict one another. A fault never excuses a finding.
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
    """What the caller was told."""

    OPEN = 0
    ACKED = 1
    FAILED = 2
    """It is not in the log."""
    UNKNOWN = 3
    """It failed and may be in the log."""


class Kind(StrEnum):
    """Contradictions between what was told and what is there."""

    LOST = "acknowledged and not in the log"
    MISACKED = "acknowledged for another place than it is at"
    DUPLICATE = "in the log more than once"
    REORDERED = "behind a record that its thread sent later"
    PHANTOM = "in the log and never sent like that"
    SCATTERED = "one key in several partitions"
    REVIVED = "said to be certainly not in the log, and there"
    OPEN = "without an outcome"


class Tag(NamedTuple):
    """What a record's value says of it; `counter` counts all records of its writer."""

    writer: int
    key: int
    counter: int

    def key_bytes(self) -> bytes | None:
        """The record's key."""
        return None if self.key == UNKEYED else b"key-%d" % self.key

    def value_bytes(self, padding: int = 0) -> bytes:
        """The record's value, with so many bytes behind it."""
        return b"%d|%d|%d|" % self + b"." * padding

    @classmethod
    def of(cls, value: bytes | None) -> Tag | None:
        """The tag in a value; None when there is none."""
        try:
            writer, key, counter, padding = (value or b"").split(b"|")
            return None if padding.strip(b".") else cls(int(writer), int(key), int(counter))
        except ValueError:
            return None


class Found(NamedTuple):
    """A record in the log."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class History:
    """Everything that one thread sent, compactly: a quarter of an hour has a million records."""

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
        """Memory that is taken by the history itself."""
        return len(self) * (1 + 1 + 2 + 8)

    def sending(self, key: int) -> Tag:
        """The next record."""
        tag = Tag(self.writer, key, len(self))
        self._states.append(State.OPEN)
        self._keys.append(key)
        self._partitions.append(-1)
        self._offsets.append(-1)
        return tag

    def acknowledged(self, counter: int, *, partition: int, offset: int) -> None:
        """The caller was told where it is."""
        self._tell(counter, State.ACKED)
        self._partitions[counter] = partition
        self._offsets[counter] = offset

    def failed(self, counter: int, *, maybe_written: bool) -> None:
        """The caller was told that it was not delivered."""
        self._tell(counter, State.UNKNOWN if maybe_written else State.FAILED)

    def state(self, counter: int) -> State:
        """What was told of a record."""
        return State(self._states[counter])

    def place(self, counter: int) -> tuple[int, int]:
        """The partition and offset that were told."""
        return self._partitions[counter], self._offsets[counter]

    def tag(self, counter: int) -> Tag:
        """Of a record that was sent."""
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
    """What a check found. Clean when nothing contradicts."""

    def __init__(self) -> None:
        self.found: Counter[Kind] = Counter()
        self.examples: dict[Kind, list[str]] = defaultdict(list)
        self.told: Counter[State] = Counter()
        self.read = 0
        self.arrived = 0
        """Records of unknown outcome that are in the log: allowed, and worth knowing."""

    def find(self, kind: Kind, what: str) -> None:
        """One more contradiction."""
        self.found[kind] += 1
        if len(self.examples[kind]) < _EXAMPLES:
            self.examples[kind].append(what)

    @property
    def clean(self) -> bool:
        """Whether all that was told is true."""
        return not self.found

    def __str__(self) -> str:
        told = ", ".join(f"{self.told[state]:,} {state.name.lower()}" for state in State if self.told[state])
        lines = [f"{self.read:,} records read; told: {told or 'nothing'}; {self.arrived:,} of unknown outcome arrived"]
        for kind, count in self.found.items():
            lines.append(f"{count:,} x {kind.name}: {kind}: {'; '.join(self.examples[kind])}")
        return "\n  ".join(lines)


def check(histories: Sequence[History], log: Iterable[Found]) -> Verdict:
    """Compares. The log comes partition by partition or mixed, ascending within each."""
    verdict = Verdict()
    of = {history.writer: history for history in histories}
    seen = {history.writer: bytearray(len(history)) for history in histories}
    right = {history.writer: bytearray(len(history)) for history in histories}
    last: dict[tuple[int, int], int] = {}
    homes: dict[int, int] = {}
    for found in log:
        verdict.read += 1
        tag = _sent_tag(of, found)
        if tag is None:
            verdict.find(Kind.PHANTOM, f"{found}")
            continue
        _check_order(verdict, last, homes, tag, found)
        history, times = of[tag.writer], seen[tag.writer]
        times[tag.counter] = min(255, times[tag.counter] + 1)
        if times[tag.counter] > 1:
            verdict.find(Kind.DUPLICATE, f"{tag} also at {found.partition}@{found.offset}")
        if history.place(tag.counter) == (found.partition, found.offset):
            right[tag.writer][tag.counter] = 1
    for history in histories:
        for counter, (there, placed) in enumerate(zip(seen[history.writer], right[history.writer], strict=True)):
            _check_outcome(verdict, history, counter, there=bool(there), right=bool(placed))
    return verdict


def _sent_tag(of: dict[int, History], found: Found) -> Tag | None:
    tag = Tag.of(found.value)
    if tag is None or tag.writer not in of or not 0 <= tag.counter < len(of[tag.writer]):
        return None
    return tag if of[tag.writer].tag(tag.counter) == tag and tag.key_bytes() == found.key else None


def _check_order(
    verdict: Verdict, last: dict[tuple[int, int], int], homes: dict[int, int], tag: Tag, found: Found
) -> None:
    before = last.get((tag.writer, found.partition), -1)
    if tag.counter < before:
        verdict.find(Kind.REORDERED, f"{tag} at {found.partition}@{found.offset}, behind its {before}")
    last[tag.writer, found.partition] = max(before, tag.counter)
    if tag.key != UNKEYED and homes.setdefault(tag.key, found.partition) != found.partition:
        verdict.find(Kind.SCATTERED, f"{tag} in {found.partition}, others in {homes[tag.key]}")


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


def read_log(bootstrap: str, topic: str, *, partitions: int, seconds: float = 60.0) -> Iterator[Found]:
    """Every record of every partition, by a fresh confluent-kafka consumer that assigns them itself."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False, "check.crcs": True}
    )
    deadline = time.monotonic() + seconds
    with closing(consumer):
        places = [confluent_kafka.TopicPartition(topic, number, 0) for number in range(partitions)]
        ends = {place.partition: consumer.get_watermark_offsets(place, timeout=seconds)[1] for place in places}
        left = {number for number, end in ends.items() if end > 0}
        consumer.assign([place for place in places if place.partition in left])
        while left:
            for message in consumer.consume(10_000, 0.5):
                assert message.error() is None, message.error()
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                if offset < ends[partition]:
                    yield Found(partition, offset, message.key(), message.value())
                if offset >= ends[partition] - 1:
                    left.discard(partition)
            assert time.monotonic() < deadline, f"the partitions {left} of {topic} were not read in {seconds} s"
