"""Addresses of Redis servers: what they mean, what is refused, and that no password is ever shown."""

from __future__ import annotations

import traceback
from pathlib import Path
from urllib.parse import quote

import pytest

from ottla.config import Address, Tls
from ottla.engines.fleet.redis_address import Kind, Place, parse
from ottla.engines.fleet.store import open_store
from ottla.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis://r", Place(scheme="redis", kind=Kind.ALONE, addresses=(Address("r", 6379),))),
        ("redis://[::1]:7000/3", Place(scheme="redis", kind=Kind.ALONE, addresses=(Address("::1", 7000),), db=3)),
        (
            "redis://me:a%2Fb%40c@r:1/",
            Place(scheme="redis", kind=Kind.ALONE, addresses=(Address("r", 1),), username="me", password="a/b@c"),
        ),
        (
            "redis://:secret@r",
            Place(scheme="redis", kind=Kind.ALONE, addresses=(Address("r", 6379),), password="secret"),
        ),
        ("rediss://r", Place(scheme="rediss", kind=Kind.ALONE, addresses=(Address("r", 6379),), tls=Tls())),
        (
            "rediss://r?ca=/ca.pem&cert=c.pem&key=k.pem&check_hostname=no",
            Place(
                scheme="rediss",
                kind=Kind.ALONE,
                addresses=(Address("r", 6379),),
                tls=Tls(ca_file="/ca.pem", cert_file="c.pem", key_file="k.pem", check_hostname=False),
            ),
        ),
        (
            "redis+sentinel://a,b:1/main/2",
            Place(
                scheme="redis+sentinel",
                kind=Kind.SENTINEL,
                addresses=(Address("a", 26379), Address("b", 1)),
                master="main",
                db=2,
            ),
        ),
        (
            "redis+cluster://a,b:1?tls=yes",
            Place(
                scheme="redis+cluster",
                kind=Kind.CLUSTER,
                addresses=(Address("a", 6379), Address("b", 1)),
                tls=Tls(),
            ),
        ),
    ],
)
def test_an_address_names_a_place(url: str, place: Place) -> None:
    assert parse(url) == place


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://", "a host is missing"),
        ("redis://:6379", "server 1 is not HOST:PORT"),
        ("redis://r:99999", "server 1 is not HOST:PORT"),
        ("redis://a,b", "for several servers use redis+sentinel:// or redis+cluster://"),
        ("redis://r/x", "the database is not a number"),
        ("redis://r/1/2", "the database is not a number"),
        ("redis://me@r", "it has a user without a password; for a password without a user write :PASSWORD@"),
        ("redis://r?ca=x", "ca needs TLS"),
        ("redis://r#1", "it contains a #"),
        ("rediss://r?cafile=x", "the options after the ? are ca, cert, key, check_hostname and password_file"),
        ("redis+cluster://a:1,b:x", "server 2 is not HOST:PORT"),
        ("redis://:a@r?password_file=f", "it has both a password and a password_file"),
        ("redis:r", "it does not begin with redis://"),
        ("rediss://r?key=x", "key needs cert"),
        ("rediss://r?check_hostname=maybe", "check_hostname must be yes or no"),
        ("rediss://r?ca", "not NAME=VALUE"),
        ("redis+sentinel://a:1", "it lacks the name of the master"),
        ("redis+cluster://a:1/1", "a cluster has no databases"),
        ("redis://[::1", "it is not a URL"),
    ],
)
def test_what_is_no_address_is_refused_with_what_is_accepted(url: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(url)
    assert says in str(caught.value)
    assert "Accepted are redis://[USER:PASSWORD@]HOST[:PORT][/DB]" in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter@r/x",
        "redis://:hunter/2@r",
        "redis://:hunter?2@r",
        "redis://:hunter#2@r",
        "redis://:hunter@2@r:bad",
        "redis://:hunter[2@r",
        "redis://hunter@r",
        "redis://:hunter",
        "redis://me:hunter",
        "redis://r:hunter",
        "redis:hunter@r",
        "redis:/:hunter@r",
        "redis//:hunter@r",
        "redis:///:hunter@r",
        "redis://r?password=hunter",
        "redis://r?hunter=x",
        "redis://r?hunter",
        "rediss://r?check_hostname=hunter",
        "redis://r/hunter",
        "redis://r#hunter",
        "redis+cluster://a:1,hunter:x:2",
        "hunter@r:6379",
        "me:hunter@r:6379",
        "HUNTER://r",
        "hunter",
        "sqlite://:hunter@r",
        "memory://hunter",
    ],
)
def test_no_error_shows_a_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(url, "g")
    shown = "".join(traceback.format_exception(caught.value))
    assert "hunter" not in shown.replace(__file__, "").partition("ConfigError:")[2].lower()
    assert "During handling" not in shown
    assert "direct cause" not in shown


def test_a_password_file_is_read_when_it_is_needed(tmp_path: Path) -> None:
    file = tmp_path / "a password"
    url = f"redis://me@r?password_file={quote(str(file))}"
    assert parse(url) == Place(
        scheme="redis", kind=Kind.ALONE, addresses=(Address("r", 6379),), username="me", password_file=str(file)
    )
    with pytest.raises(ConfigError, match=r"its password_file .* cannot be read: No such file"):
        open_store(url, "g")
    file.write_text("\nhunter")
    with pytest.raises(ConfigError, match="has no password in its first line"):
        open_store(url, "g")
    file.write_text("hunter\r\nnot this")
    store = open_store(url, "g")
    assert "hunter" not in repr(store) + store.address


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://me:hunter@r/1", "redis://r:6379/1"),
        ("rediss://:hunter@r?check_hostname=no", "rediss://r:6379"),
        ("redis+sentinel://:hunter@a,b/main/2", "redis+sentinel://a:26379,b:26379/main/2"),
        ("redis+cluster://me:hunter@a:1,[::1]:2", "redis+cluster://a:1,[::1]:2"),
    ],
)
def test_the_address_of_a_store_shows_no_password(url: str, shown: str) -> None:
    store = open_store(url, "g")
    assert store.address == shown
    assert repr(store) == f"RedisStore({shown!r}, 'g')"
    assert "hunter" not in repr(parse(url))
    store.close()
