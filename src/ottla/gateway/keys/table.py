"""The idempotency keys that are done: what each request was, and what became of it. Pure: the time comes in.

An entry is one record of a compacted topic. Its key is `gateway/client/key`, so that gateways with other names do not
meet; its value has the digest of the request and the offsets of its records, enough to answer it again.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from ottla.gateway.http.answers import Landed, Outcome


@dataclass(frozen=True, slots=True)
class Done:
    """A request that was written under a key."""

    name: str
    digest: bytes
    time: float
    outcome: Outcome


class _Entry(msgspec.Struct):
    digest: bytes
    time: float
    count: int
    landed: list[tuple[int, int, list[tuple[int, int]]]]
    """Partition, offset, and the rows as ranges."""


_entries = msgspec.json.Decoder(_Entry)


def encode_entry(gateway: str, done: Done) -> tuple[bytes, bytes]:
    """Return key and value of the record of an entry."""
    landed = [(each.partition, each.offset, _runs(each.rows)) for each in done.outcome.landed]
    entry = _Entry(done.digest, done.time, done.outcome.count, landed)
    return f"{gateway}/{done.name}".encode(), msgspec.json.encode(entry)


def decode_entry(gateway: str, key: bytes | None, value: bytes | None) -> Done | None:
    """Return the entry of a record; None for those of other gateways and for what cannot be read."""
    prefix = f"{gateway}/".encode()
    if key is None or value is None or not key.startswith(prefix):
        return None
    try:
        entry = _entries.decode(value)
        name = key[len(prefix) :].decode()
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    landed = tuple(Landed(_rows(runs), partition, offset) for partition, offset, runs in entry.landed)
    return Done(name, entry.digest, entry.time, Outcome(entry.count, landed))


class Table:
    """Entries by name, the oldest first; it forgets those that are too old or too many."""

    def __init__(self, *, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._entries: OrderedDict[str, Done] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, done: Done) -> None:
        """Add an entry, or replace the one with its name."""
        self._entries[done.name] = done
        self._entries.move_to_end(done.name)
        while len(self._entries) > self._most:
            self._entries.popitem(last=False)

    def find(self, name: str, now: float) -> Done | None:
        """Return the entry of a name, unless it is too old."""
        while self._entries and next(iter(self._entries.values())).time < now - self._seconds:
            self._entries.popitem(last=False)
        done = self._entries.get(name)
        return None if done is None or done.time < now - self._seconds else done


def _runs(rows: tuple[int, ...] | range) -> list[tuple[int, int]]:
    if isinstance(rows, range):
        return [(rows.start, rows.stop)]
    runs: list[tuple[int, int]] = []
    for row in rows:
        if runs and runs[-1][1] == row:
            runs[-1] = (runs[-1][0], row + 1)
        else:
            runs.append((row, row + 1))
    return runs


def _rows(runs: list[tuple[int, int]]) -> tuple[int, ...] | range:
    if len(runs) == 1:
        return range(*runs[0])
    return tuple(row for start, stop in runs for row in range(start, stop))
