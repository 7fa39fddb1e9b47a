"""What a query reads: which partitions, from where to where, in batches of what size.

Spark's options come in; one frozen, picklable `ReadOptions` goes out, which travels to the executors. Names and
meanings are those of Spark's Kafka connector. Options that the connector accepts but ignores are refused. This module
never contacts a broker.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from ottla.errors import ConfigError
from ottla.fetch.options import Fetching, OnLost, parse_isolation
from ottla.model import Isolation, TopicPartition
from ottla.net.access import ClusterAccess
from ottla.spark import options as parse
from ottla.spark.option_names import CONNECTION, IGNORED, READING, WRITING, check_names, meant_for
from ottla.spark.options import cluster_access

_log = logging.getLogger(__name__)

_FIVE_MINUTES = 300.0
_FIFTEEN_MINUTES = 900.0
_TASK_BYTES = 128 << 20
_LATEST, _EARLIEST = -1, -2
_IGNORED = {**meant_for(WRITING, "writing"), **IGNORED}


@dataclass(frozen=True, slots=True)
class Topics:
    """All partitions of these topics."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """Every topic whose name contains a match of the pattern, including topics created later."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Assigned:
    """These partitions and no others."""

    partitions: tuple[TopicPartition, ...]


Subscription = Topics | Pattern | Assigned


class End(Enum):
    """An end of the log."""

    EARLIEST = _EARLIEST
    LATEST = _LATEST


class NoMatch(Enum):
    """What to do if a partition has no record at or after the given time."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class FixedOffsets:
    """An offset, or an end of the log, for each partition. `option` names the option they came from, for errors."""

    option: str
    offsets: Mapping[TopicPartition, int | End]


@dataclass(frozen=True, slots=True)
class Times:
    """The first record at or after a time in milliseconds since 1970, the same for all partitions or one for each."""

    option: str
    times: int | Mapping[TopicPartition, int]
    no_match: NoMatch = NoMatch.ERROR


Bound = End | FixedOffsets | Times


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Sizes of a micro-batch and of a task."""

    max_records: int | None = None
    min_records: int | None = None
    max_bytes: int | None = None
    max_delay: float = _FIFTEEN_MINUTES
    """Seconds after which a batch starts even if it has fewer than `min_records`."""
    min_tasks: int | None = None
    task_records: int | None = None
    task_bytes: int = _TASK_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """All options of a query that reads."""

    access: ClusterAccess
    subscription: Subscription
    start: Bound
    stop: Bound = End.LATEST
    limits: BatchLimits = field(default_factory=BatchLimits)
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    """Not committed by default, unlike `Reader`: a job that replaces the connector's `format("kafka")` must get the
    same rows."""
    on_lost: OnLost = OnLost.ERROR
    fetching: Fetching = field(default_factory=Fetching)
    group: str | None = None
    """Consumer group under which a streaming query publishes its progress."""
    retry_timeout: float = _FIVE_MINUTES
    """Seconds for which a running query retries when brokers fail."""


