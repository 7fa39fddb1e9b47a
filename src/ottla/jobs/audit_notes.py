"""Reads an audit topic, here or as a job on an engine: each task reads one range of it and returns its tallies."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ottla.audit.notes import Notes
from ottla.engines.contract import Engine
from ottla.errors import BrokerError, ErrorCode, InputError
from ottla.jobs.brokers import Brokers
from ottla.model import OffsetRange
from ottla.plan import cut


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadNotes:
    """Reads the tallies in a range of an audit topic."""

    brokers: Brokers
    topics: frozenset[str] | None = None
    tiers: frozenset[str] | None = None

    def __call__(self, span: OffsetRange) -> Notes:
        """Return the tallies of the range. Raises as `Reader` does."""
        notes = Notes()
        with self.brokers.reader() as reader:
            for records in reader.read(span, columns=("value",)):
                for value in records.column("value").to_pylist():
                    notes.add_value(value)
        wanted = Notes(unreadable=notes.unreadable)
        for tally in notes.selected(topics=self.topics, tiers=self.tiers):
            wanted.add(tally)
        return wanted


def read_notes(
    brokers: Brokers,
    audit_topic: str,
    *,
    topics: Collection[str] | None = None,
    tiers: Collection[str] | None = None,
    engine: Engine | None = None,
    tasks: int = 1,
) -> Notes:
    """Return the tallies of an audit topic.

    Raises `InputError` if the topic does not exist, and the errors of `Reader` if brokers cannot be reached.
    """
    job = ReadNotes(
        brokers=brokers,
        topics=None if topics is None else frozenset(topics),
        tiers=None if tiers is None else frozenset(tiers),
    )
    with brokers.reader() as reader:
        try:
            ranges = [span for span in reader.ranges(audit_topic) if len(span)]
        except BrokerError as error:
            if error.code is ErrorCode.unknown_topic_or_partition:
                raise InputError(f"there is no audit topic {audit_topic}: nothing has published tallies yet") from error
            raise
    notes = Notes()
    if engine is None:
        for span in ranges:
            notes.merge(job(span))
        return notes
    for part in engine(job, cut(ranges, at_least=tasks)):
        notes.merge(part)
    return notes
