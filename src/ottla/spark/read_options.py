"""What a query reads: which partitions, from where to where, in what portions. Options into one frozen value.

Names and meanings are those of Spark's Kafka connector; what it lets pass and then does not use is refused here. The
value travels to executors. Nothing is asked of brokers.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from ottla.errors import ConfigError
from ottla.fetch.options import Fetching, OnLost, parse_isolation
from ottla.model import Isolation, TopicPartition
from ottla.spark import options as texts
from ottla.spark.names import CONNECTION, IGNORED, READING, WRITING, check_names, of_the_other
from ottla.spark.options import Connection, connection

_log = logging.getLogger(__name__)

_FIVE_MINUTES = 300.0
_FIFTEEN_MINUTES = 900.0
_TASK_BYTES = 128 << 20
_LATEST, _EARLIEST = -1, -2
_IGNORED = {**of_the_other(WRITING, "writing"), **IGNORED}


@dataclass(frozen=True, slots=True)
class Topics:
    """Topics by name, all partitions."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """Every topic in whose name the pattern is found, also one that is created later."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Assigned:
    """These partitions and no others."""

    partitions: tuple[TopicPartition, ...]


What = Topics | Pattern | Assigned


class End(Enum):
    """An end of the log."""

    EARLIEST = _EARLIEST
    LATEST = _LATEST


class NoMatch(Enum):
    """What to do where no record is as new as the time asked for."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Places:
    """An offset for each partition, or an end of its log. `option` is where they were given, for errors."""

    option: str
    offsets: Mapping[TopicPartition, int | End]


@dataclass(frozen=True, slots=True)
class Times:
    """The first record at or after a time, in milliseconds since 1970: one for all partitions, or for each its own."""

    option: str
    times: int | Mapping[TopicPartition, int]
    no_match: NoMatch = NoMatch.ERROR


Limit = End | Places | Times


@dataclass(frozen=True, slots=True, kw_only=True)
class Portions:
    """How much goes into a batch, and into a task."""

    max_records: int | None = None
    min_records: int | None = None
    max_bytes: int | None = None
    max_delay: float = _FIFTEEN_MINUTES
    tasks_at_least: int | None = None
    task_records: int | None = None
    task_bytes: int = _TASK_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Everything that the options of a reading job say."""

    connection: Connection
    what: What
    start: Limit
    stop: Limit = End.LATEST
    portions: Portions = field(default_factory=Portions)
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    on_lost: OnLost = OnLost.ERROR
    fetching: Fetching = field(default_factory=Fetching)
    group: str | None = None
    """The consumer group as which the progress of a streaming query is published."""
    patience: float = _FIVE_MINUTES
    """Seconds for which a query that runs takes trouble with brokers."""


def general(options: Mapping[str, str]) -> ReadOptions:
    """For either kind of query; checks all that does not depend on which it is."""
    check_names(options, CONNECTION | READING, use="reading", ignored=_IGNORED)
    given = {name.lower(): value for name, value in options.items()}
    start = _limit(given, "starting", End.EARLIEST)
    portions = _portions(given)
    return ReadOptions(
        connection=connection(given),
        what=_what(given),
        start=start,
        stop=_limit(given, "ending", End.LATEST),
        portions=portions,
        isolation=_isolation(given),
        on_lost=OnLost.ERROR if texts.truth(given, "failOnDataLoss", True) else OnLost.EARLIEST,
        fetching=_fetching(given),
        group=_group(given),
        patience=texts.seconds_ms(
            given, "kafkaConsumer.pollTimeoutMs", texts.duration(given, "retryTimeout", _FIVE_MINUTES)
        ),
    )


def for_batch(options: Mapping[str, str]) -> ReadOptions:
    """For `spark.read`: everything between two places."""
    wanted = general(options)
    for limit, end, name in (
        (wanted.start, End.LATEST, "startingOffsets"),
        (wanted.stop, End.EARLIEST, "endingOffsets"),
    ):
        named = limit is end or (isinstance(limit, Places) and end in limit.offsets.values())
        if named:
            raise ConfigError(f"option {name} cannot be {end.name.lower()} for a batch query: nothing would be read")
    _check_order(wanted.start, wanted.stop)
    for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger", "maxTriggerDelay"):
        if texts.given(options, name):
            _log.warning("option %s is for streaming queries; a batch query reads everything at once", name)
    if wanted.group is not None:
        raise ConfigError("option commitGroup is for streaming queries: a batch query has no progress to publish")
    return wanted


def for_stream(options: Mapping[str, str]) -> ReadOptions:
    """For `spark.readStream`: from a place on, for ever."""
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        if texts.given(options, name):
            raise ConfigError(f"option {name} is for batch queries; to stop at the end there is now, use availableNow")
    wanted = general(options)
    lowered = {name.lower(): value for name, value in options.items()}
    return ReadOptions(
        **{name: getattr(wanted, name) for name in ReadOptions.__dataclass_fields__ if name != "start"},
        start=_limit(lowered, "starting", End.LATEST),
    )


def with_headers(options: Mapping[str, str]) -> bool:
    """Whether the column `headers` is there when no schema is given."""
    return texts.truth(options, "includeHeaders", False)


def _what(given: Mapping[str, str]) -> What:
    named = [name for name in ("subscribe", "subscribePattern", "assign") if name.lower() in given]
    if len(named) != 1:
        found = f"{' and '.join(named)} exclude each other" if named else "none is given"
        raise ConfigError(
            f"exactly one of the options subscribe, subscribePattern and assign says what to read; {found}"
        )
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
        raise ConfigError(f"option subscribe is {text!r}; accepted are names of topics, separated by commas")
    return Topics(names)


