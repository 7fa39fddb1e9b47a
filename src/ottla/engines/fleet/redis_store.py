"""A group in Redis: a single server, a master found through Sentinel, or a cluster.

Steps come in as calls and go out as scripts; replies come back as values. `redis_scripts` has the scripts, `redis_link`
sends them. Redis may lose its last second of writes in a power cut or a failover. The planner detects that, not this
module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ottla.engines.fleet import redis_scripts as scripts
from ottla.engines.fleet.redis_address import parse
from ottla.engines.fleet.redis_link import Argument, Link
from ottla.engines.fleet.stored_text import (
    charter_of,
    charter_text,
    checked,
    damaged,
    failure_of,
    failure_text,
    not_founded,
    report_of,
    report_text,
)
from ottla.engines.fleet.units import (
    Charter,
    Counts,
    Failure,
    Grant,
    Lease,
    Move,
    Node,
    Out,
    PartitionState,
    Pulse,
    Seen,
    Snapshot,
    label,
)
from ottla.errors import ConfigError, StoreIncompatible
from ottla.model import OffsetRange, TopicPartition


class RedisStore:
    """One group in Redis. Methods without a docstring do what `Rules` says.

    Threads and forked children may share it.
    """

    def __init__(self, link: Link, address: str, group: str) -> None:
        self._link = link
        self._address = address
        self._group = group
        self._is_checked = False
        # The braces are a hash tag: a cluster keeps all keys with the same tag on one node.
        self._keys = tuple(f"ottla:{{{group}}}:{name}" for name in scripts.KEYS)

    @classmethod
    def from_url(cls, url: str, group: str) -> RedisStore:
        """Return the store of a group at an address that `redis_address` accepts. The first step connects.

        Raises `ConfigError` if the address is invalid, or a file that it names cannot be read.
        """
        place = parse(url)
        return cls(Link(place), str(place), group)

    def __repr__(self) -> str:
        return f"RedisStore({self._address!r}, {self._group!r})"

    @property
    def address(self) -> str:
        """The address for messages, without user and password."""
        return self._address

    def found(self, charter: Charter) -> Charter:
        """Create the group with this charter unless it exists, and return the charter that it has.

        Raises `StoreIncompatible` if the server evicts keys, or this version of Ottla cannot use the group.
        """
        if not self._is_checked:
            self._refuse_eviction()
            self._is_checked = True
        arguments = (charter_text(charter), int(charter.ordered), charter.max_attempts)
        return charter_of(self._link.run(scripts.FOUND, self._keys, *arguments), self._group, self._address)

    def exists(self) -> bool:
        """Return whether the group was created."""
        return bool(self._link.call("HEXISTS", self._key("meta"), "charter"))

    def forget(self) -> None:
        """Delete the group and everything in it."""
        self._link.call("UNLINK", *self._keys)  # unlike DEL, it does not block the server while it frees a large group

    def close(self) -> None:
        """Close connections. The group stays."""
        self._link.close()

    # Topics

    def add_topics(self, topics: Mapping[str, str]) -> None:
        self._step(scripts.ADD_TOPICS, *(argument for pair in topics.items() for argument in pair))

    def remove_topics(self, names: Iterable[str]) -> None:
        self._step(scripts.REMOVE_TOPICS, *names)

    # Planning

    def lead(self, holder: str, over: Seen | None = None) -> Lease | None:
        seen: tuple[Argument, ...] = ("", "", "") if over is None else (*over.lease, over.beat)
        number = self._step(scripts.LEAD, holder, *seen)
        return None if number is None else Lease(int(number), holder)

    def stay(self, lease: Lease) -> bool:
        return bool(self._step(scripts.STAY, *lease))

    def resign(self, lease: Lease) -> bool:
        return bool(self._step(scripts.RESIGN, *lease))

    def plan(self, lease: Lease, moves: Sequence[Move]) -> bool:
        arguments: list[Argument] = [*lease]
        for move in moves:
            before = "" if move.before is None else move.before
            arguments += [
                label(move.partition),
                _sort_key(move.partition),
                before,
                checked(move.to, "an offset"),
                len(move.units),
            ]
            arguments += [f"{_pad(unit.start)} {_pad(unit.stop)}" for unit in move.units]
        return bool(self._step(scripts.PLAN, *arguments))

    def raise_number(self, least: int) -> None:
        self._step(scripts.RAISE_NUMBER, checked(max(0, least), "the number of a lease"))

    # Working

    def take(self, holder: str, most: int = 1) -> list[Grant]:
        grants = self._step(scripts.TAKE, holder, most)
        with self._parsing():
            return [Grant(_unit(unit), Lease(int(number), holder), attempt) for unit, number, attempt in grants]

    def renew(self, held: Sequence[tuple[OffsetRange, Lease]]) -> list[bool]:
        arguments = [argument for unit, lease in held for argument in (_name(unit), *lease)]
        return [bool(kept) for kept in self._step(scripts.RENEW, *arguments)]

    def finish(self, unit: OffsetRange, lease: Lease, reached: int) -> bool:
        rest = "" if reached >= unit.stop else _name(OffsetRange(unit.topic, unit.partition, reached, unit.stop))
        return bool(self._step(scripts.FINISH, _name(unit), *lease, max(0, reached - unit.start), rest))

    def fail(self, unit: OffsetRange, lease: Lease, failure: Failure) -> bool:
        return bool(self._step(scripts.FAIL, _name(unit), *lease, failure_text(failure)))

    def reclaim(self, unit: OffsetRange, seen: Seen, failure: Failure) -> bool:
        return bool(self._step(scripts.RECLAIM, _name(unit), *seen.lease, seen.beat, failure_text(failure)))

    # The error list, and resetting

    def failures(self) -> list[Failure]:
        flat = self._link.call("HGETALL", self._key("failures"))
        with self._parsing():
            return sorted((_failure(name, entry) for name, entry in _pairs(flat)), key=lambda failure: failure.range)

    def retry(self, unit: OffsetRange) -> bool:
        return bool(self._step(scripts.RETRY, _name(unit)))

    def drop(self, unit: OffsetRange) -> bool:
        return bool(self._step(scripts.DROP, _name(unit)))

    def reset(self, partition: TopicPartition, offset: int | None) -> None:
        self._step(
            scripts.RESET,
            label(partition),
            _sort_key(partition),
            "" if offset is None else checked(offset, "an offset"),
        )

    # Nodes and reports

    def hello(self, name: str, report: Mapping[str, Any]) -> None:
        self._step(scripts.HELLO, name, report_text(report))

    def goodbye(self, name: str, beat: int | None = None) -> bool:
        return bool(self._step(scripts.GOODBYE, name, "" if beat is None else beat))

    def pulse(self) -> Pulse:
        planner, out = self._link.run(scripts.PULSE, self._keys)
        with self._parsing():
            return Pulse(_planner(*planner), _outs(out))

    def look(self) -> Snapshot:
        reply = self._link.run(scripts.LOOK, self._keys)
        with self._parsing():
            return _snapshot(*reply)

    def waiting(self, partition: TopicPartition | None = None, most: int = 1000) -> list[OffsetRange]:
        ends = ("-", "+") if partition is None else (f"[{_sort_key(partition)} ", f"({_sort_key(partition)}!")
        names = self._link.call("ZRANGEBYLEX", self._key("waiting"), *ends, "LIMIT", 0, max(0, most))
        with self._parsing():
            return [_unit(name) for name in names]

    def note(self, key: str, value: bytes | None) -> None:
        if value is None:
            self._step(scripts.UNNOTE, key)
        else:
            self._step(scripts.NOTE, key, value)

    def notes(self, prefix: str = "") -> dict[str, bytes]:
        notes = {key.decode(): value for key, value in _pairs(self._link.call("HGETALL", self._key("notes")))}
        return {key: value for key, value in notes.items() if key.startswith(prefix)}

    # Parts of steps

    def _step(self, script: scripts.Script, *arguments: Argument) -> Any:
        """Run a script. Raises `StoreUnavailable` if it needs a group that does not exist."""
        reply = self._link.run(script, self._keys, *arguments)
        if reply == scripts.NOT_FOUNDED:
            raise not_founded(self._group, self._address)
        return reply

    def _key(self, name: str) -> str:
        """The Redis key of one of the structures of the group."""
        return self._keys[scripts.KEYS.index(name)]

    @contextmanager
    def _parsing(self) -> Iterator[None]:
        """Turn errors while parsing a reply into `StoreIncompatible`."""
        try:
            yield
        except (ValueError, TypeError) as error:
            raise damaged(self._group, self._address, str(error)) from error

    def _refuse_eviction(self) -> None:
        """Raise `StoreIncompatible` if the server evicts keys when its memory is full: it would evict units."""
        try:
            lines = self._link.call("INFO", "memory").decode().splitlines()
        except ConfigError:
            return  # the user may not have the right to call INFO
        policy = dict(line.split(":", 1) for line in lines if ":" in line).get("maxmemory_policy", "")
        if policy.startswith("allkeys"):
            raise StoreIncompatible(
                f"the fleet's store {self._address} evicts keys when its memory is full (maxmemory-policy is"
                f" {policy}): set it to noeviction, or use another server"
            )


def _snapshot(
    meta_pairs: list[bytes],
    states: list[tuple[bytes, bytes, bytes, int, bytes]],
    out_pairs: list[bytes],
    failed: list[bytes],
    nodes: list[bytes],
    topics: list[bytes],
) -> Snapshot:
    """Parse the reply of the script `LOOK`."""
    meta = dict(_pairs(meta_pairs))
    out = _outs(out_pairs)
    busy = _Busy((unit.range for unit in out), map(_unit, failed))
    return Snapshot(
        planner=_planner(*(meta.get(name) for name in (b"planner_number", b"planner_holder", b"planner_beat"))),
        partitions=tuple(sorted(busy.state(*state) for state in states)),
        out=out,
        nodes=tuple(sorted((_node(name, entry) for name, entry in _pairs(nodes)), key=lambda node: node.name)),
        topics={name.decode(): identity.decode() for name, identity in _pairs(topics)},
        counts=Counts(*(int(meta.get(name.encode(), 0)) for name in Counts._fields)),
        number=int(meta.get(b"number", 0)),
    )


class _Busy:
    """The units of each partition that are in flight or on the error list."""

    def __init__(self, out: Iterable[OffsetRange], failed: Iterable[OffsetRange]) -> None:
        self._out = _by_partition(out)
        self._failed = _by_partition(failed)

    def state(self, topic: bytes, partition: bytes, planned: bytes, waiting: int, first: bytes) -> PartitionState:
        """Return the state of a partition. `first` is its first waiting unit, or empty."""
        tp = TopicPartition(topic.decode(), int(partition))
        out, failed = self._out.get(tp, []), self._failed.get(tp, [])
        starts = [unit.start for unit in (*out, *failed)] + ([_unit(first).start] if first else [])
        return PartitionState(tp, int(planned), min(starts, default=int(planned)), waiting, len(out), len(failed))


def _by_partition(units: Iterable[OffsetRange]) -> dict[TopicPartition, list[OffsetRange]]:
    """Group units by partition."""
    by_partition: dict[TopicPartition, list[OffsetRange]] = {}
    for unit in units:
        by_partition.setdefault(unit.topic_partition, []).append(unit)
    return by_partition


def _pairs(flat: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Split a flat reply into keys and values."""
    return zip(flat[::2], flat[1::2], strict=True)


