"""Decides which finished ranges may be appended to an archive. This rule is what makes an archive exactly-once.

Positions, results of tasks and gaps come in. A `Step` goes out: what is new, what the archive has already, and the next
positions; or a `LakeConflict` that names the offsets that are due. Pure.
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
    """The content of the next ledger entry."""

    accepted: tuple[Archived, ...]
    superseded: tuple[LakeFile, ...]
    """Staged files of ranges that the archive already has."""
    gaps: tuple[Gap, ...]
    positions: dict[TopicPartition, int]

    def is_empty(self, known: Positions) -> bool:
        """Return whether an entry would contain nothing new."""
        return not self.accepted and self.positions == known


def step(known: Positions, done: Iterable[Archived], *, gaps: Sequence[Gap], starts: Positions, root: object) -> Step:
    """Return the next step from the `known` positions. `done` must be sorted by range.

    `starts` has positions for partitions that are not known yet. Raises `LakeConflict` if a range neither starts where
    the archive ends nor is in it already.
    """
    positions = {**starts, **known}
    accepted: list[Archived] = []
    superseded: list[LakeFile] = []
    used: list[Gap] = []
    unused = sorted(gaps, key=lambda gap: gap.range)
    for result in done:
        span = result.receipt.range
        due = _skip_gaps(positions, span.topic_partition, unused, used)
        if due is not None and span.stop <= due:
            superseded += result.files
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
        accepted.append(result)
        positions[span.topic_partition] = span.stop
    for partition in {gap.range.topic_partition for gap in unused}:
        _skip_gaps(positions, partition, unused, used)
    return Step(tuple(accepted), tuple(superseded), tuple(used), positions)


def _skip_gaps(
    positions: dict[TopicPartition, int], partition: TopicPartition, unused: list[Gap], used: list[Gap]
) -> int | None:
    """Advance the position over gaps that start where the archive ends. Return the offset that is due then."""
    for gap in [gap for gap in unused if gap.range.topic_partition == partition]:
        if positions.get(partition) == gap.range.start and len(gap.range):
            positions[partition] = gap.range.stop
            used.append(gap)
            unused.remove(gap)
    return positions.get(partition)
