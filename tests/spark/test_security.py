"""Key stores of Java and bearer tokens, as the options of Spark jobs name them."""

from __future__ import annotations

import base64
import json
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12

from ottla.cluster import LocalCluster
from ottla.config import OAuthBearer
from ottla.errors import AuthenticationFailed, ConfigError
from ottla.spark.options import Connection, connection

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required {};"


def given(**options: str) -> Connection:
    named = {f"kafka.{name.replace('_', '.')}": value for name, value in options.items()}
    return connection({"kafka.bootstrap.servers": "localhost:9092", **named})


# Key stores


@pytest.fixture
def stores(kafka: LocalCluster, tmp_path: Path) -> tuple[Path, Path]:
    """A trust store and a key store in PKCS12, as keytool writes them."""
    tls: Any = kafka.mutual_tls().tls
    authority = x509.load_pem_x509_certificate(Path(tls.ca_file).read_bytes())
    chain = x509.load_pem_x509_certificates(Path(tls.cert_file).read_bytes())
    key: Any = load_pem_private_key(Path(tls.key_file).read_bytes(), None)
    trust = pkcs12.serialize_java_truststore(
        [pkcs12.PKCS12Certificate(authority, b"ca")], BestAvailableEncryption(b"changeit")
    )
    own = pkcs12.serialize_key_and_certificates(b"me", key, chain[0], chain[1:], BestAvailableEncryption(b"mine"))
    paths = tmp_path / "trust.jks", tmp_path / "own.p12"
    for path, content in zip(paths, (trust, own), strict=True):
        path.write_bytes(content)
    return paths


@pytest.mark.broker
@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_stores_of_java_open_a_connection(kafka: LocalCluster, stores: tuple[Path, Path], kind: str) -> None:
    trust, own = stores
    found = given(
        bootstrap_servers=kafka.ssl_bootstrap or "",
        security_protocol="SSL",
        ssl_truststore_type=kind,
        ssl_truststore_location=str(trust),
        ssl_truststore_password="changeit",
        ssl_keystore_type=kind,
        ssl_keystore_location=str(own),
        ssl_keystore_password="mine",
        ssl_key_password="mine",
    )
    assert not any(secret in repr(found) for secret in ("changeit", "mine"))
    with pickle.loads(pickle.dumps(found)).cluster() as cluster:
        assert cluster.metadata().brokers


def test_a_store_in_the_old_format_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    path = tmp_path / "trust.jks"
    path.write_bytes(b"\xfe\xed\xfe\xed\x00\x00\x00\x02")
    found = given(security_protocol="SSL", ssl_truststore_location=str(path))
    with pytest.raises(ConfigError, match=r"keytool -importkeystore -srckeystore .*trust\.jks -dest"):
        _ = found.security