def _pad(offset: int) -> str:
    """Pad an offset so that offsets sort as text. Raises `InputError` if it does not fit."""
    return f"{checked(offset, 'an offset'):019d}"


def _sort_key(partition: TopicPartition) -> str:
    """The text of a partition that sorts like its topic and number."""
    return f"{partition.topic} {partition.partition:010d}"


def _name(unit: OffsetRange) -> str:
    """The text of a unit in the store, which sorts like the unit."""
    return f"{_sort_key(unit.topic_partition)} {_pad(unit.start)} {_pad(unit.stop)}"


def _unit(name: bytes) -> OffsetRange:
    """Parse the text of a unit."""
    topic, partition, start, stop = name.decode().rsplit(" ", 3)
    return OffsetRange(topic, int(partition), int(start), int(stop))


def _planner(number: bytes | None, holder: bytes | None, beat: bytes | None) -> Seen | None:
    if number is None or holder is None or beat is None:
        return None
    return Seen(Lease(int(number), holder.decode()), int(beat))


def _outs(flat: list[bytes]) -> tuple[Out, ...]:
    return tuple(sorted((_out(name, entry) for name, entry in _pairs(flat)), key=lambda out: out.range))


def _out(name: bytes, entry: bytes) -> Out:
    number, beat, attempt, holder = entry.split(b" ", 3)
    return Out(_unit(name), Seen(Lease(int(number), holder.decode()), int(beat)), int(attempt))


def _failure(name: bytes, entry: bytes) -> Failure:
    attempts, _, text = entry.partition(b" ")
    return failure_of(_unit(name), int(attempts), text)


def _node(name: bytes, entry: bytes) -> Node:
    beat, _, report = entry.partition(b" ")
    return Node(name.decode(), int(beat), report_of(report))
