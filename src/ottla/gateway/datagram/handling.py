"""What happens to messages that arrived together: the sound ones go to the producer by topic, all others are counted.

`Arrivals` come in on a receiver's thread. One bad message never takes others with it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ottla.errors import InputError
from ottla.gateway.datagram.delivering import Delivering
from ottla.gateway.datagram.losses import Losses
from ottla.gateway.datagram.reading import Reading, columns, read_all, rows_with_bad_names, sizes_of, times_of
from ottla.gateway.receiving.arrivals import Arrivals
from ottla.produce.records import topic as check_topic
from ottla.wire.kernels import datagrams as k
from ottla.wire.kernels.framing import CUT, DESYNCHRONISED, SPAN_MARK, TRUNCATED, WHOLE

_SAMPLES = 10
_VERSION_AT = 6
Numbers = npt.NDArray[np.int64]


class Handling:
    """Takes what one kind of socket received. `is_tcp` says how connections that end too early are counted."""

    def __init__(self, delivering: Delivering, losses: Losses, *, record_bytes: int, is_tcp: bool = False) -> None:
        self._delivering = delivering
        self._losses = losses
        self._record_bytes = record_bytes
        self._is_tcp = is_tcp

    def __call__(self, arrivals: Arrivals) -> None:
        """Hand over or count every message."""
        marks = arrivals.spans[:, SPAN_MARK]
        if marks.any():
            self._count_marked(arrivals, marks)
            whole = np.flatnonzero(marks == WHOLE)
            spans = np.ascontiguousarray(arrivals.spans[whole])
            spans.flags.writeable = False
            source_of = arrivals.source_of[whole]
            arrivals = Arrivals(arrivals.data, spans, arrivals.sources, source_of, arrivals.received_ms)
        reading = read_all(arrivals)
        if reading.table[:, k.CODE].any():
            self._count_faulty(arrivals, reading)
        for number, name in enumerate(reading.topics):
            rows = reading.rows_of(number)
            topic = _checked(name)
            if topic is None:
                self._losses.bad_topic(name, len(rows))
            else:
                self._deliver(topic, arrivals, rows, reading.table[rows])

    def _deliver(self, topic: str, arrivals: Arrivals, numbers: Numbers, rows: Numbers) -> None:
        """Hand over messages of one topic: `rows` of the table, which have these numbers."""
        bad = rows_with_bad_names(arrivals, rows)
        if len(bad):
            self._losses.malformed([arrivals.content(number) for number in numbers[bad][:_SAMPLES].tolist()], len(bad))
            numbers, rows = np.delete(numbers, bad), np.delete(rows, bad, axis=0)
        large = np.flatnonzero(sizes_of(rows) > self._record_bytes)
        if len(large):
            self._count_too_long(topic, arrivals, rows[large])
            rows = np.delete(rows, large, axis=0)
        keyed = rows[:, k.HAS_PARTITION_KEY] != 0
        for is_keyed in (False, True):
            chosen = rows if keyed.all() == is_keyed == keyed.any() else rows[keyed == is_keyed]
            if not len(chosen):
                continue
            times = _range_of(chosen, arrivals.received_ms)
            records = columns(arrivals, chosen)
            seconds = times[0] / 1000, times[1] / 1000
            self._losses.counts.add("messages", len(chosen), topic=topic)
            if is_keyed:
                keys = chosen[:, k.PARTITION_KEY].copy()
                self._delivering.deliver_keyed(topic, records, seconds, keys=keys)
            else:
                self._delivering.deliver(topic, records, seconds)

    def _count_marked(self, arrivals: Arrivals, marks: npt.NDArray[Any]) -> None:
        """Count what is no whole message."""
        for number in np.flatnonzero(marks == CUT).tolist():
            with self._losses.discards() as (discards, now):
                discards.unclean(now, arrivals.content(number), is_tcp=self._is_tcp)
            self._losses.counts.add("discarded", reason="unclean_disconnect")
        for mark, reason in ((TRUNCATED, "too_long"), (DESYNCHRONISED, "malformed")):
            numbers = np.flatnonzero(marks == mark)
            if len(numbers):
                samples = [arrivals.content(number) for number in numbers[:_SAMPLES].tolist()]
                with self._losses.discards() as (discards, now):
                    discards.malformed(now, samples, count=len(numbers))
                self._losses.counts.add("discarded", len(numbers), reason=reason)

    def _count_faulty(self, arrivals: Arrivals, reading: Reading) -> None:
        """Count messages that are malformed, or of a kind or version that is not known."""
        malformed = reading.rows_with(k.MALFORMED)
        if len(malformed):
            self._losses.malformed(
                [arrivals.content(number) for number in malformed[:_SAMPLES].tolist()], len(malformed)
            )
        unsupported = reading.rows_with(k.UNSUPPORTED_KEY)
        if len(unsupported):
            with self._losses.discards() as (discards, now):
                discards.unsupported_key(now, count=len(unsupported))
            self._losses.counts.add("discarded", len(unsupported), reason="unsupported_api_key")
        for number in reading.rows_with(k.UNSUPPORTED_VERSION).tolist():
            version = int.from_bytes(arrivals.content(number)[_VERSION_AT:][:2], "big", signed=True)
            with self._losses.discards() as (discards, now):
                discards.unsupported_version(now, version, count=1)
            self._losses.counts.add("discarded", reason="unsupported_version")

    def _count_too_long(self, topic: str, arrivals: Arrivals, rows: Numbers) -> None:
        """Count messages that no batch may hold."""
        times = times_of(rows, received_ms=arrivals.received_ms).tolist()
        for row, time_ms in zip(rows.tolist(), times, strict=True):
            beginning = arrivals.data[max(row[k.VALUE], 0) : max(row[k.VALUE_STOP], 0)][:256].tobytes()
            with self._losses.discards() as (discards, now):
                discards.too_long(now, topic, beginning, times_ms=(time_ms, time_ms))
        self._losses.counts.add("discarded", len(rows), reason="too_long", topic=topic)


def _checked(name: bytes) -> str | None:
    """Return the name of a topic, None if it cannot be one."""
    try:
        topic = name.decode("ascii")
        check_topic(topic)
    except (UnicodeDecodeError, InputError):
        return None
    return topic


def _range_of(rows: Numbers, received_ms: int) -> tuple[int, int]:
    """Return the first and the last time of messages."""
    times = times_of(rows, received_ms=received_ms)
    return int(times.min()), int(times.max())