@pytest.mark.parametrize("content", [b"", b"0\x82no store", None])
def test_what_is_no_store_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "own.p12"
    if content is not None:
        path.write_bytes(content)
    found = given(security_protocol="SSL", ssl_keystore_location=str(path), ssl_keystore_password="x")
    with pytest.raises(ConfigError, match=r"own\.p12"):
        _ = found.security


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"ssl_truststore_type": "BKS", "ssl_truststore_location": "/x"}, "accepted is PEM, JKS and PKCS12"),
        ({"ssl_truststore_certificates": "x"}, "kafka.ssl.truststore.type is JKS; accepted is PEM"),
        ({"ssl_enabled_protocols": "TLSv1.3"}, "accepted is TLSv1.2,TLSv1.3: leave it out"),
        ({"ssl_protocol": "SSLv3"}, "accepted are TLS, TLSv1.2 and TLSv1.3"),
    ],
)
def test_less_protection_than_asked_for_is_refused(options: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        given(security_protocol="SSL", **options)


def test_what_openssl_does_anyway_may_be_said() -> None:
    said = {"ssl_enabled_protocols": "TLSv1.3, TLSv1.2", "ssl_protocol": "TLSv1.3"}
    assert given(security_protocol="SSL", **said) == given(security_protocol="SSL")


# Tokens


def bearer(entry: str, **options: str) -> OAuthBearer:
    found = given(
        security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", sasl_jaas_config=MODULE.format(entry), **options
    )
    sasl = pickle.loads(pickle.dumps(found)).security.sasl
    assert isinstance(sasl, OAuthBearer)
    return sasl


@contextmanager
def endpoint(answer: bytes, code: int = 200) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """A token endpoint, and what it was asked."""
    asked: list[tuple[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            asked.append((self.headers["Authorization"], body))
            self.send_response(code)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/token", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_token_endpoint_is_asked_once_for_the_life_of_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("ottla.spark.tokens.time.monotonic", lambda: now[0])
    with endpoint(json.dumps({"access_token": "abc", "expires_in": 100}).encode()) as (url, asked):
        sasl = bearer(
            'clientId="app" clientSecret="s3cret" scope="kafka.write" extension_logicalCluster="lkc-1"',
            sasl_oauthbearer_token_endpoint_url=url,
            sasl_login_callback_handler_class=(
                "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler"
            ),
        )
        assert "s3cret" not in repr(sasl)
        assert [sasl.token(), sasl.token()] == ["abc", "abc"]
        assert asked == [
            (f"Basic {base64.b64encode(b'app:s3cret').decode()}", "grant_type=client_credentials&scope=kafka.write")
        ]
        now[0] += 81
        assert sasl.token() == "abc"
        assert len(asked) == 2
    assert sasl.extensions == (("logicalCluster", "lkc-1"),)


@pytest.mark.parametrize(
    ("answer", "code", "error"), [(b"{}", 200, "no JSON with access_token"), (b"", 401, "HTTP 401")]
)
def test_an_endpoint_that_gives_no_token_is_named_without_the_secret(answer: bytes, code: int, error: str) -> None:
    with endpoint(answer, code) as (url, _):
        sasl = bearer('clientId="app" clientSecret="s3cret"', sasl_oauthbearer_token_endpoint_url=url)
        with pytest.raises(AuthenticationFailed, match=f"{url}: no token for client app: .*{error}") as told:
            sasl.token()
    assert "s3cret" not in str(told.value)


def test_a_file_has_the_token_of_the_moment(tmp_path: Path) -> None:
    path = tmp_path / "a token"
    sasl = bearer("", sasl_oauthbearer_token_endpoint_url=path.as_uri())
    with pytest.raises(AuthenticationFailed, match="no token"):
        sasl.token()
    for token in ("one", "two"):
        path.write_text(f"{token}\n")
        assert sasl.token() == token


@pytest.mark.parametrize(
    ("entry", "options", "error"),
    [
        ("", {}, "needs kafka.sasl.oauthbearer.token.endpoint.url"),
        ("", {"sasl_oauthbearer_token_endpoint_url": "https://x/y"}, "needs clientId and clientSecret"),
        (
            'clientId="a" clientSecret="b"',
            {"sasl_oauthbearer_token_endpoint_url": "http://idp.example/token"},
            "accepted are https: and file:",
        ),
        ("", {"sasl_login_callback_handler_class": "com.example.Mine"}, "Java classes cannot run here"),
    ],
)
def test_tokens_that_cannot_be_had_are_refused(entry: str, options: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        bearer(entry, **options)


@pytest.mark.broker
def test_a_broker_takes_a_token(kafka: LocalCluster) -> None:
    tls: Any = kafka.security("alice").tls
    found = given(
        bootstrap_servers=kafka.secure_bootstrap or "",
        security_protocol="SASL_SSL",
        ssl_truststore_type="PEM",
        ssl_truststore_location=str(tls.ca_file),
        sasl_mechanism="OAUTHBEARER",
        sasl_jaas_config=MODULE.format('unsecuredLoginStringClaim_sub="alice"'),
    )
    with found.cluster() as cluster:
        assert cluster.metadata().brokers
