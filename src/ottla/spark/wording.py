"""Advice in error texts, in terms of Spark's options: settings of the library are options here.

Errors come in with the library's advice; the same errors go out and name options instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ottla.errors import Advice, CorruptBatch, OttlaError, reworded

WORDS: Mapping[Advice, str] = {
    Advice.USE_TLS: "set kafka.security.protocol to SSL or SASL_SSL",
    Advice.NO_TLS: "is this a listener without TLS? Then set kafka.security.protocol to PLAINTEXT or SASL_PLAINTEXT",
    Advice.CA_FILE: "set kafka.ssl.truststore.location to the certificate of the signing authority, and .type to PEM",
    Advice.HOST_NAME: "connect by a name in the certificate, or, if you accept the risk, set"
    " kafka.ssl.endpoint.identification.algorithm to an empty text",
    Advice.CERTIFICATE: "set kafka.ssl.keystore.location",
    Advice.USE_SASL: "does this listener ask for SASL? Then set kafka.security.protocol to SASL_SSL or SASL_PLAINTEXT,"
    " kafka.sasl.mechanism and kafka.sasl.jaas.config",
    Advice.NO_SASL: "set kafka.security.protocol to SSL or PLAINTEXT",
    Advice.LOGIN: "the user is set with kafka.sasl.jaas.config",
    Advice.PROTECT: "set kafka.security.protocol to SASL_SSL, or kafka.sasl.mechanism to SCRAM-SHA-512",
    Advice.ON_LOST: "failOnDataLoss=false continues with the records that exist",
    Advice.RECORD_SIZE: "kafka.max.request.size; raise it together with max.message.bytes of the topic",
    Advice.BATCH_SIZE: "the option maxBatchBytes raises it",
    Advice.FETCH_SIZE: "raise kafka.fetch.max.bytes",
    # These do not come up in the data source.
    **{
        advice: advice.value
        for advice in (
            Advice.GROUP_SETTINGS,
            Advice.LAKE_LAYOUT,
            Advice.REPLAY_AGAIN,
            Advice.VERIFY,
            Advice.VERIFY_DEEP,
            Advice.LAKE_REPAIR,
            Advice.CLUSTER_START,
            Advice.CLUSTER_RESTART,
            Advice.CLUSTER_RESUME,
            Advice.CLUSTER_REMOVE,
            Advice.CLUSTER_CLEAR,
            Advice.JAR_CACHE,
            Advice.ADDRESS,
        )
    },
}


@contextmanager
def in_options() -> Iterator[None]:
    """Make errors that leave the block name options. Also a decorator, but not for generators: they run later."""
    try:
        yield
    except CorruptBatch as error:
        error.reason = reworded(error.reason, WORDS)
        raise
    except OttlaError as error:
        error.args = tuple(reworded(arg, WORDS) if isinstance(arg, str) else arg for arg in error.args)
        raise