def for_either(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options, with checks that apply to batch and streaming queries alike. Raises `ConfigError`."""
    check_names(options, CONNECTION | READING, use="reading", ignored=_IGNORED)
    given = {name.lower(): value for name, value in options.items()}
    start = _bound(given, "starting", End.EARLIEST)
    limits = _limits(given)
    return ReadOptions(
        access=cluster_access(given),
        subscription=_subscription(given),
        start=start,
        stop=_bound(given, "ending", End.LATEST),
        limits=limits,
        isolation=_isolation(given),
        on_lost=OnLost.ERROR if parse.boolean(given, "failOnDataLoss", True) else OnLost.EARLIEST,
        fetching=_fetching(given),
        group=_group(given),
        retry_timeout=parse.seconds_from_ms(
            given, "kafkaConsumer.pollTimeoutMs", parse.duration(given, "retryTimeout", _FIVE_MINUTES)
        ),
    )


def for_batch(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of `spark.read`. Raises `ConfigError` for an option that a batch query cannot have."""
    parsed = for_either(options)
    for bound, end, name in (
        (parsed.start, End.LATEST, "startingOffsets"),
        (parsed.stop, End.EARLIEST, "endingOffsets"),
    ):
        if bound is end or (isinstance(bound, FixedOffsets) and end in bound.offsets.values()):
            raise ConfigError(f"option {name} cannot be {end.name.lower()} for a batch query: nothing would be read")
    _check_order(parsed.start, parsed.stop)
    for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger", "maxTriggerDelay"):
        if parse.is_set(options, name):
            _log.warning("option %s is for streaming queries; a batch query reads everything at once", name)
    if parsed.group is not None:
        raise ConfigError("option commitGroup is for streaming queries: a batch query has no progress to publish")
    return parsed


def for_stream(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of `spark.readStream`. Raises `ConfigError` for an option that a stream cannot have."""
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        if parse.is_set(options, name):
            raise ConfigError(f"option {name} is for batch queries; to stop at the current end, use availableNow")
    lowered = {name.lower(): value for name, value in options.items()}
    # Unlike a batch query, a new stream starts at the end of the logs by default.
    return replace(for_either(options), start=_bound(lowered, "starting", End.LATEST))


def with_headers(options: Mapping[str, str]) -> bool:
    """Whether the default schema has the column `headers`."""
    return parse.boolean(options, "includeHeaders", False)


def _subscription(given: Mapping[str, str]) -> Subscription:
    named = [name for name in ("subscribe", "subscribePattern", "assign") if name.lower() in given]
    if len(named) != 1:
        problem = f"{' and '.join(named)} are mutually exclusive" if named else "none is given"
        raise ConfigError(f"set exactly one of the options subscribe, subscribePattern and assign; {problem}")
    text = given[named[0].lower()].strip()
    match named[0]:
        case "subscribe":
            return _topics(text)
        case "subscribePattern":
            return _pattern(text)
    return _assigned(text)


def _topics(text: str) -> Topics:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ConfigError(f"option subscribe is {text!r}; accepted are topic names, separated by commas")
    return Topics(names)


def _pattern(text: str) -> Pattern:
    try:
        re.compile(text)
    except re.error as exc:
        raise ConfigError(f"option subscribePattern is {text!r}, not a valid regular expression: {exc}") from exc
    if not text:
        raise ConfigError("option subscribePattern is empty; accepted is a regular expression")
    return Pattern(text)


def _assigned(text: str) -> Assigned:
    example = '{"clicks":[0,1]}'
    parsed = _json("assign", text, example)
    partitions: list[TopicPartition] = []
    for topic, numbers in parsed.items():
        if not isinstance(numbers, list) or not all(map(_is_number, numbers)) or min(numbers, default=0) < 0:
            raise ConfigError(f"option assign is {text!r}; accepted is JSON such as {example}")
        partitions += [TopicPartition(topic, number) for number in numbers]
    if not partitions:
        raise ConfigError("option assign names no partition")
    return Assigned(tuple(sorted(set(partitions))))


def _bound(given: Mapping[str, str], side: str, default: End) -> Bound:
    """The start or the end. One time for all wins over times by partition, and those over offsets (as in Spark)."""
    strategy = _strategy(given) if side == "starting" else NoMatch.LATEST
    name = f"{side}Timestamp"
    time = parse.integer(given, name, lowest=0)
    if time is not None:
        return Times(name, time, strategy)
    name = f"{side}OffsetsByTimestamp"
    if name.lower() in given:
        example = '{"clicks":{"0":1700000000000,"1":1700000000000}}'
        times = _by_partition(name, given[name.lower()], example, lowest=0)
        return Times(name, times, strategy)
    name = f"{side}Offsets"
    text = given.get(name.lower(), default.name).strip()
    if text.upper() in End.__members__:
        return End[text.upper()]
    offsets = _by_partition(name, text, '{"clicks":{"0":23,"1":-2}}, earliest and latest', lowest=_EARLIEST)
    ends = {end.value: end for end in End}
    return FixedOffsets(name, {partition: ends.get(offset, offset) for partition, offset in offsets.items()})


def _strategy(given: Mapping[str, str]) -> NoMatch:
    name = "startingOffsetsByTimestampStrategy"
    text = given.get(name.lower(), NoMatch.ERROR.value).strip().lower()
    try:
        return NoMatch(text)
    except ValueError:
        raise ConfigError(f"option {name} is {text!r}; accepted are error and latest") from None


def _by_partition(name: str, text: str, example: str, *, lowest: int) -> dict[TopicPartition, int]:
    parsed = _json(name, text, example)
    by_partition: dict[TopicPartition, int] = {}
    for topic, numbers in parsed.items():
        if not isinstance(numbers, dict):
            raise ConfigError(f"option {name} is {text!r}; accepted is JSON such as {example}")
        for partition, number in numbers.items():
            if not str(partition).isdecimal() or not _is_number(number) or number < lowest:
                raise ConfigError(
                    f"option {name} has {partition!r}: {number!r} for {topic}; accepted is JSON such as {example}"
                )
            by_partition[TopicPartition(topic, int(partition))] = number
    return by_partition


def _json(name: str, text: str, example: str) -> dict[str, object]:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise ConfigError(f"option {name} is {text!r}; accepted is JSON such as {example}")
    return parsed


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _limits(given: Mapping[str, str]) -> BatchLimits:
    most, least = parse.integer(given, "maxOffsetsPerTrigger"), parse.integer(given, "minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise ConfigError(f"option minOffsetsPerTrigger is {least}, more than maxOffsetsPerTrigger, which is {most}")
    if least is None and parse.is_set(given, "maxTriggerDelay"):
        _log.warning("option maxTriggerDelay has no effect without minOffsetsPerTrigger")
    return BatchLimits(
        max_records=most,
        min_records=least,
        max_bytes=parse.size(given, "maxBytesPerTrigger"),
        max_delay=parse.duration(given, "maxTriggerDelay", _FIFTEEN_MINUTES),
        min_tasks=parse.integer(given, "minPartitions"),
        task_records=parse.integer(given, "maxRecordsPerPartition"),
        task_bytes=parse.size(given, "maxBytesPerPartition") or _TASK_BYTES,
    )


def _isolation(given: Mapping[str, str]) -> Isolation:
    text = given.get("kafka.isolation.level", "read_uncommitted").strip()
    try:
        return parse_isolation(text)
    except ConfigError:
        raise ConfigError(
            f"option kafka.isolation.level is {text!r}; accepted are read_committed and read_uncommitted"
        ) from None


def _fetching(given: Mapping[str, str]) -> Fetching:
    default = Fetching()
    return Fetching(
        request_bytes=_request_bytes(given) or default.request_bytes,
        min_bytes=parse.integer(given, "kafka.fetch.min.bytes") or default.min_bytes,
        max_wait=parse.seconds_from_ms(given, "kafka.fetch.max.wait.ms", default.max_wait),
        max_batch_bytes=parse.size(given, "maxBatchBytes") or default.max_batch_bytes,
    )


def _request_bytes(given: Mapping[str, str]) -> int | None:
    """The size of a fetch response. A task reads one partition, so the limit per partition applies as well."""
    names = ("kafka.fetch.max.bytes", "kafka.max.partition.fetch.bytes")
    limits = [limit for name in names if (limit := parse.integer(given, name, lowest=0)) is not None]
    # Java accepts any number, even one that is useless as a request size.
    return max(min(limits), 1024) if limits else None


def _group(given: Mapping[str, str]) -> str | None:
    name = given.get("commitgroup")
    if name is not None and not name.strip():
        raise ConfigError("option commitGroup is empty; accepted is the name of a consumer group")
    return None if name is None else name.strip()


def _check_order(start: Bound, stop: Bound) -> None:
    """Check that start and stop name the same partitions and that no start is after its stop, as the connector does."""
    first = _by_partition_of(start)
    last = _by_partition_of(stop)
    if first is None or last is None or type(start) is not type(stop):
        return
    if first.keys() != last.keys():
        differing = ", ".join(str(partition) for partition in sorted(first.keys() ^ last.keys()))
        raise ConfigError(f"start and end must name the same partitions; only one of them names {differing}")
    for partition, begin in first.items():
        end = last[partition]
        if isinstance(begin, int) and isinstance(end, int) and begin > end:
            raise ConfigError(f"{partition} would start at {begin}, after its end {end}")


def _by_partition_of(bound: Bound) -> Mapping[TopicPartition, int | End] | None:
    match bound:
        case FixedOffsets(_, offsets):
            return offsets
        case Times(_, times) if isinstance(times, Mapping):
            return times
    return None
