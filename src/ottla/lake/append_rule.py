"""What of that which tasks have done may follow what an archive has: the rule that makes it exactly once. Pure.

Positions, results and gaps come in; what is new, what was there already and the next positions go out, or a
`LakeConflict` that says which offsets are due.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ottla.errors import LakeConflict
from ottla.lake.values import Archived, Gap, LakeFile
from ottla.model import TopicPartition

Positions = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Step:
    """What the next entry is made of."""

    accepted: tuple[Archived, ...]
    superseded: tuple[LakeFile, ...]
    """Staged files of ranges that are in the archive already."""
    gaps: tuple[Gap, ...]
    positions: dict[TopicPartition, int]

    def is_empty(self, known: Positions) -> bool:
        """Whether an entry would say nothing new."""
        return not self.accepted and self.positions == known


def step(known: Positions, done: Iterable[Archived], *, gaps: Sequence[Gap], starts: Positions, root: object) -> Step:
    """The next step from the `known` positions; `done` is in the order of ranges."""
    positions = {**starts, **known}
    accepted: list[Archived] = []
    superseded: list[LakeFile] = []
    used: list[Gap] = []
    lost = sorted(gaps, key=lambda one: one.range)
    for one in done:
        span = one.receipt.range
        due = _pass(positions, span.topic_partition, lost, used)
        if due is not None and span.stop <= due:
            superseded += one.files
            continue
        if due is not None and span.start != due:
            raise LakeConflict(
                root,
                f"{span} does not follow: the next offset of {span.topic_partition} there is {due}."
                + (
                    " Another archiver was faster"
                    if span.start < due
                    else f" Offsets [{due}, {span.start}) would be missing; is this the checkpoint of another archive?"
                ),
            )
        accepted.append(one)
        positions[span.topic_partition] = span.stop
    for at in {gap.range.topic_partition for gap in lost}:
        _pass(positions, at, lost, used)
    return Step(tuple(accepted), tuple(superseded), tuple(used), positions)


def _pass(positions: dict[TopicPartition, int], at: TopicPartition, lost: list[Gap], used: list[Gap]) -> int | None:
    """Goes over the gaps that begin where the archive ends; returns the offset that is due then."""
    for gap in [gap for gap in lost if gap.range.topic_partition == at]:
        if positions.get(at) == gap.range.start and len(gap.range):
            positions[at] = gap.range.stop
            used.append(gap)
            lost.remove(gap)
    return positions.get(at)
