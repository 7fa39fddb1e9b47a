"""Options of a write into settings: topic, guarantee, and the producer's `kafka.*` settings under their Java names.

A mapping comes in as Spark hands it over; one frozen, picklable value goes out, from which every task makes a producer
of its own. Everything that can be wrong with options is said here, before anything is written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ottla.errors import ConfigError
from ottla.net.discovery import OnUnknownTopic
from ottla.produce.options import Acks, Batching, Buffering, Settings
from ottla.produce.producer import Producer
from ottla.produce.records import topic as check_topic
from ottla.spark.names import CONNECTION, IGNORED, READING, REFUSED, WRITING, check_names, of_the_other
from ottla.spark.options import Connection, connection, duration, seconds_ms, truth, whole
from ottla.wire.batch import Codec
from ottla.wire.codecs import parse_codec

_PATIENCE = 300.0
"""Seconds for which the driver tries to reach brokers: when it ends a batch, the work of all tasks is at stake."""
_TRANSACTION_TIMEOUT = 900.0
"""What brokers allow unless they are told otherwise (transaction.max.timeout.ms)."""
_FOLDER = "ottla-sink"
SESSION_CHECKPOINTS = "spark.sql.streaming.checkpointLocation"

_OWN = frozenset({"topic", "delivery", "commitLog", "repeatedBatch", "includeHeaders", "retryTimeout"})
_SPARKS = frozenset({"checkpointLocation", "queryName"})
"""Spark passes these on together with ours."""
SINK_OPTIONS = WRITING | {"delivery", "commitLog", "repeatedBatch"}
"""What only a sink takes."""
_REFUSED = {
    **REFUSED,
    "path": "the topic is the option topic, or a column of that name; use save() and start() without a path",
}
_IGNORED = {**of_the_other(READING, "reading"), **IGNORED}
_OWN_PARTITIONER = "org.apache.kafka.clients.producer.internals.DefaultPartitioner"
_MAX_RECORD_BYTES = 1 << 20
"""Java's max.request.size."""


class Guarantee(Enum):
    """What readers of committed data can rely on; the value is that of the option `delivery`."""

    EXACTLY_ONCE = "exactly-once"
    """Each batch is there once, or not at all: in transactions that the tasks prepare and the driver ends."""
    AT_LEAST_ONCE = "at-least-once"
    """What is written again after a failure is there again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """All of a write but its rows."""

    connection: Connection
    topic: str | None
    guarantee: Guarantee
    transaction_timeout: float
    producer: Settings
    buffering: Buffering
    commit_log: Path | None
    """Where a streaming write remembers which transactions it ends; None for one that has the session's location."""
    name: str | None = None
    """How the transactional ids of a batch write begin: a later one of that name ends what this one leaves open."""
    skip_repeated: bool = False
    """A batch that was written before is left out without comparing what is in it."""

    @property
    def target(self) -> str:
        """What a commit log is made for."""
        return "the topics in a column" if self.topic is None else f"topic {self.topic}"

    def open_producer(self, transactional_id: str | None) -> Producer:
        """A producer of this task's own."""
        reached, given = self.connection, self.producer
        return Producer(
            reached.bootstrap,
            security=reached.security,
            client_id=reached.client_id,
            timeouts=reached.timeouts,
            retry=reached.retry,
            buffering=self.buffering,
            transactional_id=transactional_id,
            transaction_timeout=self.transaction_timeout,
            acks=given.acks,
            compression=given.compression,
            level=given.level,
            batching=given.batching,
            delivery_timeout=given.delivery_timeout,
            max_record_bytes=given.max_record_bytes,
            unknown_topic=given.unknown_topic,
            idempotent=given.idempotent,
        )


def batch_settings(options: Mapping[str, str]) -> SinkSettings:
    """Of `df.write`; with `commitLog`, of one within `foreachBatch`."""
    _check_names(options, CONNECTION | WRITING | _OWN)
    given = next((value for name, value in options.items() if name.lower() == "commitlog"), None)
    found = _settings(options)
    if given is None or found.guarantee is Guarantee.AT_LEAST_ONCE:
        return found
    return replace(_unnamed(found), commit_log=_folder("commitLog", given))


def stream_settings(options: Mapping[str, str]) -> SinkSettings:
    """Of `df.writeStream`; exactly-once needs a place for the commit log."""
    _check_names(options, CONNECTION | WRITING | _OWN | _SPARKS)
    found = _settings(options)
    if found.guarantee is Guarantee.AT_LEAST_ONCE:
        return found
    return replace(_unnamed(found), commit_log=_commit_log(options))


def _unnamed(found: SinkSettings) -> SinkSettings:
    if found.name is not None:
        raise ConfigError(
            "option kafka.transactional.id is for df.write: a streaming query makes ids of its own, by which a restart"
            " ends what was left open"
        )
    return found


def _check_names(options: Mapping[str, str], accepted: Collection[str]) -> None:
    check_names(_but_usual(options), accepted, use="writing", refused=_REFUSED, ignored=_IGNORED)


def _but_usual(options: Mapping[str, str]) -> dict[str, str]:
    """Without what says that partitions are chosen as they are anyway."""
    usual = {"kafka.partitioner.class": _OWN_PARTITIONER, "kafka.partitioner.ignore.keys": "false"}
    return {name: value for name, value in options.items() if usual.get(name.lower()) != value.strip()}


