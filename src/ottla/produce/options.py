"""Settings of a producer, for one topic and for all others, as small frozen values that are checked when they are made.

What a program wrote comes in. Out go complete `Settings` for each topic in use, and the router of each. Nothing here
connects or opens a file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import pyarrow as pa

from ottla.config import Path, check_kind, check_seconds, check_whole
from ottla.errors import ConfigError
from ottla.net.discovery import OnUnknownTopic
from ottla.other_clients import unknown_setting
from ottla.produce.route import STICKY, ByColumn, Partitioner, Random, RoundRobin, Router, Sticky, Strategy
from ottla.wire.batch import HEADER_BYTES, Codec
from ottla.wire.codecs import check_level, parse_codec
from ottla.wire.encode import LARGEST_BATCH, BatchLimits

if TYPE_CHECKING:
    from typing import Unpack


def _check_routing(partitioner: object, strategy: object) -> None:
    """Raises `ConfigError` for a wrong partitioner or strategy, before a `Router` is made of them."""
    if partitioner is not None and not isinstance(partitioner, ByColumn) and not callable(partitioner):
        accepted = "a function of (key, value, partitions) and ByColumn(function)"
        raise ConfigError(f"partitioner is {partitioner!r}; accepted are {accepted}")
    known = isinstance(strategy, Sticky | RoundRobin | Random)
    if not known and (isinstance(strategy, type) or not callable(strategy)):
        accepted = "Sticky(records), RoundRobin(), Random() and a function of (records, partitions)"
        raise ConfigError(f"strategy is {strategy!r}; accepted are {accepted}")


SMALL_BYTES = 1024
"""Values up to this size take the short path of `Producer.send`: a chunk of them cannot get large unnoticed."""
_SMALL_RECORD_BYTES = SMALL_BYTES + 64
"""The most that such a record takes in a batch."""
_LARGEST = 1 << 50
"""An upper bound for sizes in bytes, against mistakes in units."""
_ONE_MIB = 1 << 20
Acks = Literal["all", 0, 1, -1]
BatchHook = Callable[[str, int, pa.RecordBatch], pa.RecordBatch]
"""Gets topic, partition and the rows of a batch; returns the rows to send instead."""


@dataclass(frozen=True, slots=True)
class Oversize:
    """A record above the size limit, handed to `on_oversize` instead of being refused."""

    topic: str
    key: bytes | None
    value: bytes | None
    size_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """When a batch is sent.

    As soon as it has `records` or `bytes` (before compression), or `linger` seconds after its first record. While five
    batches of a partition are in flight, the next one keeps filling.
    """

    bytes: int = 1_000_000
    records: int = (1 << 31) - 1
    linger: float = 0.005

    def __post_init__(self) -> None:
        check_whole("Batching(bytes=...)", self.bytes, lowest=HEADER_BYTES + 1, highest=LARGEST_BATCH)
        check_whole("Batching(records=...)", self.records, lowest=1, highest=(1 << 31) - 1)
        check_seconds("Batching", "linger", self.linger, lowest=0.0)


class WhenFull(Enum):
    """What a send does if the buffer, or the spool, is full."""

    WAIT = "wait"
    """The caller waits, and gets an error if that takes too long."""
    REFUSE = "refuse"
    """The caller gets an error at once."""
    DROP_OLDEST = "drop oldest"
    """The oldest records that were not sent yet are dropped, counted and reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffering:
    """How many bytes may wait in memory for their acknowledgement, and what happens at the limit."""

    bytes: int = 64 << 20
    when_full: WhenFull = WhenFull.WAIT
    wait: float = 60.0
    """Seconds a caller waits for room."""

    def __post_init__(self) -> None:
        check_whole("Buffering(bytes=...)", self.bytes, lowest=_ONE_MIB, highest=_LARGEST)
        check_seconds("Buffering", "wait", self.wait, lowest=0.0)
        check_kind("Buffering(when_full=...)", self.when_full, WhenFull)


