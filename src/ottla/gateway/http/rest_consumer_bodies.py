"""Reads and writes the bodies of the REST Proxy's consumer instances. Pure.

Bytes come in, settings, partitions and offsets go out, or a `Problem` with the codes of the REST Proxy. Records become
the array that v2 has, with headers and timestamps as Strimzi's bridge shows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from ottla.admin.committed import Committed
from ottla.gateway.http.bodies import check_utf8, read_time
from ottla.gateway.http.problems import Problem
from ottla.gateway.reading.instance import Place, Terms
from ottla.gateway.reading.rendering import as_base64, as_text, is_json
from ottla.model import Isolation, Record, TopicPartition

T = TypeVar("T")
FORMS = {name: f"application/vnd.kafka.{name}.v2+json" for name in ("binary", "json", "text")}
_STARTS = {"earliest": "earliest", "latest": "latest", "none": "error"}
_LARGEST = (1 << 63) - 2
_LONGEST_METADATA = 4096
_MOST_PARTITIONS = 10_000
_SETTINGS = {
    "name": "name",
    "id": "name",
    "format": "format",
    "auto.offset.reset": "start",
    "auto.commit.enable": "commits",
    "enable.auto.commit": "commits",
    "fetch.min.bytes": "min_bytes",
    "consumer.request.timeout.ms": "wait",
    "isolation.level": "isolation",
}


class _Partition(msgspec.Struct):
    topic: str
    partition: int


class _Offset(msgspec.Struct):
    topic: str
    partition: int
    offset: int
    metadata: str | None = None


class _Time(msgspec.Struct):
    topic: str
    partition: int
    timestamp: str


class _Partitions(msgspec.Struct):
    partitions: list[_Partition]


class _Offsets(msgspec.Struct):
    offsets: list[_Offset] | None = None
    partitions: list[_Offset] | None = None
    """As Redpanda's proxy has it."""


class _Positions(msgspec.Struct):
    offsets: list[_Offset] = []
    timestamps: list[_Time] = []


class _Subscription(msgspec.Struct):
    topics: list[str] | None = None
    topic_pattern: str | None = None


class _Shown(msgspec.Struct, gc=False, omit_defaults=True):
    topic: str
    key: msgspec.Raw | str | None
    value: msgspec.Raw | str | None
    partition: int
    offset: int
    timestamp: int
    headers: list[dict[str, str | None]] | None = None


def read_terms(body: bytes, *, longest_wait: float) -> tuple[str, Terms]:
    """Return the name of a new instance, empty if it is to get one, and its terms. Raises `Problem` 42204."""
    given: dict[str, Any] = {}
    for name, value in (_decoded(body, dict[str, Any]) if body else {}).items():
        if name not in _SETTINGS:
            raise _setting(f"{name[:100]!r} is not a setting; accepted are {', '.join(_SETTINGS)}")
        if value is not None:
            given[_SETTINGS[name]] = value
    form = str(given.get("format", "binary")).lower()
    if form not in FORMS:
        raise _setting(f"the format is {form[:50]!r}; accepted are {', '.join(FORMS)}: schemas need a registry")
    start = str(given.get("start", "latest")).lower()
    if start not in _STARTS:
        raise _setting(f"auto.offset.reset is {start[:50]!r}; accepted are {', '.join(_STARTS)}")
    commits = str(given.get("commits", "true")).lower()
    if commits not in ("true", "false"):
        raise _setting(f"auto.commit.enable is {commits[:50]!r}; accepted are true and false")
    isolation = str(given.get("isolation", "read_uncommitted")).upper()
    if isolation not in Isolation.__members__:
        raise _setting(f"isolation.level is {isolation[:50].lower()!r}; accepted are read_uncommitted, read_committed")
    name = given.get("name", "")
    if not isinstance(name, str):
        raise _setting("the name is not a text")
    wait = _number(given.get("wait", 1000), "consumer.request.timeout.ms", -1)
    return name, Terms(
        form=form,
        start=_STARTS[start],
        commits=commits == "true",
        isolation=Isolation[isolation],
        wait_seconds=min(longest_wait, wait / 1000 if wait >= 0 else 1.0),
        min_bytes=max(1, _number(given.get("min_bytes", -1), "fetch.min.bytes", -1)),
    )


def read_subscription(body: bytes) -> tuple[frozenset[str], str]:
    """Return topics, or a pattern. Raises `Problem`."""
    given = _decoded(body, _Subscription)
    if given.topics is not None and given.topic_pattern is not None:
        raise Problem(409, "topics and topic_pattern exclude each other", code=40903)
    if given.topics is None and not given.topic_pattern:
        raise Problem(422, "a subscription needs topics or topic_pattern", code=42206)
    return frozenset(given.topics or ()), given.topic_pattern or ""


