"""Cutters for connections: syslog by octet counting or by line, and messages that begin with their own size.

All connections of a listener share the table that the kernels fill: they are read by one thread. Pure.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from ottla.gateway.receiving.streams import Cut
from ottla.wire.kernels import framing as k

_ROOM = 1024
_MOST_FRAME_BYTES = 9_999_999
"""What seven digits can say."""


class Framing(IntEnum):
    """How syslog messages on a connection are distinguished."""

    DETECT = k.DETECT
    """Frame by frame: a digit begins a count, anything else a line."""
    COUNTED = k.COUNT_ONLY
    LINES = k.LINES_ONLY


class _Table:
    """Room for spans."""

    def __init__(self) -> None:
        self.spans: npt.NDArray[np.int64] = np.zeros((_ROOM, k.SPAN_FIELDS), np.int64)

    def grow(self) -> None:
        """Make room for four times as many."""
        spans = np.zeros((4 * len(self.spans), k.SPAN_FIELDS), np.int64)
        spans[: len(self.spans)] = self.spans
        self.spans = spans


class SyslogCutting:
    """Makes the cutters of a listener for syslog. Longer messages than `most_bytes` are truncated."""

    def __init__(self, framing: Framing, *, most_bytes: int) -> None:
        if not 1 <= most_bytes <= _MOST_FRAME_BYTES:
            raise ValueError(f"most_bytes is {most_bytes}, expected 1 to {_MOST_FRAME_BYTES}")
        self._framing = int(framing)
        self._most_bytes = most_bytes
        self._table = _Table()

    def __call__(self) -> _Cutter:
        return _Cutter(k.frame_syslog, (self._framing, self._most_bytes), self._table)


class SizedCutting:
    """Makes the cutters of a listener for messages of `least_bytes` to `most_bytes` that begin with their size."""

    def __init__(self, *, least_bytes: int, most_bytes: int) -> None:
        self._limits = least_bytes, most_bytes
        self._table = _Table()

    def __call__(self) -> _Cutter:
        return _Cutter(k.frame_sized, self._limits, self._table)


class _Cutter:
    """Cuts one connection. What it did not consume must come first in the next call."""

    __slots__ = ("_kernel", "_settings", "_state", "_table")

    def __init__(self, kernel: Any, settings: tuple[int, int], table: _Table) -> None:
        self._kernel = kernel
        self._settings = settings
        self._table = table
        self._state: npt.NDArray[np.int64] = np.zeros(k.STATE_FIELDS, np.int64)

    def __call__(self, data: npt.NDArray[np.uint8]) -> Cut:
        """Return the whole messages in `data`."""
        state = self._state
        state[k.POSITION] = state[k.SPANS] = 0
        while (code := self._kernel(data, *self._settings, self._table.spans, state)) == k.FULL:
            self._table.grow()
        consumed = int(state[k.POSITION])
        state[k.SCANNED] = max(0, int(state[k.SCANNED]) - consumed)
        return Cut(self._table.spans[: state[k.SPANS]], consumed, bool(code == k.DESYNC))