@dataclass(frozen=True, slots=True)
class Spool:
    """A directory in which this producer keeps batches until they are acknowledged."""

    path: Path
    """The directory. One producer at a time owns it."""
    _: KW_ONLY
    write_ahead: bool = False
    """Write every batch to disk before it is sent; otherwise only what could not be delivered for `after` seconds."""
    fsync: bool = False
    """Survive a power loss too, not only the death of the process."""
    max_bytes: int | None = None
    """The maximum size of the directory; None for as much as the disk has."""
    when_full: WhenFull = WhenFull.WAIT
    """Whether a caller waits or gets `SpoolFull`."""
    after: float = 1.0
    """Seconds that a batch waits for its acknowledgement before it is written to disk, without `write_ahead`."""

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigError("Spool needs the path of a directory")
        if self.max_bytes is not None:
            check_whole("Spool(max_bytes=...)", self.max_bytes, lowest=_ONE_MIB, highest=_LARGEST)
        check_kind("Spool(when_full=...)", self.when_full, WhenFull)
        check_seconds("Spool", "after", self.after, lowest=0.0)


class TopicSettings(TypedDict, total=False):
    """The options that `Producer` takes for all topics and `TopicOptions` for one."""

    acks: Acks
    """Whose acknowledgement counts: "all" replicas in sync (the default), 1 for the leader, 0 for no one."""
    compression: str | Codec
    """"none" (the default), "gzip", "snappy", "lz4" or "zstd"."""
    level: int | None
    """Of the compression; None for the codec's own."""
    batching: Batching
    """When a batch is sent."""
    delivery_timeout: float
    """Seconds from the send to the error if no acknowledgement comes (120); `math.inf` to retry forever."""
    max_record_bytes: int
    """The largest key, value and headers together (1 MB)."""
    partitioner: Partitioner | ByColumn | None
    """A function of key, value and number of partitions that returns a partition, or None to leave the choice."""
    strategy: Strategy
    """Where records without a key go: `Sticky`, `RoundRobin` or `Random`."""
    unknown_topic: OnUnknownTopic
    """Whether an unknown topic is an error or is created."""
    batch_hook: BatchHook | None
    """Called with each batch before it is sent."""
    on_oversize: Callable[[Oversize], None] | None
    """Called with each record that is too large, instead of an error of the call."""
    idempotent: bool
    """Whether brokers recognize batches that they have already (True)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one topic, complete and checked."""

    acks: Acks = "all"
    compression: str | Codec = Codec.NONE
    level: int | None = None
    batching: Batching = Batching()
    delivery_timeout: float = 120.0
    """Seconds from the send to the error if no acknowledgement comes; `math.inf` to retry forever."""
    max_record_bytes: int = 1_000_000
    partitioner: Partitioner | ByColumn | None = None
    strategy: Strategy = STICKY
    unknown_topic: OnUnknownTopic = OnUnknownTopic.REFUSE
    batch_hook: BatchHook | None = None
    on_oversize: Callable[[Oversize], None] | None = None
    idempotent: bool = True

    def __post_init__(self) -> None:
        if self.acks == -1:  # what the protocol and other clients call it
            object.__setattr__(self, "acks", "all")
        if self.acks not in ("all", 0, 1) or isinstance(self.acks, bool):
            raise ConfigError(f"acks must be 'all', 1 or 0, got {self.acks!r}")
        codec = parse_codec(self.compression)
        if self.level is not None:
            check_kind("level", self.level, int)
        check_kind("idempotent", self.idempotent, bool)
        object.__setattr__(self, "compression", codec)
        object.__setattr__(self, "level", check_level(codec, self.level))
        if self.delivery_timeout != math.inf:
            check_seconds("Producer", "delivery_timeout", self.delivery_timeout, lowest=0.001)
        check_whole("max_record_bytes", self.max_record_bytes, lowest=1, highest=(1 << 30) - 1)
        check_kind("batching", self.batching, Batching)
        if self.delivery_timeout <= self.batching.linger:
            values = f"{self.delivery_timeout:g} and {self.batching.linger:g} s"
            raise ConfigError(f"delivery_timeout must be longer than Batching(linger=...), got {values}")
        check_kind("unknown_topic", self.unknown_topic, OnUnknownTopic)
        _check_routing(self.partitioner, self.strategy)
        for name in ("batch_hook", "on_oversize"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise ConfigError(f"{name} must be callable, got {getattr(self, name)!r}")

    @property
    def codec(self) -> Codec:
        """The compression as a `Codec`."""
        return parse_codec(self.compression)

    @property
    def limits(self) -> BatchLimits:
        """The maximum size of a batch."""
        return BatchLimits(max_bytes=self.batching.bytes, max_records=self.batching.records)

    @property
    def acks_code(self) -> int:
        """`acks` as the protocol encodes it."""
        return -1 if self.acks == "all" else self.acks


class TopicOptions:
    """Options for one topic. Raises `ConfigError` for unknown names; what is not given is as for all other topics."""

    def __init__(self, **options: Unpack[TopicSettings]) -> None:
        self.given: Mapping[str, Any] = dict(checked_names("TopicOptions", options))

    def __repr__(self) -> str:
        return f"TopicOptions({', '.join(f'{name}={value!r}' for name, value in self.given.items())})"

    def apply_to(self, defaults: Settings) -> Settings:
        """The settings of the topic, given `defaults`, those of all others."""
        given = dict(self.given)
        if "compression" in given and "level" not in given:
            given["level"] = None  # a level belongs to the codec it was given for
        return replace(defaults, **given)


def check_kinds(
    *,
    topics: Mapping[str, TopicOptions],
    buffering: Buffering,
    spool: Spool | None,
    on_failed: Callable[..., None] | None,
) -> None:
    """Raises `ConfigError` if an option of the producer as a whole has the wrong type."""
    check_kind("buffering", buffering, Buffering)
    if spool is not None:
        check_kind("spool", spool, Spool)
    if on_failed is not None and not callable(on_failed):
        raise ConfigError(f"on_failed must be callable, got {on_failed!r}")
    check_kind("topics", topics, Mapping)
    for name, options in topics.items():
        check_kind(f"topics[{name!r}]", options, TopicOptions)


def settings_from(options: Mapping[str, Any]) -> Settings:
    """The settings for topics without `TopicOptions`, from keyword arguments. Raises `ConfigError`."""
    return Settings(**checked_names("Producer", options))


_PRODUCER_OPTIONS = (
    "security",
    "client_id",
    "timeouts",
    "retry",
    "buffering",
    "spool",
    "transactional_id",
    "transaction_timeout",
    "topics",
    "events",
    "on_failed",
)
"""Options of `Producer` that are not options of a topic, for suggestions."""


def checked_names(owner: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options. Raises `ConfigError` for an unknown one, with a suggestion."""
    known = TopicSettings.__annotations__
    for name in options:
        if name not in known:
            problem = unknown_setting(owner, name, [*known, *_PRODUCER_OPTIONS])
            raise ConfigError(f"{problem}; the options of a topic are {', '.join(sorted(known))}")
    return options


class SettingsByTopic:
    """The settings and router of every topic."""

    def __init__(self, defaults: Settings, topics: Mapping[str, TopicOptions]) -> None:
        self._defaults = defaults
        self._topics = {name: options.apply_to(defaults) for name, options in topics.items()}
        self._routers: dict[str, Router] = {}

    def settings(self, topic: str) -> Settings:
        """The settings of one topic."""
        return self._topics.get(topic, self._defaults)

    def takes_any_small_record(self, topic: str) -> bool:
        """Whether a record of up to `SMALL_BYTES` needs no check: it fits, and there is no partitioner to ask."""
        settings = self.settings(topic)
        return settings.partitioner is None and settings.max_record_bytes >= _SMALL_RECORD_BYTES

    def router(self, topic: str) -> Router:
        """The router of a topic, shared by callers that ask for a partition and by the sender."""
        router = self._routers.get(topic)
        if router is None:
            settings = self.settings(topic)
            new_router = Router(topic, partitioner=settings.partitioner, strategy=settings.strategy)
            router = self._routers.setdefault(topic, new_router)
        return router

    def forget(self, topic: str) -> None:
        """Drop the router of a topic that is no longer used."""
        self._routers.pop(topic, None)

    def check_transactional(self, spool: Spool | None) -> None:
        """Raises `ConfigError` if these settings cannot be combined with transactions."""
        if spool is not None:
            raise ConfigError(
                "transactional_id and spool are mutually exclusive: a transaction cannot outlive its producer"
            )
        if any(s.acks != "all" or not s.idempotent for s in (self._defaults, *self._topics.values())):
            raise ConfigError("transactional_id needs acks='all' and idempotent=True for every topic")