def read_partitions(body: bytes) -> list[TopicPartition]:
    """Return partitions. Raises `Problem`."""
    return [_checked(each.topic, each.partition) for each in _few(_decoded(body, _Partitions).partitions)]


def read_offsets(body: bytes, *, is_next: bool) -> dict[TopicPartition, Committed] | None:
    """Return what to commit; None for all that was read. An offset is that of the last record, or of the next one."""
    if not body.strip():
        return None
    given = _decoded(body, _Offsets)
    if given.offsets is None and given.partitions is None:
        return None
    wanted: dict[TopicPartition, Committed] = {}
    for each in _few([*(given.offsets or ()), *(given.partitions or ())]):
        metadata = each.metadata or ""
        if len(metadata) > _LONGEST_METADATA:
            raise Problem(422, f"the metadata has more than {_LONGEST_METADATA} characters", code=42206)
        offset = _offset(each.offset) + (not is_next)
        wanted[_checked(each.topic, each.partition)] = Committed(offset, metadata=metadata)
    return wanted


def read_positions(body: bytes) -> dict[TopicPartition, Place]:
    """Return where to continue, by partition. Raises `Problem`."""
    given = _decoded(body, _Positions)
    places: dict[TopicPartition, Place] = {
        _checked(each.topic, each.partition): _offset(each.offset) for each in _few(given.offsets)
    }
    for each in _few(given.timestamps):
        seconds = read_time(each.timestamp, "timestamp")
        places[_checked(each.topic, each.partition)] = datetime.fromtimestamp(seconds, UTC)
    if not places:
        raise Problem(422, "offsets is empty", code=42206)
    return places


def records_body(records: Sequence[Record], form: str) -> tuple[bytes, int]:
    """Return the array of records, and how many it has: it ends before one that the format cannot show.

    Raises `Problem` 42203 if that is the first one.
    """
    found: list[_Shown] = []
    for record in records:
        try:
            found.append(_shown(record, form))
        except ValueError:
            if found:
                break
            where = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
            text = (
                f"{record.topic}-{record.partition}: the record at offset {record.offset} is not {_NAMES[form]}: seek"
            )
            raise Problem(
                422, f"{text} past it, or create an instance with the format binary", code=42203, details=where
            ) from None
    return msgspec.json.encode(found), len(found)


_NAMES = {"json": "JSON", "text": "UTF-8"}


def partitions_body(partitions: Iterable[TopicPartition]) -> dict[str, object]:
    """Return partitions as v2 has them."""
    return {"partitions": [tp._asdict() for tp in sorted(partitions)]}


def committed_body(committed: dict[TopicPartition, Committed]) -> dict[str, object]:
    """Return committed offsets as v2 has them."""
    return {
        "offsets": [
            {**tp._asdict(), "offset": each.offset, "metadata": each.metadata} for tp, each in sorted(committed.items())
        ]
    }


def _shown(record: Record, form: str) -> _Shown:
    headers = [
        {"key": name, "value": None if value is None else as_base64(value)} for name, value in record.headers
    ] or None
    return _Shown(
        record.topic,
        _content(record.key, form),
        _content(record.value, form),
        record.partition,
        record.offset,
        round(record.timestamp * 1000),
        headers,
    )


def _content(value: bytes | None, form: str) -> msgspec.Raw | str | None:
    if value is None:
        return None
    if form == "binary":
        return as_base64(value)
    text = as_text(value)
    if text is None:
        raise ValueError
    if form == "text":
        return text
    if not is_json(value):
        raise ValueError
    return msgspec.Raw(value)


def _decoded(body: bytes, kind: type[T]) -> T:
    check_utf8(body)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise Problem(422, str(error), code=42206) from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Problem(400, f"the body is not JSON: {error}", code=40002) from error


def _few(given: list[T]) -> list[T]:
    if len(given) > _MOST_PARTITIONS:
        raise Problem(413, f"the request has more than {_MOST_PARTITIONS:,} partitions", limit="partitions")
    return given


def _checked(topic: str, partition: int) -> TopicPartition:
    if not topic or not 0 <= partition < 1 << 31:
        raise Problem(422, f"{topic[:100]!r}, {partition} is not a partition", code=42206)
    return TopicPartition(topic, partition)


def _offset(offset: int) -> int:
    if not 0 <= offset <= _LARGEST:
        raise Problem(422, f"{offset} is not an offset", code=42206)
    return offset


def _number(value: object, name: str, least: int) -> int:
    text = str(value)
    number = int(text) if len(text) < 11 and text.isascii() and text.removeprefix("-").isdecimal() else least - 1
    if isinstance(value, bool) or number < least:
        raise _setting(f"{name} is {text[:50]!r}: write a whole number from {least}")
    return number


def _setting(text: str) -> Problem:
    return Problem(422, f"invalid consumer configuration: {text}", code=42204)
