"""Options mean the same as in Spark's Kafka connector; any other option is refused by name."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.config import Plain, Scram
from ottla.errors import ConfigError
from ottla.fetch.options import OnLost
from ottla.model import Isolation, TopicPartition
from ottla.spark import option_names
from ottla.spark.option_names import CONNECTION, IGNORED, READING, REFUSED, WRITING
from ottla.spark.options import cluster_access
from ottla.spark.read_options import (
    Assigned,
    End,
    FixedOffsets,
    NoMatch,
    Pattern,
    ReadOptions,
    Times,
    Topics,
    for_batch,
    for_stream,
    with_headers,
)
from ottla.spark.sink_options import batch_settings

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}
BASE = {**SERVERS, "subscribe": "clicks"}
JAAS = 'org.apache.kafka.common.security.{}LoginModule required username="al\\"ice" password="s3cret";'
PLAIN, SCRAM = JAAS.format("plain.Plain"), JAAS.format("scram.Scram")
PEM = "-----BEGIN CERTIFICATE-----\nMIIB\nabcd\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\n"


def batch(**given: str) -> ReadOptions:
    return for_batch({**BASE, **given})


def stream(**given: str) -> ReadOptions:
    return for_stream({**BASE, **given})


def secured(**given: str) -> dict[str, str]:
    return {**SERVERS, **{f"kafka.{name.replace('_', '.')}": value for name, value in given.items()}}


# Names


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_not_supported_is_refused_with_what_to_do(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        for_batch({**BASE, name.upper(): "1"})
    assert f"option {name} is not supported for reading: {REFUSED[name]}" == str(caught.value)


@pytest.mark.parametrize("name", sorted(IGNORED))
def test_what_has_no_meaning_is_passed_over_with_a_line(name: str, caplog: pytest.LogCaptureFixture) -> None:
    option_names._warned.discard(name.lower())
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert for_batch({**BASE, name: "1"}) == for_batch(BASE)
            batch_settings({**SERVERS, name: "1"})
    assert [record.getMessage() for record in caplog.records] == [
        f"option {name} has no effect for reading: {IGNORED[name]}"
    ]


def test_options_of_a_producer_are_no_mistake_of_a_reader_and_the_other_way_round() -> None:
    assert for_batch({**BASE, **dict.fromkeys(WRITING, "1")}) == for_batch(BASE)
    which = {"subscribe", "subscribePattern", "assign"}
    given = dict.fromkeys(READING - which - {"retryTimeout", "groupIdPrefix"}, "1")
    assert batch_settings({**SERVERS, **given}) == batch_settings(SERVERS)
    for name in which:
        with pytest.raises(ConfigError, match=f"option {name} is unknown for writing"):
            batch_settings({**SERVERS, name: "clicks"})


def test_a_table_of_the_catalog_is_refused_with_what_to_use() -> None:
    with pytest.raises(ConfigError, match="use CREATE TEMPORARY VIEW name USING ottla OPTIONS"):
        for_batch({**BASE, "provider": "ottla", "owner": "root", "option.subscribe": "clicks"})


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ({}, 8 << 20),
        ({"kafka.max.partition.fetch.bytes": "1048576"}, 1 << 20),
        ({"kafka.max.partition.fetch.bytes": "5000000", "kafka.fetch.max.bytes": "2000000"}, 2_000_000),
        ({"kafka.fetch.max.bytes": "1"}, 1024),
    ],
)
def test_a_limit_for_a_partition_is_one_for_an_answer(given: dict[str, str], size: int) -> None:
    assert batch(**given).fetching.request_bytes == size


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("startingOfsets", "startingOffsets"),
        ("subscibe", "subscribe"),
        ("kafka.bootstrap.server", "kafka.bootstrap.servers"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("kafka.sasl.jaas.conf", "kafka.sasl.jaas.config"),
        ("failOnDataLos", "failOnDataLoss"),
    ],
)
def test_a_misspelt_option_gets_the_nearest_name(written: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"option {written} is unknown for reading: did you mean {meant}\?"):
        for_batch({**BASE, written: "1"})


def test_a_forgotten_prefix_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"it is written kafka\.bootstrap\.servers"):
        for_batch({"bootstrap.servers": "localhost:9092", "subscribe": "clicks"})


def test_a_name_like_no_other_gets_the_list() -> None:
    with pytest.raises(ConfigError, match="option zzz is unknown for reading; accepted are assign, commitGroup"):
        for_batch({**BASE, "zzz": "1"})


def test_no_name_is_both_taken_and_refused() -> None:
    taken, refused, ignored = (
        {name.lower() for name in some} for some in (CONNECTION | READING | WRITING, REFUSED, IGNORED)
    )
    assert not taken & refused
    assert not taken & ignored
    assert not refused & ignored


def test_names_count_in_any_case() -> None:
    parsed = for_batch({"KAFKA.BOOTSTRAP.SERVERS": "localhost:9092", "Subscribe": "clicks", "FAILONDATALOSS": "FALSE"})
    assert parsed.on_lost is OnLost.EARLIEST


# What to read


@pytest.mark.parametrize(
    ("given", "subscription"),
    [
        ({"subscribe": " a, b ,,a"}, Topics(("a", "b"))),
        ({"subscribePattern": "click.*"}, Pattern("click.*")),
        ({"assign": '{"b":[1,0],"a":[2]}'}, Assigned((("a", 2), ("b", 0), ("b", 1)))),  # type: ignore[arg-type]
    ],
)
def test_what_to_read(given: dict[str, str], subscription: object) -> None:
    assert for_batch({**SERVERS, **given}).subscription == subscription


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, "set exactly one of the options subscribe, subscribePattern and assign; none is given"),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "subscribe and assign are mutually exclusive"),
        ({"subscribe": " , "}, "option subscribe is ','; accepted are topic names"),
        ({"subscribePattern": "("}, "not a valid regular expression"),
        ({"subscribePattern": ""}, "option subscribePattern is empty"),
        ({"assign": "a"}, r"option assign is 'a'; accepted is JSON such as \{\"clicks\":\[0,1\]\}"),
        ({"assign": '{"a":[-1]}'}, "option assign is"),
        ({"assign": '{"a":["0"]}'}, "option assign is"),
        ({"assign": "{}"}, "names no partition"),
    ],
)
def test_what_to_read_must_be_clear(given: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        for_batch({**SERVERS, **given})


def test_brokers_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"option kafka.bootstrap.servers is missing: give one or more HOST:PORT"):
        for_batch({"subscribe": "clicks"})
    with pytest.raises(ConfigError, match="not HOST:PORT"):
        for_batch({**BASE, "kafka.bootstrap.servers": "http://a:1"})


# From where to where


def test_a_batch_reads_everything_and_a_stream_what_comes() -> None:
    assert (batch().start, batch().stop) == (End.EARLIEST, End.LATEST)
    assert stream().start is End.LATEST
    assert stream(startingOffsets=" Earliest ").start is End.EARLIEST


def test_offsets_are_given_by_partition_with_both_ends_as_numbers() -> None:
    start = batch(startingOffsets='{"clicks":{"0":23,"1":-2}}').start
    assert start == FixedOffsets(
        "startingOffsets", {TopicPartition("clicks", 0): 23, TopicPartition("clicks", 1): End.EARLIEST}
    )


def test_a_time_for_all_wins_over_times_by_partition_and_these_over_offsets() -> None:
    offsets, times = '{"clicks":{"0":1}}', '{"clicks":{"0":5}}'
    partition = TopicPartition("clicks", 0)
    assert batch(startingOffsets=offsets, startingOffsetsByTimestamp=times).start == Times(
        "startingOffsetsByTimestamp", {partition: 5}
    )
    assert batch(startingOffsetsByTimestamp=times, startingTimestamp="7").start == Times("startingTimestamp", 7)
    assert batch(endingTimestamp="9").stop == Times("endingTimestamp", 9, NoMatch.LATEST)
    assert batch(startingTimestamp="7", startingOffsetsByTimestampStrategy="LATEST").start == Times(
        "startingTimestamp", 7, NoMatch.LATEST
    )


@pytest.mark.parametrize(
    ("make", "given", "error"),
    [
        (batch, {"startingOffsets": "latest"}, "option startingOffsets cannot be latest for a batch query"),
        (batch, {"startingOffsets": '{"clicks":{"0":-1}}'}, "cannot be latest"),
        (batch, {"endingOffsets": "earliest"}, "option endingOffsets cannot be earliest"),
        (batch, {"endingOffsets": '{"clicks":{"0":-2}}'}, "cannot be earliest"),
        (batch, {"startingOffsets": "{"}, r"option startingOffsets is '\{'; accepted is JSON such as"),
        (batch, {"startingOffsets": '{"clicks":{"0":-3}}'}, "option startingOffsets has '0': -3 for clicks"),
        (batch, {"startingOffsets": '{"clicks":{"x":3}}'}, "option startingOffsets has 'x': 3"),
        (batch, {"startingOffsets": '{"clicks":3}'}, "option startingOffsets is"),
        (batch, {"startingTimestamp": "yesterday"}, "option startingTimestamp is 'yesterday'; accepted is a whole"),
        (batch, {"startingOffsetsByTimestampStrategy": "skip"}, "accepted are error and latest"),
        (
            batch,
            {"startingOffsets": '{"clicks":{"0":9}}', "endingOffsets": '{"clicks":{"0":8}}'},
            "clicks-0 would start at 9, after its end 8",
        ),
        (
            batch,
            {"startingOffsets": '{"clicks":{"0":1}}', "endingOffsets": '{"clicks":{"0":8,"1":8}}'},
            "only one of them names clicks-1",
        ),
        (batch, {"commitGroup": "g"}, "commitGroup is for streaming queries"),
        (stream, {"endingOffsets": "latest"}, "option endingOffsets is for batch queries; .* use availableNow"),
        (stream, {"endingTimestamp": "1"}, "option endingTimestamp is for batch queries"),
        (stream, {"endingOffsetsByTimestamp": "{}"}, "option endingOffsetsByTimestamp is for batch queries"),
        (stream, {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "minOffsetsPerTrigger is 9, more than"),
        (
            stream,
            {"maxOffsetsPerTrigger": "0"},
            "option maxOffsetsPerTrigger is '0'; accepted is a whole number from 1",
        ),
        (stream, {"maxBytesPerTrigger": "many"}, "option maxBytesPerTrigger is 'many'; accepted is a size in bytes"),
        (stream, {"maxTriggerDelay": "soon", "minOffsetsPerTrigger": "1"}, "accepted is a time such as 500ms"),
        (stream, {"minPartitions": "-1"}, "option minPartitions is '-1'"),
        (stream, {"failOnDataLoss": "maybe"}, "option failOnDataLoss is 'maybe'; accepted are true and false"),
        (stream, {"kafka.isolation.level": "dirty"}, "accepted are read_committed and read_uncommitted"),
        (stream, {"commitGroup": " "}, "option commitGroup is empty"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Callable[..., ReadOptions], given: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        make(**given)


# How much, and how


def test_portions_and_fetching() -> None:
    parsed = stream(
        maxOffsetsPerTrigger="100",
        minOffsetsPerTrigger="10",
        maxTriggerDelay="90s",
        maxBytesPerTrigger="64m",
        minPartitions="7",
        maxRecordsPerPartition="50",
        maxBytesPerPartition="1000",
        commitGroup=" lag ",
        retryTimeout="2m",
        **{"kafka.isolation.level": "READ_COMMITTED", "kafka.fetch.max.bytes": "2048", "kafka.fetch.max.wait.ms": "5"},
    )
    limits = parsed.limits
    assert (limits.max_records, limits.min_records, limits.max_delay) == (100, 10, 90.0)
    assert (limits.max_bytes, limits.task_bytes) == (64 << 20, 1000)
    assert (limits.min_tasks, limits.task_records) == (7, 50)
    assert (parsed.isolation, parsed.group, parsed.retry_timeout) == (Isolation.READ_COMMITTED, "lag", 120.0)
    assert (parsed.fetching.request_bytes, parsed.fetching.max_wait) == (2048, 0.005)


def test_limits_of_a_stream_are_reported_and_ignored_by_a_batch(caplog: pytest.LogCaptureFixture) -> None:
    assert batch(maxOffsetsPerTrigger="5").limits.max_records == 5
    assert "option maxOffsetsPerTrigger is for streaming queries" in caplog.text


def test_headers_are_a_column_only_if_asked_for() -> None:
    assert not with_headers(BASE)
    assert with_headers({"includeheaders": "true"})


def test_read_options_can_be_pickled() -> None:
    given = secured(security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_jaas_config=PLAIN)
    parsed = for_stream({**given, "assign": '{"a":[0]}', "startingOffsets": '{"a":{"0":3}}'})
    assert pickle.loads(pickle.dumps(parsed)) == parsed


def test_timeouts_and_names_of_the_client() -> None:
    found = cluster_access({**BASE, "kafka.request.timeout.ms": "1500", "kafka.default.api.timeout.ms": "9000"})
    assert (found.timeouts.request, found.timeouts.total) == (1.5, 9.0)
    assert found.with_timeout(77.0).timeouts.total == 77.0
    assert cluster_access({**BASE, "kafka.client.id": "me"}).client_id == "me"
    assert cluster_access({**BASE, "groupIdPrefix": "team"}).client_id == "team"


# Security


def test_nothing_said_is_plaintext() -> None:
    assert cluster_access(SERVERS).resolved_security().protocol == "PLAINTEXT"


@pytest.mark.parametrize(
    ("mechanism", "jaas", "sasl"),
    [
        ("PLAIN", PLAIN, Plain('al"ice', "s3cret")),
        ("SCRAM-SHA-256", SCRAM, Scram('al"ice', "s3cret", "SCRAM-SHA-256")),
        ("scram-sha-512", SCRAM, Scram('al"ice', "s3cret", "SCRAM-SHA-512")),
        (
            "PLAIN",
            "org.apache.kafka.common.security.plain.PlainLoginModule  REQUIRED\n username = 'bob' password=x ;",
            Plain("bob", "x"),
        ),
    ],
)
def test_jaas_entries_of_the_plain_and_scram_modules(mechanism: str, jaas: str, sasl: object) -> None:
    given = secured(security_protocol="SASL_PLAINTEXT", sasl_mechanism=mechanism, sasl_jaas_config=jaas)
    security = cluster_access(given).resolved_security()
    assert (security.protocol, security.sasl) == ("SASL_PLAINTEXT", sasl)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"security_protocol": "TLS"}, "kafka.security.protocol is 'TLS'; accepted are PLAINTEXT, SSL"),
        ({"sasl_mechanism": "PLAIN"}, "kafka.sasl.mechanism has no effect with kafka.security.protocol=PLAINTEXT"),
        ({"ssl_key_password": "x"}, "kafka.ssl.key.password has no effect"),
        ({"security_protocol": "SASL_SSL"}, r"kafka.sasl.mechanism is GSSAPI \(Java's default\); accepted are PLAIN"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI"}, "accepted are PLAIN, SCRAM"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}, "needs kafka.sasl.jaas.config, for example"),
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_jaas_config": SCRAM},
            "kafka.sasl.jaas.config is for SCRAM-SHA-256 and SCRAM-SHA-512, kafka.sasl.mechanism is PLAIN",
        ),
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_jaas_config": "x.Y required a=b;"},
            "kafka.sasl.jaas.config names x.Y; accepted are",
        ),
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_jaas_config": "user=a"},
            "is not of the form",
        ),
        (
            {
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "PLAIN",
                "sasl_jaas_config": "org.apache.kafka.common.security.plain.PlainLoginModule required username=a;",
            },
            "kafka.sasl.jaas.config has no password",
        ),
        (
            {
                "security_protocol": "SSL",
                "ssl_truststore_type": "PEM",
                "ssl_truststore_location": "/x",
                "ssl_truststore_certificates": PEM,
            },
            "are mutually exclusive",
        ),
        (
            {"security_protocol": "SSL", "ssl_keystore_type": "PEM", "ssl_keystore_key": KEY},
            "kafka.ssl.keystore.key and kafka.ssl.keystore.certificate.chain belong together",
        ),
        (
            {"security_protocol": "SSL", "ssl_endpoint_identification_algorithm": "ldap"},
            "accepted are https and an empty text",
        ),
    ],
)
def test_security_that_cannot_work_is_refused(given: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigError, match=error) as caught:
        cluster_access(secured(**given))
    assert "s3cret" not in str(caught.value)


def test_passwords_and_keys_do_not_show() -> None:
    given = secured(
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        sasl_jaas_config=PLAIN,
        ssl_keystore_type="PEM",
        ssl_keystore_key=KEY,
        ssl_keystore_certificate_chain=PEM,
        ssl_key_password="hidden",
    )
    shown = repr(for_batch({**given, "subscribe": "a"}))
    assert not any(secret in shown for secret in ("s3cret", "MIIE", "hidden"))


def test_certificates_may_be_files() -> None:
    given = secured(
        security_protocol="SSL",
        ssl_truststore_type="pem",
        ssl_truststore_location="/ca.pem",
        ssl_keystore_type="PEM",
        ssl_keystore_location="/me.pem",
        ssl_key_password="hidden",
        ssl_endpoint_identification_algorithm="",
    )
    tls: Any = cluster_access(given).resolved_security().tls
    assert (tls.ca_file, tls.cert_file, tls.key_file, tls.key_password) == ("/ca.pem", "/me.pem", None, "hidden")
    assert tls.check_hostname is False


@pytest.mark.parametrize("text", [PEM, PEM.replace("\n", "\\n"), PEM.replace("\n", " ")])
def test_certificates_may_be_in_the_option_itself_however_their_lines_end(text: str) -> None:
    given = secured(security_protocol="SSL", ssl_truststore_type="PEM", ssl_truststore_certificates=text)
    tls: Any = cluster_access(given).resolved_security().tls
    assert Path(tls.ca_file).read_text().strip() == PEM.strip()
    assert cluster_access(given).resolved_security().tls.ca_file == tls.ca_file  # type: ignore[union-attr]