def _pattern(text: str) -> Pattern:
    try:
        re.compile(text)
    except re.error as exc:
        raise ConfigError(f"option subscribePattern is {text!r}, which is no regular expression: {exc}") from exc
    if not text:
        raise ConfigError("option subscribePattern is empty; accepted is a regular expression")
    return Pattern(text)


def _assigned(text: str) -> Assigned:
    example = '{"clicks":[0,1]}'
    parsed = _json("assign", text, example)
    found: list[TopicPartition] = []
    for topic, numbers in parsed.items():
        if not isinstance(numbers, list) or not all(map(_is_number, numbers)) or min(numbers, default=0) < 0:
            raise ConfigError(f"option assign is {text!r}; accepted is JSON such as {example}")
        found += [TopicPartition(topic, number) for number in numbers]
    if not found:
        raise ConfigError("option assign names no partition")
    return Assigned(tuple(sorted(set(found))))


def _limit(given: Mapping[str, str], side: str, default: End) -> Limit:
    """A time for all wins over times by partition, and these over offsets, as in the connector."""
    strategy = _strategy(given) if side == "starting" else NoMatch.LATEST
    name = f"{side}Timestamp"
    time = texts.whole(given, name, lowest=0)
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
    return Places(name, {at: ends.get(offset, offset) for at, offset in offsets.items()})


def _strategy(given: Mapping[str, str]) -> NoMatch:
    name = "startingOffsetsByTimestampStrategy"
    text = given.get(name.lower(), NoMatch.ERROR.value).strip().lower()
    try:
        return NoMatch(text)
    except ValueError:
        raise ConfigError(f"option {name} is {text!r}; accepted are error and latest") from None


def _by_partition(name: str, text: str, example: str, *, lowest: int) -> dict[TopicPartition, int]:
    parsed = _json(name, text, example)
    found: dict[TopicPartition, int] = {}
    for topic, numbers in parsed.items():
        if not isinstance(numbers, dict):
            raise ConfigError(f"option {name} is {text!r}; accepted is JSON such as {example}")
        for partition, number in numbers.items():
            if not str(partition).isdecimal() or not _is_number(number) or number < lowest:
                raise ConfigError(
                    f"option {name} has {partition!r}: {number!r} for {topic}; accepted is such as {example}"
                )
            found[TopicPartition(topic, int(partition))] = number
    return found


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


def _portions(given: Mapping[str, str]) -> Portions:
    most, least = texts.whole(given, "maxOffsetsPerTrigger"), texts.whole(given, "minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise ConfigError(f"option minOffsetsPerTrigger is {least}, more than maxOffsetsPerTrigger, which is {most}")
    if least is None and texts.given(given, "maxTriggerDelay"):
        _log.warning("option maxTriggerDelay has no effect without minOffsetsPerTrigger")
    return Portions(
        max_records=most,
        min_records=least,
        max_bytes=texts.size(given, "maxBytesPerTrigger"),
        max_delay=texts.duration(given, "maxTriggerDelay", _FIFTEEN_MINUTES),
        tasks_at_least=texts.whole(given, "minPartitions"),
        task_records=texts.whole(given, "maxRecordsPerPartition"),
        task_bytes=texts.size(given, "maxBytesPerPartition") or _TASK_BYTES,
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
    usual = Fetching()
    return Fetching(
        request_bytes=_request_bytes(given) or usual.request_bytes,
        min_bytes=texts.whole(given, "kafka.fetch.min.bytes") or usual.min_bytes,
        max_wait=texts.seconds_ms(given, "kafka.fetch.max.wait.ms", usual.max_wait),
        max_batch_bytes=texts.size(given, "maxBatchBytes") or usual.max_batch_bytes,
    )


def _request_bytes(given: Mapping[str, str]) -> int | None:
    """A task reads one partition, so a limit for one is that of an answer. Java takes any, too small ones too."""
    names = ("kafka.fetch.max.bytes", "kafka.max.partition.fetch.bytes")
    found = [limit for name in names if (limit := texts.whole(given, name, lowest=0)) is not None]
    return max(min(found), 1024) if found else None


def _group(given: Mapping[str, str]) -> str | None:
    name = given.get("commitgroup")
    if name is not None and not name.strip():
        raise ConfigError("option commitGroup is empty; accepted is the name of a consumer group")
    return None if name is None else name.strip()


def _check_order(start: Limit, stop: Limit) -> None:
    """What the connector checks before it asks anybody: the same partitions, and no start after its stop."""
    first = _mapped(start)
    last = _mapped(stop)
    if first is None or last is None or type(start) is not type(stop):
        return
    if first.keys() != last.keys():
        differing = ", ".join(str(at) for at in sorted(first.keys() ^ last.keys()))
        raise ConfigError(f"start and end must name the same partitions; only one of them names {differing}")
    for at, begin in first.items():
        end = last[at]
        if isinstance(begin, int) and isinstance(end, int) and begin > end:
            raise ConfigError(f"{at} would start at {begin}, after its end {end}")


def _mapped(limit: Limit) -> Mapping[TopicPartition, int | End] | None:
    match limit:
        case Places(_, offsets):
            return offsets
        case Times(_, times) if isinstance(times, Mapping):
            return times
    return None
