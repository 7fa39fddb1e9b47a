"""How the rows of one call, a list or a table, are handed in: slice by slice, as there is room.

Checked rows come in; handovers go out to the intake, oversize records to the program. Whatever is raised says how many
rows were accepted: always the first ones. This module reads no table and waits for nothing but room.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from operator import itemgetter

from ottla.errors import RecordTooLarge
from ottla.produce import records as checks
from ottla.produce.delivery import Shipment
from ottla.produce.intake import Handover, Intake
from ottla.produce.options import Oversize, SettingsByTopic

_SLICE_BYTES = 8 << 20
"""How much of a table is handed over at once."""


class BulkCall:
    """One call. All its rows belong to the transaction in which it began."""

    def __init__(
        self,
        intake: Intake,
        topics: SettingsByTopic,
        *,
        transaction: int,
        usable: Callable[[], None],
        lasts: Callable[[], None],
    ) -> None:
        self._intake = intake
        self._topics = topics
        self._transaction = transaction
        self._usable = usable
        """Raises if no more rows can be accepted."""
        self._lasts = lasts
        """Raises if the transaction is over."""

    def sized(self, rows: checks.Rows, noun: str, *, first: int = 0) -> checks.Rows:
        """Note which rows are too large. Raises `RecordTooLarge` if there is one and no `on_oversize`."""
        settings = self._topics.settings(rows.topic)
        limit = settings.max_record_bytes
        if checks.most_bytes(rows.columns) <= limit:
            return rows
        large = [(int(rows.numbers[index]), size) for index, size in checks.oversize_rows(rows.columns, limit)]
        if large and settings.on_oversize is None:
            number, size = large[0]
            raise RecordTooLarge(f"{noun} {first + number}", size_bytes=size, limit_bytes=limit)
        return rows._replace(oversize=tuple(large))

    def hand_in(self, all_rows: list[checks.Rows], *, first: int = 0) -> list[Shipment]:
        """Hand rows in slice by slice, all topics at once: what is raised has in `accepted` how many were accepted.

        `first` is the number of the first row in the call.
        """
        shipments: list[Shipment] = []
        accepted = 0
        try:
            for part, pieces in checks.slices(all_rows, _SLICE_BYTES):
                self._intake.wait_for_room(self._usable)
                self._usable()  # also if there was room: the last slice may be long ago
                error = None
                if any(rows.oversize for rows in pieces):
                    part, error = self._divert(part, pieces)
                    pieces = [checks.without_oversize(rows.within(part)) for rows in pieces]
                    self._lasts()  # `on_oversize` may take its time; but what it has got counts as accepted
                shipments += self._hand_over(pieces, first)
                accepted = part.stop
                if error is not None:
                    raise error
        except Exception as error:
            vars(error)["accepted"] = accepted
            raise
        return shipments

    def _divert(self, part: range, pieces: list[checks.Rows]) -> tuple[range, Exception | None]:
        """Hand the oversize rows of a slice to `on_oversize`.

        Returns the rows before the one for which it raised, or all: what was diverted must not be diverted again.
        """
        large = [(number, size, rows) for rows in pieces for number, size in rows.oversize]
        for number, size, rows in sorted(large, key=itemgetter(0)):
            settings = self._topics.settings(rows.topic)
            assert settings.on_oversize is not None
            key, value = checks.row(rows.columns, rows.index_of(number))
            try:
                settings.on_oversize(Oversize(rows.topic, key, value, size, settings.max_record_bytes))
            except Exception as error:
                return range(part.start, number), error
        return part, None

    def _hand_over(self, pieces: list[checks.Rows], first: int) -> list[Shipment]:
        """Hand over the rows of a slice, all of them or none."""
        now, created = time.monotonic(), time.time()
        handovers: list[Handover] = []
        for rows in pieces:
            if not rows.columns.count:
                continue  # all of them were diverted
            shipment = Shipment(rows.topic)
            shipment.count = rows.columns.count
            shipment.numbers = checks.shifted(rows.numbers, first)
            handover = Handover(rows.topic, shipment, rows.columns, rows.partitions, now, created)
            handover.transaction = self._transaction
            handovers.append(handover)
        if handovers:
            self._intake.hand_over(*handovers)
        return [handover.shipment for handover in handovers]
