"""Translates the committed offsets of consumer groups from one side of a link to the other.

Comes in: what groups have committed on one side, the exact map of offsets, and what they have committed on the other.
Goes out: what to commit there, and why some offsets are left alone. A group with members is never touched, and an
offset never goes back unless the original did. `decide` and `translate` are pure; `GroupSync` does it on clusters.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from ottla.admin import Admin, Committed
from ottla.errors import BrokerError, ErrorCode
from ottla.jobs.mirror_maps import PartitionMap
from ottla.mirror.journal import Journal
from ottla.model import TopicPartition
from ottla.net.cluster import Cluster

_NOTES = {False: "group", True: "group-back"}


class Outcome(Enum):
    """What became of one offset of a group."""

    COMMITTED = "committed"
    WOULD_COMMIT = "would commit"
    """Nothing was to be written."""
    UP_TO_DATE = "up to date"
    NOT_MIRRORED = "not mirrored yet"
    BEFORE_MIRROR = "before the mirror"
    """It lies before the first mirrored record."""
    AHEAD = "ahead there"
    """The group has committed a higher offset there."""
    IN_USE = "in use there"
    """The group has members there: it waits."""
    NO_TOPIC = "no topic there"
    """It waits for the topic."""


_SETTLED = (Outcome.COMMITTED, Outcome.UP_TO_DATE)
"""Both sides stand at the same record. That is remembered, so that the next step back of the original is known as one,
also if a consumer, and not a translation, brought the other side there."""


class Move(NamedTuple):
    """The offset of a group in one partition, and where it belongs on the other side."""

    group: str
    source: TopicPartition
    target: TopicPartition
    source_offset: int | None
    target_offset: int | None
    before: int | None
    """What the group had committed on the side that is written."""
    outcome: Outcome

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "group": self.group,
            "topic": self.source.topic,
            "partition": self.source.partition,
            "target_topic": self.target.topic,
            "target_partition": self.target.partition,
            "source_offset": self.source_offset,
            "target_offset": self.target_offset,
            "before": self.before,
            "outcome": self.outcome.name.lower(),
        }


class Last(NamedTuple):
    """What was translated last: the original offset and what it became."""

    origin: int
    result: int


def decide(origin: int, goal: int | None, before: int | None, last: Last | None) -> Outcome:
    """Return whether to commit `goal`, the translation of the offset `origin`, over what is committed there.

    Going back is for originals that went back since the last translation, and only if the result of that one is still
    what is committed: otherwise a consumer has moved it since.
    """
    if goal is None:
        return Outcome.NOT_MIRRORED
    if before is None or goal > before:
        return Outcome.COMMITTED
    if goal == before:
        return Outcome.UP_TO_DATE
    has_gone_back = last is not None and before == last.result and origin < last.origin
    return Outcome.COMMITTED if has_gone_back else Outcome.AHEAD


def translate(
    group: str,
    committed: Mapping[TopicPartition, Committed],
    present: Mapping[TopicPartition, Committed],
    maps: Iterable[PartitionMap],
    last: Mapping[TopicPartition, Last],
    *,
    topics: Collection[str] | None = None,
    reverse: bool = False,
) -> list[Move]:
    """Return what becomes of each offset that a group has committed.

    `committed` is from the side that is read (the source, unless `reverse`), `present` and `last` are by partitions of
    the side that is written. `topics` are those that exist there; None for all.
    """
    moves = []
    for each in maps:
        origin, goal_tp = (each.target, each.source) if reverse else (each.source, each.target)
        offset = committed.get(origin)
        if offset is None:
            continue
        goal = each.to_source(offset.offset) if reverse else each.to_target(offset.offset)
        before = present[goal_tp].offset if goal_tp in present else None
        outcome = decide(offset.offset, goal, before, last.get(goal_tp))
        if goal is None and (reverse or offset.offset < each.first):
            outcome = Outcome.BEFORE_MIRROR
        if topics is not None and goal_tp.topic not in topics:
            outcome = Outcome.NO_TOPIC
        source_offset, target_offset = (goal, offset.offset) if reverse else (offset.offset, goal)
        moves.append(Move(group, each.source, each.target, source_offset, target_offset, before, outcome))
    return moves


def chosen(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Return the groups that match a name or a pattern with `*` and `?`, sorted."""
    return sorted(
        {name for name in names if name in patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)}
    )


