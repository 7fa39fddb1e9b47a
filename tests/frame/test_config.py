"""Settings are checked on construction and explain what is wrong."""

from __future__ import annotations

import pytest

from ottla.config import Address, Plain, Retry, Scram, Security, Timeouts, Tls, parse_bootstrap
from ottla.errors import ConfigError
from ottla.model import Fingerprint, OffsetRange, TopicPartition


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:9092", [Address("localhost", 9092)]),
        ("a:1, b:2 ,a:1", [Address("a", 1), Address("b", 2)]),
        ("[::1]:9092,[fe80::2]", [Address("::1", 9092), Address("fe80::2", 9092)]),
        ("broker", [Address("broker", 9092)]),
    ],
)
def test_bootstrap_addresses_are_read(text: str, expected: list[Address]) -> None:
    assert list(parse_bootstrap(text)) == expected
    assert list(parse_bootstrap(map(str, expected))) == expected


@pytest.mark.parametrize(
    "text", ["", " , ", "a:b", "a:0", "a:65536", ":9092", "a:-1", "http://a:1", "fe80::2", "a b:1"]
)
def test_a_bad_bootstrap_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="localhost:9092"):
        parse_bootstrap(text)


@pytest.mark.parametrize("nothing", [None, [], ()])
def test_no_bootstrap_address_at_all_is_refused(nothing: object) -> None:
    with pytest.raises(ConfigError, match="no bootstrap address given"):
        parse_bootstrap(nothing)  # type: ignore[arg-type]


def test_secrets_do_not_show() -> None:
    security = Security(tls=Tls(cert_file="c", key_password="hidden"), sasl=Plain("u", "hidden"))
    assert "hidden" not in repr(security)
    assert "hidden" not in repr(Scram("u", "hidden"))
    assert security.protocol == "SASL_SSL"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Tls(key_file="k"), "cert_file"),
        (lambda: Plain("", "p"), "user name is empty"),
        (lambda: Scram("u", "p", "SCRAM-MD5"), "SCRAM-SHA-256"),  # type: ignore[arg-type]
        (lambda: Retry(initial=2.0, maximum=1.0), "initial <= maximum"),
        (lambda: Retry(jitter=2.0), "jitter"),
        (lambda: Retry(factor=float("nan")), "factor"),
        (lambda: Retry(factor=1e6), "factor"),
        (lambda: Retry(maximum=float("inf")), "maximum"),
        (lambda: Timeouts(request=0), "request"),
        (lambda: Timeouts(total=float("inf")), "total"),
        (lambda: Timeouts(connect="5"), "connect"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_setting_names_itself(make: object, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make()  # type: ignore[operator]


def test_waits_grow_to_their_maximum_and_jitter_only_shortens_them() -> None:
    retry = Retry(initial=0.1, maximum=1.0, factor=2.0, jitter=0.5)
    assert [retry.wait(n, 0.0) for n in (1, 2, 3, 4, 5, 1000)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    assert retry.wait(5, 0.999) == pytest.approx(0.5, rel=0.01)


def test_a_range_is_half_open_and_refuses_to_run_backwards() -> None:
    span = OffsetRange("t", 1, 10, 20)
    assert (len(span), 10 in span, 20 in span) == (10, True, False)
    assert str(span) == "t-1[10, 20)"
    assert span.topic_partition == TopicPartition("t", 1)
    with pytest.raises(ValueError, match="start <= stop"):
        OffsetRange("t", 1, 20, 10)


def test_fingerprints_add_and_subtract() -> None:
    a, b = Fingerprint(2, (1 << 128) - 1), Fingerprint(1, 5)
    assert (a + b) - b == a
    assert (a + b).total == 4
    assert a + b == b + a
