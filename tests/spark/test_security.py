"""Java key stores and bearer tokens, as Spark jobs configure them."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12

from ottla.cluster import LocalCluster
from ottla.config import OAuthBearer, Plain
from ottla.errors import ConfigError
from ottla.net.access import ClusterAccess
from ottla.net.tokens import ClientCredentials
from ottla.spark.options import cluster_access

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required {};"


def given(**options: str) -> ClusterAccess:
    named = {f"kafka.{name.replace('_', '.')}": value for name, value in options.items()}
    return cluster_access({"kafka.bootstrap.servers": "localhost:9092", **named})


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
    parsed = given(
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
    assert not any(secret in repr(parsed) for secret in ("changeit", "mine"))
    with pickle.loads(pickle.dumps(parsed)).cluster() as cluster:
        assert cluster.metadata().brokers


def test_a_store_in_the_old_format_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    path = tmp_path / "trust.jks"
    path.write_bytes(b"\xfe\xed\xfe\xed\x00\x00\x00\x02")
    parsed = given(security_protocol="SSL", ssl_truststore_location=str(path))
    with pytest.raises(ConfigError, match=r"keytool -importkeystore -srckeystore .*trust\.jks -dest"):
        parsed.resolved_security()


@pytest.mark.parametrize("content", [b"", b"0\x82no store", None])
def test_what_is_no_store_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "own.p12"
    if content is not None:
        path.write_bytes(content)
    parsed = given(security_protocol="SSL", ssl_keystore_location=str(path), ssl_keystore_password="x")
    with pytest.raises(ConfigError, match=r"own\.p12"):
        parsed.resolved_security()


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
    defaults = {"ssl_enabled_protocols": "TLSv1.3, TLSv1.2", "ssl_protocol": "TLSv1.3"}
    assert given(security_protocol="SSL", **defaults) == given(security_protocol="SSL")


# Tokens


def bearer(entry: str, **options: str) -> OAuthBearer:
    parsed = given(
        security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", sasl_jaas_config=MODULE.format(entry), **options
    )
    sasl = pickle.loads(pickle.dumps(parsed)).resolved_security().sasl
    assert isinstance(sasl, OAuthBearer)
    return sasl


@pytest.mark.parametrize("named", [False, True])
def test_a_token_endpoint_is_asked_with_the_credentials_of_the_client(named: bool) -> None:
    """In the JAAS entry, as in Java, or in separate options, as in Kafka 4."""
    credentials = ClientCredentials("https://idp.example/token", "app", "s3cret", "kafka.write")
    options = {"sasl_oauthbearer_token_endpoint_url": credentials.url}
    if named:
        start = "sasl_oauthbearer_client_credentials_client"
        options |= {f"{start}_id": "app", f"{start}_secret": "s3cret", "sasl_oauthbearer_scope": "kafka.write"}
    own = "" if named else 'clientId="app" clientSecret="s3cret" scope="kafka.write"'
    handler = "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler"
    sasl = bearer(f'{own} extension_logicalCluster="lkc"', **options, sasl_login_callback_handler_class=handler)
    assert (sasl.token, sasl.extensions) == (credentials, (("logicalCluster", "lkc"),))
    assert "s3cret" not in repr(sasl)


def test_unsigned_tokens() -> None:
    head, claims, signature = bearer('unsecuredLoginStringClaim_sub="alice"').token().split(".")
    assert [json.loads(base64.urlsafe_b64decode(f"{part}==")) for part in (head, claims)][1]["sub"] == "alice"
    assert signature == ""


@pytest.mark.parametrize(
    ("entry", "options", "error"),
    [
        ("", {}, "needs kafka.sasl.oauthbearer.token.endpoint.url"),
        ("", {"sasl_oauthbearer_token_endpoint_url": "https://x/y"}, "needs clientId and clientSecret"),
        (
            'clientId="a" clientSecret="b"',
            {"sasl_oauthbearer_token_endpoint_url": "http://idp.example/token"},
            "is not https: the secret would be readable",
        ),
        ("", {"sasl_login_callback_handler_class": "com.example.Mine"}, "Java classes cannot run here"),
    ],
)
def test_tokens_that_cannot_be_had_are_refused(entry: str, options: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        bearer(entry, **options)


@pytest.mark.broker
def test_a_broker_takes_the_token_in_a_file(kafka: LocalCluster, tmp_path: Path) -> None:
    security: Any = kafka.security("alice", mechanism="OAUTHBEARER")
    path = tmp_path / "a token"
    path.write_text(security.sasl.token())
    parsed = given(
        bootstrap_servers=kafka.secure_bootstrap or "",
        security_protocol="SASL_SSL",
        ssl_truststore_type="PEM",
        ssl_truststore_location=str(security.tls.ca_file),
        sasl_mechanism="OAUTHBEARER",
        sasl_jaas_config=MODULE.format(""),
        sasl_oauthbearer_token_endpoint_url=path.as_uri(),
    )
    with parsed.cluster() as cluster:
        assert cluster.metadata().brokers


def test_a_login_module_as_databricks_names_it() -> None:
    parsed = given(
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        sasl_jaas_config="kafkashaded.org.apache.kafka.common.security.plain.PlainLoginModule required"
        ' username="me" password="mine";',
    )
    assert parsed.resolved_security().sasl == Plain("me", "mine")
