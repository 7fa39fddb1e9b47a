"""The names of options: which there are, which of Spark's Kafka connector are not taken and what to use instead.

Options come in as Spark hands them over, in whatever case; what is unknown, misspelt or not supported is refused in
one error, before anything is started. What the values mean is not known here.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

from ottla.errors import ConfigError

PREFIX = "kafka."

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
        "kafka.ssl.endpoint.identification.algorithm",
        "kafka.sasl.mechanism",
        "kafka.sasl.jaas.config",
        "kafka.request.timeout.ms",
        "kafka.default.api.timeout.ms",
        "kafka.socket.connection.setup.timeout.ms",
        "kafka.metadata.max.age.ms",
        "kafka.retry.backoff.ms",
        "kafka.retry.backoff.max.ms",
    }
)
"""How brokers are reached: the same for reading and writing."""

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
    }
)

_OFFSETS_ARE_OURS = "where to start is the option startingOffsets, and Spark's checkpoint remembers the rest"
_BYTES = (
    "keys and values are always binary: convert them in the DataFrame, for example with cast('string') or from_json"
)
_NO_MEMBER = "no consumer group is joined, so nothing waits for a member; leave it out"
_BY_TIME = "trouble with brokers is retried for as long as retryTimeout says, for example 5m; leave it out"
_OPENSSL = "TLS is done by OpenSSL with TLS 1.2 or newer and its own choice of ciphers; leave it out"
_JKS = "Java key stores are not read: give PEM (set the type to PEM) in a file or in the option itself"
_NO_KERBEROS = "the mechanisms are PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512"
_SYSTEM = "the operating system sizes its buffers itself; leave it out"

REFUSED: Mapping[str, str] = {
    "kafka.auto.offset.reset": _OFFSETS_ARE_OURS,
    "kafka.key.deserializer": _BYTES,
    "kafka.value.deserializer": _BYTES,
    "kafka.key.serializer": _BYTES,
    "kafka.value.serializer": _BYTES,
    "kafka.enable.auto.commit": "to publish how far the query is as a consumer group, set commitGroup to its name",
    "kafka.auto.commit.interval.ms": "offsets are published after each batch where commitGroup names a group",
    "kafka.interceptor.classes": "Java classes cannot run here; transform records in the DataFrame",
    "kafka.partition.assignment.strategy": _NO_MEMBER,
    "kafka.session.timeout.ms": _NO_MEMBER,
    "kafka.heartbeat.interval.ms": _NO_MEMBER,
    "kafka.max.poll.interval.ms": _NO_MEMBER,
    "kafka.group.instance.id": _NO_MEMBER,
    "kafka.group.protocol": _NO_MEMBER,
    "kafka.max.poll.records": "records arrive as columns, thousands at a time; limit a batch with maxOffsetsPerTrigger",
    "kafka.max.partition.fetch.bytes": "a task reads one partition; use kafka.fetch.max.bytes",
    "kafka.check.crcs": "every checksum is verified, always; leave it out",
    "kafka.client.rack": "records are read from leaders; leave it out",
    "kafka.receive.buffer.bytes": _SYSTEM,
    "kafka.send.buffer.bytes": _SYSTEM,
    "kafka.reconnect.backoff.ms": "use kafka.retry.backoff.ms",
    "kafka.reconnect.backoff.max.ms": "use kafka.retry.backoff.max.ms",
    "kafka.ssl.truststore.password": _JKS,
    "kafka.ssl.keystore.password": _JKS,
    "kafka.ssl.protocol": _OPENSSL,
    "kafka.ssl.provider": _OPENSSL,
    "kafka.ssl.enabled.protocols": _OPENSSL,
    "kafka.ssl.cipher.suites": _OPENSSL,
    "kafka.ssl.keymanager.algorithm": _OPENSSL,
    "kafka.ssl.trustmanager.algorithm": _OPENSSL,
    "kafka.ssl.secure.random.implementation": _OPENSSL,
    "kafka.ssl.engine.factory.class": _OPENSSL,
    "kafka.sasl.kerberos.service.name": _NO_KERBEROS,
    "kafka.sasl.kerberos.kinit.cmd": _NO_KERBEROS,
    "kafka.sasl.login.class": _NO_KERBEROS,
    "kafka.sasl.login.callback.handler.class": _NO_KERBEROS,
    "kafka.sasl.client.callback.handler.class": _NO_KERBEROS,
    "fetchOffset.numRetries": _BY_TIME,
    "fetchOffset.retryIntervalMs": "the waits between tries are kafka.retry.backoff.ms and kafka.retry.backoff.max.ms",
    "partition.metadata.cache.ttl.ms": "new partitions are looked up with one request for each batch; leave it out",
}
"""Options of the connector, or of Java clients below it, that are not taken: what to do instead."""


def check_names(
    options: Mapping[str, str], accepted: Collection[str], *, use: str, refused: Mapping[str, str] = REFUSED
) -> None:
    """Every option has a name that is accepted; `use` says what for ("reading"), for the error."""
    known = {name.lower(): name for name in accepted}
    advice = {name.lower(): (name, text) for name, text in refused.items()}
    for given in options:
        key = given.lower()
        if key in known:
            continue
        if key in advice:
            name, text = advice[key]
            raise ConfigError(f"option {name} is not supported for {use}: {text}")
        raise ConfigError(f"option {given} is unknown for {use}{_meant(key, known, advice)}")


def _meant(key: str, known: Mapping[str, str], advice: Mapping[str, tuple[str, str]]) -> str:
    prefixed = known.get(PREFIX + key)
    if prefixed is not None:
        return f": it is written {prefixed}"
    near = difflib.get_close_matches(key, [*known, *advice], n=1, cutoff=0.6)
    if near:
        name = known.get(near[0]) or advice[near[0]][0]
        return f": did you mean {name}?"
    return f"; there are {', '.join(sorted(known.values(), key=str.lower))}"
