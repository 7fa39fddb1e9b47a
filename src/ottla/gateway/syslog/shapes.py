"""Makes records of parsed syslog messages: value, key, headers and time.

The value is the message as it came, without what ended its frame, or one flat JSON object (`json_shape.py`). Parsed
messages come in, an Arrow batch goes out; without JSON, no message becomes a Python object. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

import numpy as np
import pyarrow as pa

from ottla.gateway.assembling import NO_BYTES, Constants, Pieces, binary, listed, whole_numbers
from ottla.gateway.receiving.arrivals import readonly, record_times
from ottla.gateway.syslog import json_shape
from ottla.gateway.syslog.parsing import APP, ERROR_NAMES, HOST, MSGID, PROCID, WHOLE, Numbers, Parsed
from ottla.wire.kernels import syslog as k

DAY_MS = 86_400_000


class Shape(Enum):
    """What the value of a record is."""

    RAW = "raw"
    """The message as it came."""
    JSON = "json"


class Key(Enum):
    """What the key of a record is."""

    HOST = "hostname"
    """The host that the message names; if it names none, the sender's address, or this machine's name."""
    SOURCE = "source"
    """The address of the sender."""
    APP = "app"
    NONE = "none"


HEADERS = ("syslog.pri", "syslog.app", "syslog.procid", "syslog.msgid", "syslog.src", "syslog.error")
_PRIORITIES = 192
_ERRORS = [ERROR_NAMES[code].encode() for code in range(k.ERRORS)]


class Shaping:
    """Makes batches for one listener. `host` stands for messages without a host from this machine."""

    def __init__(self, shape: Shape, key: Key, *, headers: Collection[str], host: str) -> None:
        self._shape = shape
        self._key = key
        self._host = host
        self._headers = [name for name in HEADERS if name in headers]
        self._names = Constants([name.encode() for name in self._headers])
        self._fixed = Constants([*(str(number).encode() for number in range(_PRIORITIES)), *_ERRORS])

    def batch(self, parsed: Parsed, rows: Numbers) -> tuple[pa.RecordBatch, tuple[float, float]]:
        """Return the records of some messages, and the first and last of their times in seconds."""
        sources = Constants([source.encode() for source in (*parsed.arrivals.sources, self._host)])
        times = times_of(parsed, rows)
        named = {"value": self._values(parsed, rows), "timestamp": whole_numbers(times)}
        if self._key is not Key.NONE:
            named["key"] = self._keys(parsed, rows, sources)
        if self._headers:
            named["headers"] = self._header_column(parsed, rows, sources)
        return pa.RecordBatch.from_pydict(named), (int(times.min()) / 1000, int(times.max()) / 1000)

    def _values(self, parsed: Parsed, rows: Numbers) -> pa.Array:
        if self._shape is Shape.JSON:
            return pa.array(json_shape.values(parsed, rows, host=self._host), pa.large_binary())
        return binary(parsed.pieces(WHOLE, rows), parsed.arrivals.data)

    def _keys(self, parsed: Parsed, rows: Numbers, sources: Constants) -> pa.Array:
        data = parsed.arrivals.data
        if self._key is Key.APP:
            return binary(parsed.pieces(APP, rows), data)
        fallback = _sources(parsed, rows, sources, or_host=True)
        if self._key is Key.SOURCE:
            return binary(fallback, data, sources.data)
        host = parsed.pieces(HOST, rows)
        is_there = host.sizes > 0
        starts = np.where(is_there, host.starts, fallback.starts)
        return binary(Pieces(starts, np.where(is_there, host.sizes, fallback.sizes)), data, sources.data)

    def _header_column(self, parsed: Parsed, rows: Numbers, sources: Constants) -> pa.Array:
        """Return the headers: of each message those that it has, in the order of `HEADERS`."""
        constants = readonly(np.concatenate((self._fixed.data, sources.data)))
        pieces = [self._header(name, parsed, rows, sources) for name in self._headers]
        starts = np.stack([piece.starts for piece in pieces], 1).ravel()
        sizes = np.stack([piece.sizes for piece in pieces], 1)
        is_there = sizes >= 0
        chosen = np.flatnonzero(is_there.ravel())
        values = binary(Pieces(starts[chosen], sizes.ravel()[chosen]), parsed.arrivals.data, constants)
        which = chosen % len(pieces)
        places = Pieces(self._names.starts()[which], self._names.sizes[which])
        names = binary(places, NO_BYTES, self._names.data)
        return listed(is_there.sum(1), names, values)

    def _header(self, name: str, parsed: Parsed, rows: Numbers, sources: Constants) -> Pieces:
        if name == "syslog.pri":
            priorities = parsed.column(k.PRI, rows)
            return self._constant(priorities, priorities >= 0)
        if name == "syslog.error":
            errors = parsed.column(k.ERROR, rows)
            return self._constant(_PRIORITIES + errors, errors > 0)
        if name == "syslog.src":
            return _sources(parsed, rows, sources, or_host=False, behind=len(self._fixed.data))
        text = {"syslog.app": APP, "syslog.procid": PROCID, "syslog.msgid": MSGID}[name]
        return parsed.pieces(text, rows)

    def _constant(self, numbers: Numbers, is_there: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Pieces:
        numbers = np.where(is_there, numbers, 0)
        return Pieces(self._fixed.starts()[numbers], np.where(is_there, self._fixed.sizes[numbers], -1))


def times_of(parsed: Parsed, rows: Numbers) -> Numbers:
    """Return the times of records: the message's own if that is plausible and brokers accept it, else the receipt."""
    times, received = parsed.column(k.TIME, rows), parsed.arrivals.received_ms
    return record_times(times, oldest_ms=received - DAY_MS, received_ms=received)


def _sources(parsed: Parsed, rows: Numbers, sources: Constants, *, or_host: bool, behind: int = 0) -> Pieces:
    """Return where the addresses of the senders are among the constants.

    What came through a unix socket has none, or with `or_host` the name of this machine, which is the last constant.
    """
    numbers = parsed.source_of[rows]
    sizes = sources.sizes[numbers]
    if or_host:
        numbers = np.where(sizes == 0, len(sources.sizes) - 1, numbers)
        sizes = sources.sizes[numbers]
    return Pieces(sources.starts(behind=behind)[numbers], np.where(sizes == 0, -1, sizes))
