"""Reads many messages of the socket at once, and makes columns of those of one topic.

`Arrivals` come in. Out go a table with a row for each message, the topics that were named, and for chosen rows an Arrow
batch that shares nothing with the received memory. Pure.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.gateway.assembling import Pieces, between, binary, listed, whole_numbers
from ottla.gateway.receiving.arrivals import Arrivals, readonly, record_times
from ottla.wire.kernels import datagrams as k

Numbers = npt.NDArray[np.int64]
_FEW_TOPICS = 64
_ASCII = 0x80


class Reading(NamedTuple):
    """What was read. `table` has a row for each message, with the columns of `wire.kernels.datagrams`."""

    table: Numbers
    topics: tuple[bytes, ...]
    """By the numbers in the table's column `TOPIC`, which is -1 for what is no message."""

    def rows_with(self, code: int) -> Numbers:
        """Return the rows with this code."""
        return np.flatnonzero(self.table[:, k.CODE] == code)

    def rows_of(self, topic: int) -> Numbers:
        """Return the rows of a topic."""
        return np.flatnonzero(self.table[:, k.TOPIC] == topic)


def read_all(arrivals: Arrivals) -> Reading:
    """Read all messages."""
    count = len(arrivals)
    table: Any = np.zeros((count, k.ROW_FIELDS), np.int64)
    names: Any = np.zeros((_FEW_TOPICS, k.TOPIC_FIELDS), np.int64)
    state: Any = np.zeros(k.STATE_FIELDS, np.int64)
    while k.read_datagrams(arrivals.data, arrivals.spans, table, names, state) == k.FULL:
        grown = np.zeros((4 * len(names), k.TOPIC_FIELDS), np.int64)
        grown[: len(names)] = names
        names = grown
    places = names[: state[k.TOPICS]].tolist()
    return Reading(table, tuple(arrivals.data[start:stop].tobytes() for start, stop in places))


def times_of(rows: Numbers, *, received_ms: int) -> Numbers:
    """Return the timestamps of rows of the table; that of the receipt for those that brokers would refuse."""
    return record_times(rows[:, k.TIME], oldest_ms=0, received_ms=received_ms)


def sizes_of(rows: Numbers) -> Numbers:
    """Return how many bytes keys and values of rows of the table have."""
    keys, values = rows[:, k.KEY_STOP] - rows[:, k.KEY], rows[:, k.VALUE_STOP] - rows[:, k.VALUE]
    return np.asarray(keys + values, np.int64)


def columns(arrivals: Arrivals, rows: Numbers) -> pa.RecordBatch:
    """Return rows of the table as key, value, timestamp and, if there are any, headers."""
    named: dict[str, pa.Array] = {
        "key": binary(between(rows[:, k.KEY], rows[:, k.KEY_STOP]), arrivals.data),
        "value": binary(between(rows[:, k.VALUE], rows[:, k.VALUE_STOP]), arrivals.data),
        "timestamp": whole_numbers(times_of(rows, received_ms=arrivals.received_ms)),
    }
    if rows[:, k.HEADER_COUNT].any():
        entries = _entries(arrivals, rows)
        names = binary(Pieces(entries[:, 0], entries[:, 1] - entries[:, 0]), arrivals.data)
        values = binary(between(entries[:, 2], entries[:, 3]), arrivals.data)
        named["headers"] = listed(rows[:, k.HEADER_COUNT], names, values)
    return pa.RecordBatch.from_pydict(named)


def rows_with_bad_names(arrivals: Arrivals, rows: Numbers) -> Numbers:
    """Return which of the rows have a header whose name is not UTF-8, as Kafka wants it."""
    if not rows[:, k.HEADER_COUNT].any():
        return np.zeros(0, np.int64)
    entries = _entries(arrivals, rows)
    owners = np.repeat(np.arange(len(rows)), rows[:, k.HEADER_COUNT])
    bad = [
        owner
        for owner, (start, stop) in zip(owners.tolist(), entries[:, :2].tolist(), strict=True)
        if not _is_utf8(arrivals.data[start:stop].tobytes())
    ]
    return np.unique(np.array(bad, np.int64))


def _entries(arrivals: Arrivals, rows: Numbers) -> Numbers:
    """Return where the names and values of the headers are."""
    entries: Any = np.zeros((int(rows[:, k.HEADER_COUNT].sum()), 4), np.int64)
    if k.find_headers(arrivals.data, readonly(rows), entries) != len(entries):
        raise ValueError("the rows are not of this memory")
    return np.asarray(entries, np.int64)


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True
