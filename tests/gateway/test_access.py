"""Who is let in: logins, rules, rates, and pages of the web. Secrets show nowhere."""

from __future__ import annotations

import asyncio
import base64
import logging
import socket
import ssl
from contextlib import suppress
from pathlib import Path

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.plain import exchange, plain_listener, receive, statuses

from ottla.errors import ConfigError
from ottla.gateway.access.gate import Access, Gate
from ottla.gateway.access.rates import Buckets, Rates
from ottla.gateway.access.rules import ANONYMOUS, Rule, Verb, is_allowed
from ottla.gateway.access.secrets import Hashed, hash_secret, line_of, new_token, parse_secrets
from ottla.gateway.http.guard import Connection
from ottla.gateway.http.problems import Problem, check_share
from ottla.gateway.settings import Listen, parse_listen
from ottla.gateway.tls import ServerTls

_SECRET = "correct horse battery"


def _request(authorization: str = "", headers: str = "") -> bytes:
    login = f"Authorization: {authorization}\r\n" if authorization else ""
    return (
        "POST /v1/topics/t/records HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        "Content-Type: application/json\r\n"
        f"{login}{headers}Content-Length: 2\r\n\r\n{{}}"
    ).encode()


def _basic(name: str, secret: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{secret}".encode()).decode()


@pytest.fixture(scope="module")
def secrets() -> dict[str, Hashed]:
    return parse_secrets(line_of("billing", hash_secret(_SECRET.encode())), "a test")


def test_a_line_of_the_file_checks_its_secret_and_no_other(secrets: dict[str, Hashed]) -> None:
    assert secrets["billing"].matches(_SECRET.encode())
    assert not secrets["billing"].matches(b"wrong")
    assert _SECRET not in line_of("billing", secrets["billing"])
    assert "digest" not in repr(secrets)


@pytest.mark.parametrize(
    "line",
    [
        "billing:password",
        "billing:scrypt:16384:8:1:AAAA:AAAA",
        "billing:scrypt:16383:8:1:AAAAAAAAAAA=:" + "A" * 43 + "=",
        "billing:scrypt:1073741824:8:1:AAAAAAAAAAA=:" + "A" * 43 + "=",
        "billing:scrypt:x:8:1:AAAAAAAAAAA=:" + "A" * 43 + "=",
        "billing:scrypt:16384:8:1:?:" + "A" * 43 + "=",
        "b lling:scrypt:16384:8:1:AAAAAAAAAAA=:" + "A" * 43 + "=",
        "\n".join(["billing:scrypt:16384:8:1:AAAAAAAAAAA=:" + "A" * 43 + "="] * 2),
    ],
)
def test_a_wrong_line_is_refused_with_its_number_and_without_its_content(line: str) -> None:
    with pytest.raises(ConfigError, match=r"a test, line [12]") as caught:
        parse_secrets(line, "a test")
    assert "password" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_login_is_needed_and_checked(secrets: dict[str, Hashed], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with plain_listener(access=Access(secrets=secrets, needs_login=True)) as plain:
        refused = exchange(plain.port, _request())
        assert statuses(refused) == [401]
        assert b"www-authenticate" in refused
        for wrong in (
            _basic("billing", "wrong"),
            _basic("other", _SECRET),
            "Basic nonsense",
            "Basic",
            "Digest x",
            "Bearer billing",
            "Bearer billing." + _SECRET,
        ):
            assert statuses(exchange(plain.port, _request(wrong))) == [401], wrong
        answer = exchange(plain.port, _request(_basic("billing", _SECRET)))
        assert b'"by":"billing"' in answer
    assert _SECRET not in caplog.text
    assert base64.b64encode(f"billing:{_SECRET}".encode()).decode() not in caplog.text


def test_a_token_is_a_login() -> None:
    token = new_token("billing")
    secrets = {"billing": hash_secret(token.encode())}
    with plain_listener(access=Access(secrets=secrets, needs_login=True)) as plain:
        assert b'"by":"billing"' in exchange(plain.port, _request(f"Bearer {token}"))
        assert statuses(exchange(plain.port, _request(f"Bearer {token}x"))) == [401]


def test_a_secret_is_verified_once_and_wrong_guesses_are_slowed_down(
    secrets: dict[str, Hashed], monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = 0
    matches = Hashed.matches

    def counted(self: Hashed, secret: bytes) -> bool:
        nonlocal checks
        checks += 1
        return matches(self, secret)

    monkeypatch.setattr(Hashed, "matches", counted)
    with plain_listener(access=Access(secrets=secrets, needs_login=True)) as plain:
        for _ in range(20):
            assert statuses(exchange(plain.port, _request(_basic("billing", _SECRET)))) == [200]
        assert checks == 1
        found = [statuses(exchange(plain.port, _request(_basic("billing", f"guess {n}"))))[0] for n in range(14)]
        assert found[0] == 401
        assert found[-1] == 429
        assert checks <= 13
        assert statuses(exchange(plain.port, _request(_basic("billing", _SECRET)))) == [200]


def test_right_logins_that_come_together_are_no_guesses(secrets: dict[str, Hashed]) -> None:
    gate = Gate(Access(secrets=secrets, needs_login=True))
    headers = {b"authorization": _basic("billing", _SECRET).encode()}

    async def log_in_together() -> list[str]:
        return await asyncio.gather(*(gate.identify(Connection("10.0.0.1"), headers) for _ in range(40)))

    try:
        assert asyncio.run(log_in_together()) == ["billing"] * 40
    finally:
        gate.close()


def test_a_client_that_goes_away_while_its_login_is_verified_leaves_the_others_theirs(
    secrets: dict[str, Hashed],
) -> None:
    gate = Gate(Access(secrets=secrets, needs_login=True))
    headers = {b"authorization": _basic("billing", _SECRET).encode()}

    async def log_in_twice() -> str:
        first = asyncio.ensure_future(gate.identify(Connection("10.0.0.1"), headers))
        second = asyncio.ensure_future(gate.identify(Connection("10.0.0.2"), headers))
        await asyncio.sleep(0)
        first.cancel()
        return await second

    try:
        assert asyncio.run(log_in_twice()) == "billing"
    finally:
        gate.close()


def test_who_guesses_keeps_no_other_login_of_that_address_out(secrets: dict[str, Hashed]) -> None:
    with plain_listener(access=Access(secrets=secrets, needs_login=True)) as plain:
        found = [statuses(exchange(plain.port, _request(_basic(f"nobody{n}", "guess"))))[0] for n in range(14)]
        assert found[-1] == 429, "names that do not exist count together"
        assert statuses(exchange(plain.port, _request(_basic("billing", _SECRET)))) == [200]


def test_one_login_leaves_the_last_quarter_of_places_to_others() -> None:
    check_share(["ann"] * 74, "ann", 100, "streams")
    with pytest.raises(Problem, match="ann has 75 of 100 streams") as caught:
        check_share(["ann"] * 75, "ann", 100, "streams")
    assert (caught.value.status, caught.value.limit) == (429, "streams")
    check_share(["ann"] * 75, "bob", 100, "streams")
    check_share(["ann"] * 40 + ["bob"] * 40, "ann", 100, "streams")
    check_share([ANONYMOUS] * 99, ANONYMOUS, 100, "streams")
    check_share([], "ann", 1, "streams")


def test_a_certificate_is_a_login(tmp_path: Path) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    files = {name: tmp_path / name for name in ("cert.pem", "key.pem", "ca.pem")}
    server = authority.issue_cert("localhost")
    server.cert_chain_pems[0].write_to_path(files["cert.pem"])
    server.private_key_pem.write_to_path(files["key.pem"])
    authority.cert_pem.write_to_path(files["ca.pem"])
    tls = ServerTls(cert_file=files["cert.pem"], key_file=files["key.pem"], client_ca_file=files["ca.pem"])
    access = Access(needs_login=True, takes_certificates=True)

    def ask(issuer: trustme.CA | None) -> bytes:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        if issuer is not None:
            issuer.issue_cert("client.example", common_name="billing").configure_cert(context)
        with (
            socket.create_connection(("127.0.0.1", plain.port), timeout=10) as plain_sock,
            suppress(ssl.SSLError, ConnectionError),  # how a refused handshake looks to this side
            context.wrap_socket(plain_sock, server_hostname="localhost") as sock,
        ):
            sock.sendall(_request())
            return receive(sock)
        return b""

    with plain_listener(access=access, tls=tls.context("http/1.1")) as plain:
        assert b'"by":"billing"' in ask(authority)
        assert statuses(ask(None)) == [401]
        assert ask(stranger) == b""


def test_what_no_rule_allows_is_refused() -> None:
    rules = [
        Rule(("billing",), ("shop.*",), frozenset({Verb.PRODUCE})),
        Rule(("*",), ("open",), frozenset({Verb.PRODUCE, Verb.DESCRIBE})),
    ]
    gate = Gate(Access(rules=rules))
    gate.check("billing", Verb.PRODUCE, "shop.orders")
    gate.check("anyone", Verb.DESCRIBE, "open")
    for identity, verb, topic in (
        ("billing", Verb.DESCRIBE, "shop.orders"),
        ("billing", Verb.PRODUCE, "shops"),
        ("anyone", Verb.PRODUCE, "shop.orders"),
        ("anyone", Verb.CONSUME, "open"),
    ):
        assert not is_allowed(rules, identity, verb, topic)
        with pytest.raises(Problem) as caught:
            gate.check(identity, verb, topic)
        assert (caught.value.status, caught.value.code) == (403, 40301)


def test_a_client_above_its_rate_waits_and_others_do_not() -> None:
    buckets = Buckets(10.0)
    assert all(buckets.take("a", 1.0, 0.0) == 0 for _ in range(100))
    assert buckets.take("a", 1.0, 0.0) == pytest.approx(0.1)
    assert buckets.take("b", 1.0, 0.0) == 0
    assert buckets.take("a", 1.0, 0.2) == 0


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0.1, 50)), max_size=50))
def test_no_client_gets_more_than_rate_and_burst(steps: list[tuple[float, float]]) -> None:
    buckets, now, taken = Buckets(5.0, burst=20.0), 0.0, 0.0
    for pause, amount in steps:
        now += pause
        if buckets.take("a", amount, now) == 0:
            taken += amount
    assert taken <= 20.0 + 5.0 * now + 50.0  # one amount may be above the burst


