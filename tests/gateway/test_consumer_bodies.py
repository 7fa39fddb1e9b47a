"""Bodies of consumer instances, without brokers."""

from __future__ import annotations

import json

import pytest

from ottla.errors import ConfigError
from ottla.gateway.http.problems import Problem
from ottla.gateway.http.rest_consumer_bodies import read_offsets, read_terms, records_body
from ottla.gateway.reading.instance import Terms
from ottla.gateway.reading.instances import matching
from ottla.gateway.settings import Settings
from ottla.model import Isolation, Record, TopicPartition
from ottla.net.access import ClusterAccess

_TP = TopicPartition("t", 1)


def test_settings_have_the_names_of_the_proxy_and_of_the_bridge() -> None:
    assert read_terms(b"", longest_wait=30.0) == ("", Terms())
    given = {
        "name": "one",
        "format": "JSON",
        "auto.offset.reset": "none",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "fetch.min.bytes": "100",
        "consumer.request.timeout.ms": 99_000,
    }
    terms = Terms(
        form="json",
        start="error",
        commits=False,
        isolation=Isolation.READ_COMMITTED,
        min_bytes=100,
        wait_seconds=30.0,
    )
    assert read_terms(json.dumps(given).encode(), longest_wait=30.0) == ("one", terms)


def test_an_offset_in_a_commit_is_the_last_one_or_the_next_one() -> None:
    body = b'{"offsets": [{"topic": "t", "partition": 1, "offset": 7}]}'
    for is_next, expected in ((False, 8), (True, 7)):
        offsets = read_offsets(body, is_next=is_next)
        assert offsets is not None
        assert offsets[_TP].offset == expected
    assert read_offsets(b"", is_next=False) is read_offsets(b"{}", is_next=False) is None  # all that was read
    assert read_offsets(b'{"offsets": []}', is_next=False) == {}  # nothing


def _record(value: bytes | None, offset: int) -> Record:
    return Record("t", 1, offset, 1.5, None, value, ())


def test_what_a_format_cannot_show_comes_after_what_it_can() -> None:
    records = [_record(b'{"a":\n1}', 3), _record(None, 4), _record(b"text", 5)]
    body, count = records_body(records, "json")
    assert count == 2
    assert [each["value"] for each in json.loads(body)] == [{"a": 1}, None]
    with pytest.raises(Problem) as raised:
        records_body(records[2:], "json")
    assert (raised.value.code, raised.value.details["offset"]) == (42203, 5)
    assert records_body(records, "text")[1] == records_body(records, "binary")[1] == 3
    for value in (b"\xff", b'"\\ud800"', b"[" * 300 + b"]" * 300, b""):
        with pytest.raises(Problem):
            records_body([_record(value, 0)], "json")


def test_a_pattern_takes_no_longer_than_its_names_are_long() -> None:
    names = ["a" * 200 + str(number) for number in range(1000)] + ["b"]
    assert matching(names, "(a+)+x|b") == {"b"}
    assert matching(names, "b|a") == {"b"}
    assert matching(["a.b", "axb"], r"a\.b") == {"a.b"}
    assert matching([], "a") == frozenset()
    for pattern in ("(", "a{1000}{1000}", "(?=a)", r"(a)\1", "\ud800"):
        with pytest.raises(ValueError, match="not a regular expression"):
            matching(names, pattern)


@pytest.mark.parametrize("base_uri", ["kafka.example", "ftp://a", "https://a b", "https://a/?q", "javascript:x"])
def test_a_base_that_is_no_address_is_refused(base_uri: str) -> None:
    with pytest.raises(ConfigError, match="base_uri"):
        Settings(cluster=ClusterAccess(bootstrap="b:1"), base_uri=base_uri)
