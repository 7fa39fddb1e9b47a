"""What has to be moved and kept, and on what: the load, the machines and the rules, as values that are checked.

Plain numbers come in. A combination that cannot be right, or that looks like a mistaken unit, is a `ConfigError` that
says what is accepted. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ottla.errors import ConfigError

RECORD_FRAMING = 10
"""Bytes that a record takes in a batch beside its key and value: measured, 110 for one of 100 and 1,010 for 1,000."""
_DAY = 86400.0
_MINUTE = 60.0
_MOST_RECORD_BYTES = 1 << 30
_MOST = 1e15
_LEAST_LINK = 125_000.0
_SHARE = (0.01, 1.0)


def _check(name: str, value: object, lowest: float, highest: float, advice: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{name} must be a number, got {value!r}")
    if not lowest <= value <= highest:
        raise ConfigError(f"{name} must be from {lowest:,g} to {highest:,g}, got {value:,g}{advice and ': ' + advice}")


def _check_whole(name: str, value: object, lowest: int, highest: int, advice: str = "") -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{name} must be a whole number, got {value!r}")
    _check(name, value, lowest, highest, advice)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What all topics of a cluster carry together. Rates are means; `peak` is the busiest moment as a multiple."""

    records_per_second: float
    record_bytes: float
    """Key and value of a record, before compression."""
    stored_record_bytes: float
    """What a record takes in the log, with its framing, after compression."""
    peak: float = 1.0
    retention: float = 3 * _DAY
    """Seconds."""
    replication: int = 3
    groups: int = 1
    """Consumer groups that read everything."""
    lagging: int = 0
    """Groups that read from disk, because they are too far behind for the page cache."""
    topics: int = 1
    """Topics of equal size that share the load."""
    members: int = 1
    """Consumers of one group that are to read one topic at the same time."""

    def __post_init__(self) -> None:
        _check("records per second", self.records_per_second, 0.001, _MOST)
        _check("the size of a record", self.record_bytes, 1, _MOST_RECORD_BYTES, "bytes of one record")
        _check("the stored size of a record", self.stored_record_bytes, 0.01, _MOST_RECORD_BYTES)
        _check("peak", self.peak, 1, 1000, "the peak as a multiple of the mean")
        advice = "3 is three seconds, write 3d for three days" if 0 < self.retention < _MINUTE else ""
        _check("retention in seconds", self.retention, _MINUTE, 100 * 366 * _DAY, advice)
        _check_whole("replication", self.replication, 1, 100)
        _check_whole("groups", self.groups, 0, 10_000)
        _check_whole("lagging groups", self.lagging, 0, 10_000)
        _check_whole("topics", self.topics, 1, 1_000_000)
        _check_whole("members", self.members, 1, 1_000_000)
        if self.lagging > self.groups:
            raise ConfigError(f"{self.lagging} lagging groups of {self.groups}: there cannot be more than groups")

    @property
    def bytes_per_second(self) -> float:
        """What is written to the log, in the mean, before replication."""
        return self.records_per_second * self.stored_record_bytes

    def times(self, factor: float) -> Load:
        """Return the same load with another rate."""
        return replace(self, records_per_second=self.records_per_second * factor)


def stored_size(record_bytes: float, compression: float = 1.0) -> float:
    """Return what a record takes in the log. `compression` is the ratio: 4 for a quarter."""
    _check("the compression ratio", compression, 0.5, 1000, "4 means that a quarter of the bytes is left")
    return (record_bytes + RECORD_FRAMING) / compression


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One broker's hardware. The defaults are a machine of the kind that is common for Kafka on hard disks."""

    link: float = 1.25e9
    """Bytes per second in each direction."""
    disks: int = 12
    disk_bytes: float = 4e12
    disk_rate: float = 100e6
    """Bytes per second that one disk writes or reads."""
    cores: int = 24
    memory: float = 64e9

    def __post_init__(self) -> None:
        _check("the link in bytes per second", self.link, _LEAST_LINK, 1e12, "write 10Gbit/s or 1.25GB/s")
        _check_whole("disks", self.disks, 1, 1000)
        _check("the size of a disk in bytes", self.disk_bytes, 1e9, 1e16, "write 4TB")
        _check("the rate of a disk in bytes per second", self.disk_rate, 1e6, 1e11, "write 100MB/s")
        _check_whole("cores", self.cores, 1, 10_000)
        _check("memory in bytes", self.memory, 8e9, 1e14, "6 GB of it are the heap")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Limits that no broker should exceed, and what is kept in reserve."""

    spare: int = 1
    """Brokers that may be lost while the others carry the load."""
    network_share: float = 0.7
    disk_share: float = 0.7
    """Of the disks' throughput."""
    space_share: float = 0.7
    cpu_share: float = 0.5
    client_share: float = 0.7
    """Of a core that a client, a mirror or an archiver may use."""
    partitions_per_broker: int = 4000
    """Replicas on one broker."""
    partition_bytes: float = 50e9
    segment_bytes: float = float(1 << 30)
    roll: float = 7 * _DAY
    """Seconds after which a segment is closed though it is not full."""
    cache_seconds: float = 30.0
    heap: float = 6e9

    def __post_init__(self) -> None:
        _check_whole("spare", self.spare, 0, 1000)
        for name in ("network_share", "disk_share", "space_share", "cpu_share", "client_share"):
            _check(name.replace("_", " "), getattr(self, name), *_SHARE, "a share, such as 0.7")
        _check_whole("partitions per broker", self.partitions_per_broker, 1, 1_000_000)
        _check("the size of a partition in bytes", self.partition_bytes, 1e6, 1e15, "write 50GB")
        _check("the size of a segment in bytes", self.segment_bytes, 1e6, 1 << 31)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sites:
    """Clusters at the edge that produce an equal part of the load each and are mirrored into the aggregate cluster."""

    count: int
    retention: float
    """Seconds; long enough for the longest loss of the link to the aggregate cluster."""
    replication: int
    groups: int = 0
    """Consumer groups at a site, beside the mirror."""
    machine: Machine

    def __post_init__(self) -> None:
        _check_whole("sites", self.count, 1, 10_000)


def check_brokers(brokers: int, load: Load, *, without: int = 0) -> None:
    """Raise `ConfigError` if this many brokers cannot be, whatever the load is."""
    _check_whole("brokers", brokers, 1, 1_000_000_000)
    _check_whole("brokers that are lost", without, 0, 100_000)
    if load.replication > brokers:
        raise ConfigError(f"replication {load.replication} needs as many brokers, and there are {brokers}")
    if without >= brokers:
        raise ConfigError(f"{brokers} brokers without {without}: none is left")
