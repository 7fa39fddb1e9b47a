"""Option names: which are accepted, which have no effect here, and which are refused, with what to use instead.

Options come in as Spark passes them, in any case. Options of Java clients that have no effect here are ignored with a
warning in the log. Options that would change results or security, and unknown or misspelled ones, raise `ConfigError`
before anything starts. Values are not looked at here.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Collection, Mapping

from ottla.errors import ConfigError

PREFIX = "kafka."
_log = logging.getLogger(__name__)

CONNECTION = frozenset(
    {
        "kafka.bootstrap.servers",
        "kafka.client.id",
        "kafka.security.protocol",
        "kafka.ssl.truststore.type",
        "kafka.ssl.truststore.location",
        "kafka.ssl.truststore.certificates",
        "kafka.ssl.keystore.type",
        "kafka.ssl.keystore.location",
        "kafka.ssl.keystore.certificate.chain",
        "kafka.ssl.keystore.key",
        "kafka.ssl.key.password",
        "kafka.ssl.keystore.password",
        "kafka.ssl.truststore.password",
        "kafka.ssl.endpoint.identification.algorithm",
        "kafka.ssl.enabled.protocols",
        "kafka.ssl.protocol",
        "kafka.sasl.mechanism",
        "kafka.sasl.jaas.config",
        "kafka.sasl.login.callback.handler.class",
        "kafka.sasl.oauthbearer.token.endpoint.url",
        "kafka.sasl.oauthbearer.client.credentials.client.id",
        "kafka.sasl.oauthbearer.client.credentials.client.secret",
        "kafka.sasl.oauthbearer.scope",
        "kafka.request.timeout.ms",
        "kafka.default.api.timeout.ms",
        "kafka.socket.connection.setup.timeout.ms",
        "kafka.metadata.max.age.ms",
        "kafka.retry.backoff.ms",
        "kafka.retry.backoff.max.ms",
    }
)
"""How to reach the brokers: the same for reading and writing."""

READING = frozenset(
    {
        "assign",
        "subscribe",
        "subscribePattern",
        "startingOffsets",
        "startingTimestamp",
        "startingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
        "endingOffsets",
        "endingTimestamp",
        "endingOffsetsByTimestamp",
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxBytesPerTrigger",
        "maxTriggerDelay",
        "minPartitions",
        "maxRecordsPerPartition",
        "maxBytesPerPartition",
        "maxBatchBytes",
        "includeHeaders",
        "failOnDataLoss",
        "groupIdPrefix",
        "commitGroup",
        "retryTimeout",
        "kafkaConsumer.pollTimeoutMs",
        "kafka.group.id",
        "kafka.isolation.level",
        "kafka.fetch.min.bytes",
        "kafka.fetch.max.wait.ms",
        "kafka.fetch.max.bytes",
        "kafka.max.partition.fetch.bytes",
    }
)

WRITING = frozenset(
    {
        "kafka.acks",
        "kafka.batch.size",
        "kafka.buffer.memory",
        "kafka.compression.type",
        "kafka.compression.gzip.level",
        "kafka.compression.lz4.level",
        "kafka.compression.zstd.level",
        "kafka.delivery.timeout.ms",
        "kafka.enable.idempotence",
        "kafka.linger.ms",
        "kafka.max.block.ms",
        "kafka.max.request.size",
        "kafka.transaction.timeout.ms",
        "kafka.transactional.id",
    }
)
"""Producer settings."""

_OFFSETS_ARE_OURS = "set startingOffsets to say where to start; Spark's checkpoint keeps the position after that"
_BYTES = (
    "keys and values are always binary: convert them in the DataFrame, for example with cast('string') or from_json"
)
_OPENSSL = "OpenSSL does TLS, version 1.2 or newer, and chooses the ciphers; leave the option out"
_NO_KERBEROS = "the mechanisms are PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER"
_PARTITIONS = "Java classes cannot run here; put the partition into the column partition"

REFUSED: Mapping[str, str] = {
    "kafka.auto.offset.reset": _OFFSETS_ARE_OURS,
    "kafka.key.deserializer": _BYTES,
    "kafka.value.deserializer": _BYTES,
    "kafka.key.serializer": _BYTES,
    "kafka.value.serializer": _BYTES,
    "kafka.enable.auto.commit": "to publish how far the query is as a consumer group, set commitGroup to its name",
    "kafka.interceptor.classes": "Java classes cannot run here; transform records in the DataFrame",
    "kafka.partitioner.class": _PARTITIONS,
    "kafka.partitioner.ignore.keys": _PARTITIONS,
    "kafka.ssl.cipher.suites": _OPENSSL,
    "kafka.ssl.engine.factory.class": _OPENSSL,
    "kafka.sasl.kerberos.service.name": _NO_KERBEROS,
    "kafka.sasl.kerberos.kinit.cmd": _NO_KERBEROS,
    "kafka.sasl.login.class": _NO_KERBEROS,
    "kafka.sasl.client.callback.handler.class": _NO_KERBEROS,
}
"""Options of the connector or of its Java clients that would change results or security, and what to do instead."""

_NO_MEMBER = "Ottla joins no consumer group here, so there is no membership"
_BY_TIME = "failed requests are retried until retryTimeout"
_SYSTEM = "the operating system sizes its buffers"
_CONNECTIONS = "Ottla manages connections by its own rules"
_JAVA = "it concerns the internals of a Java client"
_ALWAYS = "internal topics are always excluded"

IGNORED: Mapping[str, str] = {
    "checkpointLocation": "it is for writeStream",
    "kafka.allow.auto.create.topics": "reading or writing never creates a topic",
    "kafka.auto.commit.interval.ms": "with commitGroup, offsets are published after each batch",
    "kafka.auto.include.jmx.reporter": _JAVA,
    "kafka.check.crcs": "every checksum is always verified",
    "kafka.client.dns.lookup": "all addresses of a name are tried",
    "kafka.client.rack": "records are read from leaders",
    "kafka.connections.max.idle.ms": _CONNECTIONS,
    "kafka.enable.metrics.push": _JAVA,
    "kafka.exclude.internal.topics": _ALWAYS,
    "kafka.group.instance.id": _NO_MEMBER,
    "kafka.group.protocol": _NO_MEMBER,
    "kafka.group.remote.assignor": _NO_MEMBER,
    "kafka.heartbeat.interval.ms": _NO_MEMBER,
    "kafka.max.in.flight.requests.per.connection": "up to five batches of a partition are in flight, in order",
    "kafka.max.poll.interval.ms": _NO_MEMBER,
    "kafka.max.poll.records": "records arrive as columns, thousands at a time; maxOffsetsPerTrigger limits a batch",
    "kafka.metadata.max.idle.ms": _JAVA,
    "kafka.metadata.recovery.rebootstrap.trigger.ms": _CONNECTIONS,
    "kafka.metadata.recovery.strategy": _CONNECTIONS,
    "kafka.metric.reporters": _JAVA,
    "kafka.metrics.num.samples": _JAVA,
    "kafka.metrics.recording.level": _JAVA,
    "kafka.metrics.sample.window.ms": _JAVA,
    "kafka.partition.assignment.strategy": _NO_MEMBER,
    "kafka.partitioner.adaptive.partitioning.enable": "records without a key go to partitions in turn",
    "kafka.partitioner.availability.timeout.ms": "records without a key go to partitions in turn",
    "kafka.receive.buffer.bytes": _SYSTEM,
    "kafka.reconnect.backoff.max.ms": "kafka.retry.backoff.ms and .max.ms set the waits between attempts",
    "kafka.reconnect.backoff.ms": "kafka.retry.backoff.ms and .max.ms set the waits between attempts",
    "kafka.retries": "records are retried until kafka.delivery.timeout.ms",
    "kafka.sasl.login.connect.timeout.ms": _CONNECTIONS,
    "kafka.sasl.login.read.timeout.ms": _CONNECTIONS,
    "kafka.sasl.login.refresh.buffer.seconds": _CONNECTIONS,
    "kafka.sasl.login.refresh.min.period.seconds": _CONNECTIONS,
    "kafka.sasl.login.refresh.window.factor": _CONNECTIONS,
    "kafka.sasl.login.refresh.window.jitter": _CONNECTIONS,
    "kafka.sasl.login.retry.backoff.max.ms": _CONNECTIONS,
    "kafka.sasl.login.retry.backoff.ms": _CONNECTIONS,
    "kafka.send.buffer.bytes": _SYSTEM,
    "kafka.session.timeout.ms": _NO_MEMBER,
    "kafka.socket.connection.setup.timeout.max.ms": "kafka.socket.connection.setup.timeout.ms applies to every attempt",
    "kafka.ssl.keymanager.algorithm": _JAVA,
    "kafka.ssl.provider": _JAVA,
    "kafka.ssl.secure.random.implementation": _JAVA,
    "kafka.ssl.trustmanager.algorithm": _JAVA,
    "fetchOffset.numRetries": _BY_TIME,
    "fetchOffset.retryIntervalMs": "kafka.retry.backoff.ms and .max.ms set the waits between attempts",
    "partition.metadata.cache.ttl.ms": "one request per batch looks up new partitions",
}
"""Options of the connector or of its Java clients that have no effect here, and why."""

_TABLE_OPTION = "provider"
_NO_TABLES = (
    "Spark 4.2 does not pass the options of a table (CREATE TABLE ... USING ottla) to sources written in Python:"
    " use CREATE TEMPORARY VIEW name USING ottla OPTIONS (...), or a DataFrame"
)
_SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")
_warned: set[str] = set()
"""One warning per option and process is enough: Spark parses the options of a query many times."""


def check_names(
    options: Mapping[str, str],
    accepted: Collection[str],
    *,
    use: str,
    refused: Mapping[str, str] = REFUSED,
    ignored: Mapping[str, str] = IGNORED,
) -> None:
    """Check that every option is accepted, or ignored with a warning. `use` ("reading") goes into the error.

    Raises `ConfigError` for a refused or unknown option.
    """
    known = {name.lower(): name for name in accepted}
    advice = {name.lower(): (name, text) for name, text in refused.items()}
    reasons = {name.lower(): text for name, text in ignored.items()}
    if _TABLE_OPTION in {name.lower() for name in options}:
        raise ConfigError(_NO_TABLES)
    for given in options:
        key = given.lower()
        if key in known:
            continue
        if key in advice:
            name, text = advice[key]
            raise ConfigError(f"option {name} is not supported for {use}: {text}")
        if key not in reasons:
            raise ConfigError(f"option {given} is unknown for {use}{_suggestion(key, known, advice)}")
        if key not in _warned:
            _warned.add(key)
            _log.warning("option %s has no effect for %s: %s", given, use, reasons[key])


def meant_for(names: Collection[str], use: str) -> dict[str, str]:
    """Options to ignore because they are for `use`: programs share options between reading and writing.

    Not the subscription: giving it to a write is a mistake.
    """
    return {name: f"it is for {use}" for name in names if name not in _SUBSCRIPTIONS}


def _suggestion(key: str, known: Mapping[str, str], advice: Mapping[str, tuple[str, str]]) -> str:
    prefixed = known.get(PREFIX + key)
    if prefixed is not None:
        return f": it is written {prefixed}"
    near = difflib.get_close_matches(key, [*known, *advice], n=1, cutoff=0.6)
    if near:
        name = known.get(near[0]) or advice[near[0]][0]
        return f": did you mean {name}?"
    return f"; accepted are {', '.join(sorted(known.values(), key=str.lower))}"