def _settings(options: Mapping[str, str]) -> SinkSettings:
    lowered = {name.lower(): value for name, value in options.items()}
    topic = lowered.get("topic")
    if topic is not None:
        check_topic(topic)
    guarantee = _guarantee(lowered)
    producer = _producer(lowered)
    if guarantee is Guarantee.EXACTLY_ONCE and (producer.acks != "all" or not producer.idempotent):
        raise ConfigError(
            "delivery=exactly-once needs kafka.acks=all and kafka.enable.idempotence=true: leave them out,"
            " or choose delivery=at-least-once"
        )
    return SinkSettings(
        connection=connection(options).patient(duration(lowered, "retryTimeout", _PATIENCE)),
        topic=topic,
        guarantee=guarantee,
        transaction_timeout=seconds_ms(lowered, "kafka.transaction.timeout.ms", _TRANSACTION_TIMEOUT),
        producer=producer,
        buffering=_buffering(lowered, producer.delivery_timeout),
        commit_log=None,
        name=_name(lowered, guarantee),
        skip_repeated=_skips(lowered),
    )


def _guarantee(lowered: Mapping[str, str]) -> Guarantee:
    text = lowered.get("delivery", Guarantee.EXACTLY_ONCE.value).strip().lower()
    try:
        return Guarantee(text)
    except ValueError:
        accepted = " and ".join(one.value for one in Guarantee)
        raise ConfigError(f"option delivery is {text!r}; accepted are {accepted}") from None


def _name(lowered: Mapping[str, str], guarantee: Guarantee) -> str | None:
    name = lowered.get("kafka.transactional.id", "").strip()
    if name and guarantee is Guarantee.AT_LEAST_ONCE:
        raise ConfigError("option kafka.transactional.id is for delivery=exactly-once")
    return name or None


def _skips(lowered: Mapping[str, str]) -> bool:
    text = lowered.get("repeatedbatch", "compare").strip().lower()
    if text not in ("compare", "skip"):
        raise ConfigError(f"option repeatedBatch is {text!r}; accepted are compare and skip")
    return text == "skip"


def _producer(lowered: Mapping[str, str]) -> Settings:
    usual = Settings()
    codec = parse_codec(lowered.get("kafka.compression.type", "none").strip().lower())
    bytes_limit = whole(lowered, "kafka.batch.size", lowest=0)
    return Settings(
        acks=_acks(lowered),
        compression=codec,
        level=_level(lowered, codec),
        batching=Batching(
            bytes=usual.batching.bytes if bytes_limit is None else max(bytes_limit, 1024),
            linger=_linger(lowered, usual.batching.linger),
        ),
        delivery_timeout=seconds_ms(lowered, "kafka.delivery.timeout.ms", usual.delivery_timeout),
        max_record_bytes=whole(lowered, "kafka.max.request.size") or _MAX_RECORD_BYTES,
        unknown_topic=OnUnknownTopic.REFUSE,
        idempotent=truth(lowered, "kafka.enable.idempotence", True),
    )


def _acks(lowered: Mapping[str, str]) -> Acks:
    text = lowered.get("kafka.acks", "all").strip().lower()
    accepted: dict[str, Acks] = {"all": "all", "-1": "all", "1": 1, "0": 0}
    if text not in accepted:
        raise ConfigError(f"option kafka.acks is {text!r}; accepted are all, -1, 1 and 0")
    return accepted[text]


def _level(lowered: Mapping[str, str], codec: Codec) -> int | None:
    return whole(lowered, f"kafka.compression.{codec.name.lower()}.level", lowest=-(1 << 17))


def _linger(lowered: Mapping[str, str], usual: float) -> float:
    found = whole(lowered, "kafka.linger.ms", lowest=0)
    return usual if found is None else found / 1000


def _buffering(lowered: Mapping[str, str], delivery_timeout: float) -> Buffering:
    usual = Buffering()
    # A task that waits for room is just waiting for brokers, as long as records may.
    wait = seconds_ms(lowered, "kafka.max.block.ms", max(usual.wait, delivery_timeout))
    return Buffering(bytes=whole(lowered, "kafka.buffer.memory") or usual.bytes, wait=wait)


def _commit_log(options: Mapping[str, str]) -> Path | None:
    """None where only the session may say where checkpoints are, which tasks are told and nobody before them."""
    lowered = {name.lower(): value for name, value in options.items()}
    if "commitlog" in lowered:
        return _folder("commitLog", lowered["commitlog"])
    if "checkpointlocation" in lowered:
        return _folder("checkpointLocation", lowered["checkpointlocation"]) / _FOLDER
    return None


def of_session(location: str | None) -> Path:
    """The commit log of a query without a checkpoint location of its own, from the setting of the session."""
    if location is None:
        raise ConfigError(
            "delivery=exactly-once keeps a small log of transactions beside the query's checkpoint: set the option"
            f" checkpointLocation or commitLog on this query, or {SESSION_CHECKPOINTS} for the session"
        )
    return _folder(SESSION_CHECKPOINTS, location) / _FOLDER


def _folder(name: str, text: str) -> Path:
    """A folder that the driver can reach through its file system."""
    parts = urlsplit(text)
    if parts.scheme not in ("", "file"):
        raise ConfigError(
            f"option {name} is {text}, which the sink cannot write to: set commitLog to a folder on a file system that"
            " every machine on which the driver may run can reach, or choose delivery=at-least-once"
        )
    path = Path(unquote(parts.path) if parts.scheme else text)
    if not path.is_absolute():
        path = Path.cwd() / path
    return path
