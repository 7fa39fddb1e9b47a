"""Writes the journal beside a forwarder's loop: runs that batches wait for at once, marks from time to time.

Lanes come in; their entries go to the journal, in the background and one write at a time, and the lanes learn when
theirs are acknowledged. It decides nothing about batches.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ottla.config import Retry
from ottla.errors import OttlaError
from ottla.mirror.journal import Entry, Journal
from ottla.mirror.lane import Entry as LaneEntry
from ottla.mirror.lane import Lane
from ottla.net.background import BackgroundTasks

_TASK = "journal"


class _Row(NamedTuple):
    lane: Lane
    entry: Entry
    lane_entry: LaneEntry


class Journaling:
    """Only for the loop's thread, except `write_marks`."""

    def __init__(self, journal: Journal, background: BackgroundTasks, retry: Retry, chance: random.Random) -> None:
        self._journal = journal
        self._background = background
        self._retry = retry
        self._chance = chance
        self._resume_at = 0.0
        self._failures = 0

    def is_ready(self, now: float) -> bool:
        """Whether another write may begin."""
        return now >= self._resume_at and not self._background.busy(_TASK)

    def write(self, lanes: Iterable[Lane]) -> None:
        """Write what these lanes have, in the background."""
        rows = rows_of(lanes)
        if rows:
            self._background.run(
                _TASK,
                lambda: self._journal.write([row.entry for row in rows]),
                done=lambda _: self._written(rows),
                failed=lambda error: self._failed(rows, error),
            )

    def write_marks(self, rows: Sequence[_Row], *, seconds: float) -> None:
        """Write at once, at the end. A failure is harmless: marks only save time at the next start."""
        try:
            if rows:
                self._journal.write([row.entry for row in rows], timeout=seconds)
        except OttlaError:
            pass

    def _written(self, rows: Sequence[_Row]) -> None:
        self._failures = 0
        for row in rows:
            row.lane.journaled(row.lane_entry)

    def _failed(self, rows: Sequence[_Row], error: OttlaError) -> None:
        self._failures += 1
        self._resume_at = time.monotonic() + self._retry.wait(self._failures, self._chance.random())
        for row in rows:
            row.lane.error = error


def rows_of(lanes: Iterable[Lane]) -> list[_Row]:
    """Return what is to be written for each lane that holds its partition."""
    rows = []
    for lane in dict.fromkeys(lanes):
        if lane.term is not None:
            entry = lane.entry()
            rows.append(_Row(lane, Entry(lane.source, lane.target, entry.term), entry))
    return rows