def test_rates_are_charged_by_client() -> None:
    gate = Gate(Access(rates=Rates(requests=1.0, bytes=1000.0)))
    here, there = Connection("10.0.0.1"), Connection("10.0.0.2")
    for _ in range(10):
        gate.charge(here, ANONYMOUS, 1)
    with pytest.raises(Problem) as caught:
        gate.charge(here, ANONYMOUS, 1)
    assert (caught.value.status, caught.value.limit, caught.value.retry_after) == (429, "requests_per_second", 1)
    gate.charge(there, ANONYMOUS, 10_000)
    with pytest.raises(Problem) as caught:
        gate.charge(there, ANONYMOUS, 1)
    assert caught.value.limit == "bytes_per_second"
    gate.charge(here, "billing", 1)


def test_a_page_of_the_web_cannot_use_a_listener_without_login() -> None:
    with plain_listener(access=Access(hosts=frozenset({"localhost"}), origins=("https://ui.example",))) as plain:
        assert statuses(exchange(plain.port, _request(headers="Origin: https://evil.example\r\n"))) == [403]
        assert statuses(exchange(plain.port, _request(headers="Origin: null\r\n"))) == [403]
        assert statuses(exchange(plain.port, _request(headers="Origin: https://ui.example\r\n"))) == [200]
        rebound = _request().replace(b"Host: localhost", b"Host: evil.example:80")
        assert statuses(exchange(plain.port, rebound)) == [421]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8082", Listen("127.0.0.1", 8082)),
        ("0.0.0.0:1", Listen("0.0.0.0", 1)),
        ("[::1]:9", Listen("::1", 9)),
        (":9", Listen("127.0.0.1", 9)),
    ],
)
def test_a_place_to_listen_is_this_machine_unless_it_says_more(text: str, expected: Listen) -> None:
    assert parse_listen(text) == expected


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_is_known(host: str) -> None:
    assert Listen(host, 1).is_loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.com", "localhost.example.com"])
def test_what_others_can_reach_is_known(host: str) -> None:
    assert not Listen(host, 1).is_loopback
