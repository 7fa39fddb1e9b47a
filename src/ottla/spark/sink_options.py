"""What a query writes: topic, guarantee, and the producer's `kafka.*` settings under their Java names.

Spark's options come in; one frozen, picklable `SinkSettings` goes out, from which every task makes its own producer.
Every wrong option raises `ConfigError` here, before anything is written. This module never connects.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ottla.errors import ConfigError
from ottla.net.access import ClusterAccess
from ottla.net.discovery import OnUnknownTopic
from ottla.produce.options import Acks, Batching, Buffering, Settings
from ottla.produce.producer import Producer
from ottla.produce.records import topic as check_topic
from ottla.spark.option_names import CONNECTION, IGNORED, READING, REFUSED, WRITING, check_names, meant_for
from ottla.spark.options import boolean, cluster_access, duration, integer, seconds_from_ms
from ottla.wire.batch import Codec
from ottla.wire.codecs import parse_codec

_RETRY_TIMEOUT = 300.0
"""Seconds for which the driver retries: when it ends a batch, the work of all tasks is at stake."""
_TRANSACTION_TIMEOUT = 900.0
"""The default of the brokers' transaction.max.timeout.ms, in seconds."""
_FOLDER = "ottla-sink"
SESSION_CHECKPOINTS = "spark.sql.streaming.checkpointLocation"

_OWN = frozenset({"topic", "delivery", "commitLog", "repeatedBatch", "includeHeaders", "retryTimeout"})
_SPARK_OPTIONS = frozenset({"checkpointLocation", "queryName"})
"""Spark passes its own options along with ours."""
SINK_OPTIONS = WRITING | {"delivery", "commitLog", "repeatedBatch"}
"""Options that only the sink takes."""
_REFUSED = {
    **REFUSED,
    "path": "set the topic with the option topic or a column of that name, and call save() and start() without a path",
}
_IGNORED = {**meant_for(READING, "reading"), **IGNORED}
_DEFAULT_PARTITIONER = "org.apache.kafka.clients.producer.internals.DefaultPartitioner"
_MAX_RECORD_BYTES = 1 << 20
"""The default of Java's max.request.size."""


class Guarantee(Enum):
    """What readers of committed data can rely on. Values are those of the option `delivery`."""

    EXACTLY_ONCE = "exactly-once"
    """Each batch is in the topic once or not at all: tasks prepare transactions, the driver ends them."""
    AT_LEAST_ONCE = "at-least-once"
    """Rows that are written again after a failure are duplicated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """Everything about a write except its rows."""

    access: ClusterAccess
    topic: str | None
    guarantee: Guarantee
    transaction_timeout: float
    producer: Settings
    buffering: Buffering
    commit_log: Path | None
    """Folder in which a streaming write records its transactions; None if the session's setting decides."""
    name: str | None = None
    """Prefix of a batch write's transactional ids. A later write with this name ends what this one leaves open."""
    skip_repeated: bool = False
    """Skip a batch that was written before without comparing its records."""

    @property
    def target(self) -> str:
        """What the commit log is for. Persisted in it: do not change the texts."""
        return "the topics in a column" if self.topic is None else f"topic {self.topic}"

    def open_producer(self, transactional_id: str | None) -> Producer:
        """A new producer for this task. The caller closes it."""
        settings = self.producer
        return Producer(
            self.access,
            buffering=self.buffering,
            transactional_id=transactional_id,
            transaction_timeout=self.transaction_timeout,
            acks=settings.acks,
            compression=settings.compression,
            level=settings.level,
            batching=settings.batching,
            delivery_timeout=settings.delivery_timeout,
            max_record_bytes=settings.max_record_bytes,
            unknown_topic=settings.unknown_topic,
            idempotent=settings.idempotent,
        )


def batch_settings(options: Mapping[str, str]) -> SinkSettings:
    """Parse the options of `df.write`; with `commitLog`, of a write within `foreachBatch`. Raises `ConfigError`."""
    _check_names(options, CONNECTION | WRITING | _OWN)
    commit_log = next((value for name, value in options.items() if name.lower() == "commitlog"), None)
    settings = _settings(options)
    if commit_log is None or settings.guarantee is Guarantee.AT_LEAST_ONCE:
        return settings
    _refuse_name(settings)
    return replace(settings, commit_log=_folder("commitLog", commit_log))


def stream_settings(options: Mapping[str, str]) -> SinkSettings:
    """Parse the options of `df.writeStream`. Raises `ConfigError`."""
    _check_names(options, CONNECTION | WRITING | _OWN | _SPARK_OPTIONS)
    settings = _settings(options)
    if settings.guarantee is Guarantee.AT_LEAST_ONCE:
        return settings
    _refuse_name(settings)
    return replace(settings, commit_log=_commit_log(options))


def _refuse_name(settings: SinkSettings) -> None:
    if settings.name is not None:
        raise ConfigError(
            "option kafka.transactional.id is for df.write: a streaming query makes its own ids, and a restart uses"
            " them to end what was left open"
        )


def _check_names(options: Mapping[str, str], accepted: Collection[str]) -> None:
    check_names(_without_defaults(options), accepted, use="writing", refused=_REFUSED, ignored=_IGNORED)


