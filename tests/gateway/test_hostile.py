"""Requests that want to break something: each gets an answer that says what is wrong, and the listener goes on."""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Iterator

import cramjam
import pytest
from tests.gateway.plain import Plain, exchange, plain_listener, statuses

_LINE = b"POST /v1/topics/t/records HTTP/1.1\r\n"
_HOST = b"Host: localhost\r\n"
_JSON = b"Content-Type: application/json\r\n"
_CLOSE = b"Connection: close\r\n"
_GOOD = _LINE + _HOST + _JSON + _CLOSE + b"Content-Length: 2\r\n\r\n{}"


def _post(headers: bytes, body: bytes = b"{}", *, line: bytes = _LINE, host: bytes = _HOST) -> bytes:
    return line + host + _JSON + _CLOSE + headers + b"\r\n" + body


def _sized(body: bytes, headers: bytes = b"", kind: bytes = _JSON) -> bytes:
    return _LINE + _HOST + kind + _CLOSE + headers + b"Content-Length: %d\r\n\r\n" % len(body) + body


_NDJSON = b"Content-Type: application/x-ndjson\r\n"
_GET = b"GET /v1/topics HTTP/1.1\r\n"

HOSTILE: dict[str, tuple[bytes, int | tuple[int, ...]]] = {
    # Two framings, or a broken one: what a proxy may read in another way.
    "length and chunked": (_post(b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"), 400),
    "chunked and length": (_post(b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n", b"0\r\n\r\n"), 400),
    "two lengths": (_post(b"Content-Length: 2\r\nContent-Length: 3\r\n"), 400),
    "the same length twice": (_post(b"Content-Length: 2\r\nContent-Length: 2\r\n"), 400),
    "a list of lengths": (_post(b"Content-Length: 2, 2\r\n"), 400),
    "a negative length": (_post(b"Content-Length: -2\r\n"), 400),
    "a length with a sign": (_post(b"Content-Length: +2\r\n"), 400),
    "a length in hexadecimal": (_post(b"Content-Length: 0x2\r\n"), 400),
    "an endless length": (_post(b"Content-Length: " + b"9" * 40 + b"\r\n"), 400),
    "a length above 64 bits": (_post(b"Content-Length: 18446744073709551616\r\n"), 400),
    "a huge length": (_post(b"Content-Length: 99999999999\r\n"), 413),
    "an empty length": (_post(b"Content-Length: \r\n"), 400),
    "a length with a space": (_post(b"Content-Length : 2\r\n"), 400),
    "chunked twice": (_post(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"), 400),
    "chunked, chunked": (_post(b"Transfer-Encoding: chunked, chunked\r\n", b"0\r\n\r\n"), 400),
    "gzip, chunked": (_post(b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n"), 400),
    "identity": (_post(b"Transfer-Encoding: identity\r\n"), 400),
    "xchunked": (_post(b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n"), 400),
    "chunked with a tab": (_post(b"Transfer-Encoding:\tchunked\x0b\r\n", b"0\r\n\r\n"), 400),
    "a space before the colon": (_post(b"Transfer-Encoding : chunked\r\n", b"0\r\n\r\n"), 400),
    "a folded header": (_post(b"X-A: b\r\n c\r\nContent-Length: 2\r\n"), 400),
    "a folded framing": (_post(b"Transfer-Encoding:\r\n chunked\r\n", b"0\r\n\r\n"), 400),
    "chunked in HTTP/1.0": (
        _post(b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n", line=b"POST /v1/topics/t/records HTTP/1.0\r\n"),
        400,
    ),
    "a chunk size that is no number": (_post(b"Transfer-Encoding: chunked\r\n", b"zz\r\n{}\r\n0\r\n\r\n"), 400),
    "a negative chunk size": (_post(b"Transfer-Encoding: chunked\r\n", b"-2\r\n{}\r\n0\r\n\r\n"), 400),
    "a huge chunk size": (_post(b"Transfer-Encoding: chunked\r\n", b"fffffffffffffffff\r\n"), 400),
    "a chunk longer than its size": (_post(b"Transfer-Encoding: chunked\r\n", b"2\r\n{}{}\r\n0\r\n\r\n"), 400),
    "a chunk that ends with a bare line feed": (_post(b"Transfer-Encoding: chunked\r\n", b"2\n{}\n0\n\n"), 400),
    "a trailer": (_post(b"Transfer-Encoding: chunked\r\n", b"2\r\n{}\r\n0\r\nContent-Length: 3\r\n\r\n"), 400),
    # Heads.
    "no host": (_post(b"Content-Length: 2\r\n", host=b""), 400),
    "two hosts": (_post(b"Host: other\r\nContent-Length: 2\r\n"), 400),
    "an empty host": (_post(b"Content-Length: 2\r\n", host=b"Host: \r\n"), 400),
    "a host with a path": (_post(b"Content-Length: 2\r\n", host=b"Host: localhost/x\r\n"), 400),
    "a host with a user": (_post(b"Content-Length: 2\r\n", host=b"Host: a@localhost\r\n"), 400),
    "a host with a space": (_post(b"Content-Length: 2\r\n", host=b"Host: local host\r\n"), 400),
    "a long header": (_post(b"X-A: " + b"a" * 64_000 + b"\r\nContent-Length: 2\r\n"), 431),
    "a thousand headers": (_post(b"X-A: b\r\n" * 1000 + b"Content-Length: 2\r\n"), 431),
    "many small headers": (_post(b"A:\r\n" * 120 + b"Content-Length: 2\r\n"), 431),
    "a long URL": (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n" + _HOST + b"\r\n", 431),
    "a header without a name": (_post(b": x\r\nContent-Length: 2\r\n"), 400),
    "a header without a colon": (_post(b"nonsense\r\nContent-Length: 2\r\n"), 400),
    "a header name with a space": (_post(b"X A: b\r\nContent-Length: 2\r\n"), 400),
    "a header name in UTF-8": (_post("Ü: b\r\nContent-Length: 2\r\n".encode()), 400),
    "a zero byte in a header": (_post(b"X-A: a\x00b\r\nContent-Length: 2\r\n"), 400),
    "a return in a header": (_post(b"X-A: a\rContent-Length: 3\r\nContent-Length: 2\r\n"), 400),
    "a bell in a header": (_post(b"X-A: a\x07b\r\nContent-Length: 2\r\n"), 400),
    "two content types": (_post(b"Content-Type: text/plain\r\nContent-Length: 2\r\n"), 400),
    "two authorizations": (_post(b"Authorization: Basic YTpi\r\nAuthorization: x\r\nContent-Length: 2\r\n"), 400),
    # Request lines.
    "no HTTP at all": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(64)) + b"\r\n\r\n", 400),
    "a Kafka request": (b"\x00\x00\x00\x17\x00\x12\x00\x03\x00\x00\x00\x01\x00\x04test\x00\x00\x00\r\n\r\n", 400),
    "HTTP/0.9": (b"GET /v1/topics\r\n\r\n", 505),
    "HTTP/1.2": (_post(b"Content-Length: 2\r\n", line=b"POST /v1/topics/t/records HTTP/1.2\r\n"), (400, 505)),
    "HTTP/2.0": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "an unknown method": (b"FROB /v1/topics HTTP/1.1\r\n" + _HOST + b"\r\n", 400),
    "a method in small letters": (b"get /v1/topics HTTP/1.1\r\n" + _HOST + b"\r\n", 400),
    "CONNECT": (b"CONNECT kafka:9092 HTTP/1.1\r\n" + _HOST + b"\r\n", 400),
    "a whole URL": (b"GET http://elsewhere/v1/topics HTTP/1.1\r\n" + _HOST + b"\r\n", 400),
    "an asterisk": (b"OPTIONS * HTTP/1.1\r\n" + _HOST + b"\r\n", 400),
    "a space in the URL": (b"GET /v1/ topics HTTP/1.1\r\n" + _HOST + b"\r\n", 400),
    "a URL in UTF-8": ("GET /v1/ü HTTP/1.1\r\n".encode() + _HOST + b"\r\n", 400),
    "a way up": (b"POST /v1/topics/../../etc/records HTTP/1.1\r\n" + _HOST + _CLOSE + b"\r\n", 404),
    "an upgrade": (_GET + _HOST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n", 400),
    "a websocket": (_GET + _HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 400),
    "another method": (b"DELETE /v1/topics HTTP/1.1\r\n" + _HOST + _CLOSE + b"\r\n", 405),
    "TRACE": (b"TRACE /v1/topics HTTP/1.1\r\n" + _HOST + _CLOSE + b"\r\n", 405),
    # Queries.
    "a query in broken UTF-8": (
        _post(b"Content-Length: 2\r\n", line=_LINE.replace(b"records", b"records?key=%ff")),
        400,
    ),
    "a parameter twice": (_post(b"Content-Length: 2\r\n", line=_LINE.replace(b"records", b"records?key=a&key=b")), 400),
    "a thousand parameters": (
        _post(b"Content-Length: 2\r\n", line=_LINE.replace(b"records", b"records?" + b"a=&" * 1000)),
        400,
    ),
    # Bodies.
    "nothing": (_sized(b""), 400),
    "no JSON": (_sized(b"nonsense"), 400),
    "JSON of another encoding": (_sized('{"a":"ü"}'.encode("latin-1")), 400),
    "JSON in UTF-16": (_sized('{"a":1}'.encode("utf-16")), 400),
    "half a surrogate": (_sized(b'{"records":[{"text":"\\ud800"}]}'), 400),
    "a hundred thousand brackets": (_sized(b"[" * 100_000), 400),
    "a deep object": (_sized(b'{"a":' * 100_000 + b"1" + b"}" * 100_000), 400),
    "deep lines": (_sized(b"[" * 100_000, kind=_NDJSON), 400),
    "no records": (_sized(b'{"records":[]}'), 422),
    "too many records": (_sized(b"1\n" * 50_001, kind=_NDJSON), 413),
    "an unknown field": (_sized(b'{"records":[{"nonesuch":1}]}'), 400),
    "a time in the far future": (_sized(b'{"records":[{"timestamp":1e300}]}'), 400),
    "a time that is no number": (_sized(b'{"records":[{"timestamp":NaN}]}'), 400),
    "a negative partition": (_sized(b'{"records":[{"partition":-1}]}'), 400),
    "a huge partition": (_sized(b'{"records":[{"partition":99999999999999999999}]}'), 400),
    "broken base64": (_sized(b'{"records":[{"base64":"a"}]}'), 400),
    "a broken line": (_sized(b'1\n2\n{"a":\n', kind=_NDJSON), 400),
    "no Arrow": (_sized(b"nonsense", kind=b"Content-Type: application/vnd.apache.arrow.stream\r\n"), 400),
    "an endless Arrow schema": (
        _sized(
            b"\xff\xff\xff\xff\xff\xff\xff\x7f" + b"a" * 100,
            kind=b"Content-Type: application/vnd.apache.arrow.stream\r\n",
        ),
        400,
    ),
    "too large": (_sized(b"[" + b"1," * (5 << 20) + b"1]"), 413),
    # Encodings.
    "a bomb in gzip": (_sized(gzip.compress(b"a" * (100 << 20)), b"Content-Encoding: gzip\r\n"), 413),
    "a bomb in zstd": (
        _sized(bytes(cramjam.zstd.compress(b"a" * (100 << 20))), b"Content-Encoding: zstd\r\n"),
        413,
    ),
    "a bomb of members": (_sized(gzip.compress(b"a" * (1 << 20)) * 100, b"Content-Encoding: gzip\r\n"), 413),
    "broken gzip": (_sized(b"nonsense", b"Content-Encoding: gzip\r\n"), 400),
    "gzip that ends early": (_sized(gzip.compress(b"{}")[:-9], b"Content-Encoding: gzip\r\n"), 400),
    "gzip with a wrong checksum": (_sized(gzip.compress(b"{}")[:-8] + bytes(8), b"Content-Encoding: gzip\r\n"), 400),
    "broken zstd": (_sized(b"nonsense", b"Content-Encoding: zstd\r\n"), 400),
    "zlib": (_sized(zlib.compress(b"{}"), b"Content-Encoding: deflate\r\n"), 415),
    "brotli": (_sized(b"{}", b"Content-Encoding: br\r\n"), 415),
    "two encodings": (_sized(b"{}", b"Content-Encoding: gzip, gzip\r\n"), 415),
}


@pytest.fixture(scope="module")
def plain() -> Iterator[Plain]:
    with plain_listener() as running:
        yield running


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_request_is_refused_and_the_next_one_served(plain: Plain, name: str) -> None:
    request, expected = HOSTILE[name]
    answer = exchange(plain.port, request)
    accepted = (expected,) if isinstance(expected, int) else expected
    assert statuses(answer), answer[:200]
    assert statuses(answer)[0] in accepted, answer[:300]
    assert len(statuses(answer)) == 1, answer[:600]
    assert statuses(exchange(plain.port, _GOOD)) == [200]


def test_there_are_enough_of_them() -> None:
    assert len(HOSTILE) >= 60


def test_what_follows_a_refused_request_is_not_read_as_another_one(plain: Plain) -> None:
    smuggled = _post(b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n" + _GOOD)
    before = len(plain.bodies)
    assert statuses(exchange(plain.port, smuggled)) == [400]
    assert len(plain.bodies) == before


def test_only_so_many_requests_may_wait_behind_another(plain: Plain) -> None:
    slow = _GOOD.replace(_CLOSE, b"")
    answer = exchange(plain.port, slow + b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5000)
    assert len(statuses(answer)) <= 102
    assert plain.hit["pipelined"] == 1


def test_requests_in_a_row_are_all_answered_before_one_that_is_refused(plain: Plain) -> None:
    good = _GOOD.replace(_CLOSE, b"")
    answer = exchange(plain.port, good * 5 + b"\x00\r\n\r\n")
    assert statuses(answer)[:5] == [200] * 5
    assert len(statuses(answer)) <= 6


def test_random_bytes_never_get_more_than_a_refusal(plain: Plain) -> None:
    chance = random.Random(21)
    for _ in range(300):
        request = bytearray(_GOOD)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(request))
            choice = chance.randrange(3)
            if choice == 0:
                request[at] = chance.randrange(256)
            elif choice == 1:
                del request[at : at + chance.randint(1, 8)]
            else:
                request[at:at] = chance.randbytes(chance.randint(1, 4))
        found = statuses(exchange(plain.port, bytes(request), seconds=0.05))
        assert all(status < 500 or status == 505 for status in found)
    assert statuses(exchange(plain.port, _GOOD)) == [200]
