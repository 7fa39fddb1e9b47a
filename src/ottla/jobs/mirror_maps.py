"""The maps of a link: for each mirrored partition, which offset of the source is which offset of the target.

The journal and, for the latest seconds, the headers of the target's last batches come in. Out go `PartitionMap` values,
which translate offsets exactly or say that they cannot. It writes nothing and needs no running mirror.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from ottla.admin import Admin, OffsetSpec
from ottla.fetch.reader import Reader
from ottla.mirror.journal import Entry, Journal
from ottla.mirror.terms import Mark, OffsetMap, Term
from ottla.model import Isolation, OffsetRange, TopicPartition
from ottla.net.cluster import Cluster
from ottla.wire.batch import BatchHeader


@dataclass(frozen=True, slots=True)
class PartitionMap:
    """The exact map of one partition, as far as it is known."""

    source: TopicPartition
    target: TopicPartition
    terms: tuple[Term, ...]
    reached: int = 0
    """The source offset before which everything is mirrored. There may be no record right before it: markers of
    transactions and compaction leave gaps, which the journal does not see."""
    offsets: OffsetMap = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "offsets", OffsetMap(self.terms))
        object.__setattr__(self, "reached", max(self.reached, self.terms[-1].reached.source))

    @property
    def first(self) -> int:
        """The source offset at which the map begins."""
        spans = self.offsets.spans
        return min((span.source for span in spans), default=self.terms[0].start.source)

    def to_target(self, source: int) -> int | None:
        """Return where a reader of the source at this offset continues at the target.

        None if the offset is not mirrored yet, or lies before the map begins.
        """
        offset = self.offsets.target_of(source)
        if offset is None and max(self.first, self.offsets.source_end) <= source <= self.reached:
            return self.offsets.target_end or self.terms[-1].start.target
        return offset

    def to_source(self, target: int) -> int | None:
        """Return where a reader of the target at this offset continues at the source; None before the map begins."""
        return self.offsets.source_of(target)


def known_maps(journal: Journal, reached: dict[TopicPartition, int] | None = None) -> list[PartitionMap]:
    """Return the maps as the journal has them: up to a few seconds ago. `reached` is by source partition."""
    return [_map(entries, reached or {}) for entries in journal.all_entries().values()]


def settled_maps(
    journal: Journal, target: Cluster, selected: Iterable[PartitionMap] | None = None
) -> list[PartitionMap]:
    """Return the maps up to the end of the target's log: batches that the journal does not count yet are read.

    `selected` are maps of `known_maps`; None stands for all. The map of a topic that was deleted stays as it is.
    """
    maps = known_maps(journal) if selected is None else list(selected)
    existing = set(Admin(target).topic_names()) if maps else set()
    present = [each.target for each in maps if each.target.topic in existing]
    ends = Admin(target).list_offsets(present, OffsetSpec.LATEST) if present else {}
    settled = []
    for each in maps:
        start = each.terms[-1].reached.target
        stop = ends[each.target].offset if each.target in ends else start
        if stop > start:
            term = settle(each.terms[-1], _headers(target, OffsetRange(*each.target, start, stop)))
            each = replace(each, terms=(*each.terms[:-1], term))
        settled.append(each)
    return settled


def settle(term: Term, headers: Iterable[BatchHeader]) -> Term:
    """Return the last term with a mark behind the last of its batches in `headers`, which begin at its present mark.

    It stops before a batch that does not lie where the term's runs say: what a foreign writer has shifted is counted
    only once the mirror has noted it.
    """
    mark = term.reached
    for header in headers:
        if header.is_control or not header.count:
            continue
        if (header.producer_id, header.producer_epoch) != term.identity:
            break
        number = replace(term, mark=mark).number_after(header.base_sequence, header.count)
        run = next((run for run in reversed(term.runs) if run.number <= number - header.count), None)
        if run is None or header.base_offset != run.target + number - header.count - run.number:
            break
        mark = Mark(number, term.source_after(number)[0], header.next_offset)
    return replace(term, mark=mark)


def _map(entries: Sequence[Entry], reached: dict[TopicPartition, int]) -> PartitionMap:
    source, target = entries[-1].source, entries[-1].target
    return PartitionMap(source, target, tuple(entry.term for entry in entries), reached.get(source, 0))


def _headers(cluster: Cluster, unit: OffsetRange) -> list[BatchHeader]:
    reader = Reader(cluster, isolation=Isolation.READ_UNCOMMITTED)
    try:
        with closing(reader.batches(unit)) as batches:
            return [raw.batch.header for raw in batches if raw.batch.header.base_offset >= unit.start]
    finally:
        reader.close()