def _without_defaults(options: Mapping[str, str]) -> dict[str, str]:
    """The options without partitioner settings that ask for the default, which is what we do."""
    defaults = {"kafka.partitioner.class": _DEFAULT_PARTITIONER, "kafka.partitioner.ignore.keys": "false"}
    return {name: value for name, value in options.items() if defaults.get(name.lower()) != value.strip()}


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
        access=cluster_access(options).with_timeout(duration(lowered, "retryTimeout", _RETRY_TIMEOUT)),
        topic=topic,
        guarantee=guarantee,
        transaction_timeout=seconds_from_ms(lowered, "kafka.transaction.timeout.ms", _TRANSACTION_TIMEOUT),
        producer=producer,
        buffering=_buffering(lowered, producer.delivery_timeout),
        commit_log=None,
        name=_name(lowered, guarantee),
        skip_repeated=_skip_repeated(lowered),
    )


def _guarantee(lowered: Mapping[str, str]) -> Guarantee:
    text = lowered.get("delivery", Guarantee.EXACTLY_ONCE.value).strip().lower()
    try:
        return Guarantee(text)
    except ValueError:
        accepted = " and ".join(guarantee.value for guarantee in Guarantee)
        raise ConfigError(f"option delivery is {text!r}; accepted are {accepted}") from None


def _name(lowered: Mapping[str, str], guarantee: Guarantee) -> str | None:
    name = lowered.get("kafka.transactional.id", "").strip()
    if name and guarantee is Guarantee.AT_LEAST_ONCE:
        raise ConfigError("option kafka.transactional.id is for delivery=exactly-once")
    return name or None


def _skip_repeated(lowered: Mapping[str, str]) -> bool:
    text = lowered.get("repeatedbatch", "compare").strip().lower()
    if text not in ("compare", "skip"):
        raise ConfigError(f"option repeatedBatch is {text!r}; accepted are compare and skip")
    return text == "skip"


def _producer(lowered: Mapping[str, str]) -> Settings:
    default = Settings()
    codec = parse_codec(lowered.get("kafka.compression.type", "none").strip().lower())
    bytes_limit = integer(lowered, "kafka.batch.size", lowest=0)
    return Settings(
        acks=_acks(lowered),
        compression=codec,
        level=_level(lowered, codec),
        batching=Batching(
            bytes=default.batching.bytes if bytes_limit is None else max(bytes_limit, 1024),
            linger=_linger(lowered, default.batching.linger),
        ),
        delivery_timeout=seconds_from_ms(lowered, "kafka.delivery.timeout.ms", default.delivery_timeout),
        max_record_bytes=integer(lowered, "kafka.max.request.size") or _MAX_RECORD_BYTES,
        unknown_topic=OnUnknownTopic.REFUSE,
        idempotent=boolean(lowered, "kafka.enable.idempotence", True),
    )


def _acks(lowered: Mapping[str, str]) -> Acks:
    text = lowered.get("kafka.acks", "all").strip().lower()
    accepted: dict[str, Acks] = {"all": "all", "-1": "all", "1": 1, "0": 0}
    if text not in accepted:
        raise ConfigError(f"option kafka.acks is {text!r}; accepted are all, -1, 1 and 0")
    return accepted[text]


def _level(lowered: Mapping[str, str], codec: Codec) -> int | None:
    return integer(lowered, f"kafka.compression.{codec.name.lower()}.level", lowest=-(1 << 17))


def _linger(lowered: Mapping[str, str], default: float) -> float:
    milliseconds = integer(lowered, "kafka.linger.ms", lowest=0)
    return default if milliseconds is None else milliseconds / 1000


def _buffering(lowered: Mapping[str, str], delivery_timeout: float) -> Buffering:
    default = Buffering()
    # A task that waits for buffer space waits for the brokers, so it may wait as long as a record may take.
    wait = seconds_from_ms(lowered, "kafka.max.block.ms", max(default.wait, delivery_timeout))
    return Buffering(bytes=integer(lowered, "kafka.buffer.memory") or default.bytes, wait=wait)


def _commit_log(options: Mapping[str, str]) -> Path | None:
    """The commit log; None if only the session's setting can say where it is, which only tasks see."""
    lowered = {name.lower(): value for name, value in options.items()}
    if "commitlog" in lowered:
        return _folder("commitLog", lowered["commitlog"])
    if "checkpointlocation" in lowered:
        return _folder("checkpointLocation", lowered["checkpointlocation"]) / _FOLDER
    return None


def session_commit_log(location: str | None) -> Path:
    """The commit log of a query without its own checkpoint location. Raises `ConfigError` if the session has none."""
    if location is None:
        raise ConfigError(
            "delivery=exactly-once keeps a small commit log beside the query's checkpoint: set the option"
            f" checkpointLocation or commitLog on this query, or {SESSION_CHECKPOINTS} for the session"
        )
    return _folder(SESSION_CHECKPOINTS, location) / _FOLDER


def _folder(name: str, text: str) -> Path:
    """A folder on the driver's file system."""
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
