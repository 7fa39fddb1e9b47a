"""What a receiver hands over: many messages in one piece of memory, with where each begins, stops and comes from.

The memory belongs to the receiver: a handler copies what it keeps before it returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ottla.wire.kernels.framing import SPAN_FIELDS

NO_SOURCE = ""
"""The source of what comes through a unix socket."""
_AHEAD_MS = 55 * 60_000
"""Brokers refuse a record that is more than an hour ahead of their clock."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Messages that arrived together. `spans` has a row for each, as `wire.kernels.framing` defines them."""

    data: npt.NDArray[np.uint8]
    spans: npt.NDArray[np.int64]
    sources: tuple[str, ...]
    """Every source once: an IP address, or `NO_SOURCE`."""
    source_of: npt.NDArray[np.int64]
    """The index into `sources` for each message."""
    received_ms: int
    """When, in milliseconds since 1970."""

    def __len__(self) -> int:
        return len(self.spans)

    def part(self, start: int, stop: int) -> Arrivals:
        """Return the messages `[start, stop)`."""
        spans, source_of = self.spans[start:stop], self.source_of[start:stop]
        return Arrivals(self.data, spans, self.sources, source_of, self.received_ms)

    def content(self, number: int) -> bytes:
        """Return one message."""
        start, stop = self.spans[number, :2].tolist()
        return self.data[start:stop].tobytes()


class Handler(Protocol):
    """Takes what arrived. Runs on the receiver's thread: while it waits, nothing more is received."""

    def __call__(self, arrivals: Arrivals, /) -> None:
        """Take over the messages."""


def readonly(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a read-only view in one piece: kernels are compiled for read-only input."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def record_times(times: npt.NDArray[np.int64], *, oldest_ms: int, received_ms: int) -> npt.NDArray[np.int64]:
    """Return the times of messages as those of records: the receipt for what is older, or ahead of what brokers take.

    A clock that is wrong must not cost a message, least of all hours later, when it comes out of a spool.
    """
    return np.where((times >= oldest_ms) & (times <= received_ms + _AHEAD_MS), times, received_ms)


def of_messages(messages: list[bytes], *, received_ms: int, source: str = NO_SOURCE, mark: int = 0) -> Arrivals:
    """Return arrivals made of separate messages, for tests and for the few that come one by one."""
    sizes = np.array([len(message) for message in messages], np.int64)
    stops = np.cumsum(sizes)
    spans = np.empty((len(messages), SPAN_FIELDS), np.int64)
    spans[:, 0], spans[:, 1], spans[:, 2] = stops - sizes, stops, mark
    data = np.frombuffer(b"".join(messages), np.uint8)
    return Arrivals(readonly(data), readonly(spans), (source,), np.zeros(len(messages), np.int64), received_ms)