@dataclass(slots=True)
class GroupSync:
    """Translates groups of a link: from the source to the target or, with `reverse`, the way back."""

    source: Cluster
    target: Cluster
    journal: Journal
    patterns: Sequence[str]
    reverse: bool = False

    def run(
        self,
        maps: Sequence[PartitionMap],
        *,
        dry_run: bool = False,
        refused: Callable[[str, BrokerError], None] | None = None,
    ) -> list[Move]:
        """Translate everything that the groups have committed in mirrored partitions, once.

        A group that brokers refuse does not hold up the others: `refused` is called with its name and the error.
        Without `refused`, the first such error is raised at the end. Raises the errors of `Cluster.call` if the brokers
        of a side do not answer.
        """
        moves: list[Move] = []
        errors: list[BrokerError] = []
        reads, writes = (self.target, self.source) if self.reverse else (self.source, self.target)
        names = chosen((group.name for group in Admin(reads).groups.list_groups()), self.patterns)
        topics = Admin(writes).topic_names() if names else []
        for group in names:
            try:
                moves += self._sync(group, Admin(reads), Admin(writes), maps, topics, dry_run=dry_run)
            except BrokerError as error:
                errors.append(error)
                if refused is not None:
                    refused(group, error)
        if errors and refused is None:
            raise errors[0]
        return moves

    def _sync(
        self,
        group: str,
        reads: Admin,
        writes: Admin,
        maps: Sequence[PartitionMap],
        topics: Collection[str],
        *,
        dry_run: bool,
    ) -> list[Move]:
        origins = {(each.target if self.reverse else each.source) for each in maps}
        committed = {tp: value for tp, value in reads.groups.committed(group).items() if tp in origins}
        if not committed:
            return []
        present = writes.groups.committed(group)
        last = self._last(group)
        moves = translate(group, committed, present, maps, last, topics=topics, reverse=self.reverse)
        wanted = [move for move in moves if move.outcome is Outcome.COMMITTED]
        if dry_run:
            return [move._replace(outcome=Outcome.WOULD_COMMIT) if move in wanted else move for move in moves]
        if wanted:
            refusal = self._commit(group, writes, wanted, committed)
            if refusal is not None:
                return [move._replace(outcome=refusal) if move in wanted else move for move in moves]
        now = {**last, **dict(_as_last(move, self.reverse) for move in moves if move.outcome in _SETTLED)}
        if now != last:
            self._remember(group, now)
        return moves

    def _commit(
        self, group: str, writes: Admin, wanted: Iterable[Move], committed: Mapping[TopicPartition, Committed]
    ) -> Outcome | None:
        """Commit translated offsets. Returns why the brokers do not take them now, None if they did."""
        offsets = {_written(move, self.reverse): _committed(move, committed, self.reverse) for move in wanted}
        try:
            writes.groups.set_offsets(group, offsets)
        except BrokerError as error:
            refusal = _refusal(error)
            if refusal is None:
                raise
            return refusal
        return None

    def _last(self, group: str) -> dict[TopicPartition, Last]:
        """Return what was translated last, from the journal."""
        note = self.journal.note(f"{_NOTES[self.reverse]}/{group}") or {}
        try:
            return {
                TopicPartition(topic, int(number)): Last(int(origin), int(result))
                for topic, number, origin, result in note.get("offsets", ())
            }
        except (TypeError, ValueError):
            return {}

    def _remember(self, group: str, last: Mapping[TopicPartition, Last]) -> None:
        rows = [[*tp, *offsets] for tp, offsets in sorted(last.items())]
        self.journal.write_note(f"{_NOTES[self.reverse]}/{group}", {"offsets": rows})


def _written(move: Move, reverse: bool) -> TopicPartition:
    return move.source if reverse else move.target


def _as_last(move: Move, reverse: bool) -> tuple[TopicPartition, Last]:
    origin, result = (move.target_offset, move.source_offset) if reverse else (move.source_offset, move.target_offset)
    assert origin is not None
    assert result is not None
    return _written(move, reverse), Last(origin, result)


def _committed(move: Move, committed: Mapping[TopicPartition, Committed], reverse: bool) -> Committed:
    offset = move.source_offset if reverse else move.target_offset
    assert offset is not None
    # The leader epoch is one of the other cluster; the metadata belongs to the consumer.
    return Committed(offset, metadata=committed[move.target if reverse else move.source].metadata)


def _refusal(error: BrokerError) -> Outcome | None:
    if error.code in (ErrorCode.non_empty_group, ErrorCode.unknown_member_id, ErrorCode.rebalance_in_progress):
        return Outcome.IN_USE
    return Outcome.NO_TOPIC if error.code is ErrorCode.unknown_topic_or_partition else None
