"""Kafka's Java settings for TLS and SASL, as Spark jobs have them, turned into values of `ottla.config`.

Options come in (`kafka.ssl.*` and `kafka.sasl.*`, with PEM in files or in the option itself, or Java key stores); a
picklable `SecurityOptions` goes out. It makes a `Security` on the machine that uses it, and reads files there. Nothing
is written to a disk, and no error text contains a secret.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from ottla.config import OAuthBearer, Plain, Sasl, Scram, Security, Tls
from ottla.errors import ConfigError
from ottla.spark.key_stores import key_pem, trust_pem

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_OAUTH = "OAUTHBEARER"
_MECHANISMS = ("PLAIN", *_SCRAM, _OAUTH)
_MODULES = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": ("PLAIN",),
    "org.apache.kafka.common.security.scram.ScramLoginModule": _SCRAM,
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule": (_OAUTH,),
}
_SHADED = "kafkashaded."
"""Databricks' prefix for the names of Kafka's classes."""
_HANDLERS = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
)
_JAVA_STORES = ("JKS", "PKCS12")
_TLS_VERSIONS = {"TLSv1.2", "TLSv1.3"}
_JAAS = re.compile(
    r"\s*(?P<module>[\w.$]+)\s+(?:required|requisite|sufficient|optional)\b\s*(?P<rest>.*?);?\s*", re.S | re.I
)
_PAIR = re.compile(r"""\s*([\w.-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"';]+))""")
_EXAMPLE = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="..." password="...";'


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyStores:
    """Where certificates and keys are: files on every machine, or PEM text. Names with `_file` are PEM files."""

    trust_file: str | None = None
    trust_text: str | None = None
    trust_store: str | None = None
    """A Java trust store."""
    trust_password: str | None = field(default=None, repr=False)
    key_file: str | None = None
    """A certificate chain and its key in one file."""
    key_store: str | None = None
    """A Java key store."""
    store_password: str | None = field(default=None, repr=False)
    chain_text: str | None = field(default=None, repr=False)
    key_text: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True

    def tls(self) -> Tls:
        """TLS settings for a client in this process. Raises `ConfigError` if a Java store cannot be read."""
        trusted, own, password = self.trust_text, None, self.key_password
        if self.trust_store is not None:
            trusted = trust_pem(self.trust_store, self.trust_password)
        if self.key_store is not None:
            own, password = key_pem(self.key_store, self.store_password), None
        elif self.chain_text is not None:
            own = f"{self.key_text}\n{self.chain_text}\n"
        return Tls(
            ca_file=self.trust_file if trusted is None else in_memory(trusted),
            cert_file=self.key_file if own is None else in_memory(own),
            key_password=password,
            check_hostname=self.check_hostname,
        )


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """The parts of a `Security`. Unlike that, it is picklable and can travel to another machine."""

    stores: KeyStores | None = None
    sasl: Sasl | None = None

    def security(self) -> Security:
        """Settings for a client in this process. Raises `ConfigError` if a Java store cannot be read."""
        return Security(tls=None if self.stores is None else self.stores.tls(), sasl=self.sasl)


@dataclass(frozen=True, slots=True)
class UnsignedToken:
    """A token without a signature, for test brokers that accept any (`unsecuredLoginStringClaim_sub`)."""

    subject: str

    def __call__(self) -> str:
        """Make a token that is valid for an hour."""
        now = int(time.time())
        parts = ({"alg": "none"}, {"sub": self.subject, "iat": now, "exp": now + 3600})
        texts = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
        return f"{'.'.join(texts)}."


@functools.cache
def in_memory(text: str) -> str:
    """The path of an in-memory file with this text. It exists as long as this process or a fork of it."""
    descriptor = os.memfd_create("ottla-pem")
    with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
        file.write(text)
    return f"/proc/self/fd/{descriptor}"


def security_options(settings: Mapping[str, str]) -> SecurityOptions:
    """Parse `kafka.` settings, given without that prefix and in lower case. Raises `ConfigError`."""
    protocol = settings.get("security.protocol", "PLAINTEXT").strip().upper()
    if protocol not in _PROTOCOLS:
        raise ConfigError(f"kafka.security.protocol is {protocol!r}; accepted are {', '.join(_PROTOCOLS)}")
    encrypted, authenticated = protocol.endswith("SSL"), protocol.startswith("SASL")
    _refuse_unused(settings, "ssl.", encrypted, protocol, "SSL or SASL_SSL")
    _refuse_unused(settings, "sasl.", authenticated, protocol, "SASL_SSL or SASL_PLAINTEXT")
    return SecurityOptions(_stores(settings) if encrypted else None, _sasl(settings) if authenticated else None)


def _refuse_unused(settings: Mapping[str, str], prefix: str, used: bool, protocol: str, needed: str) -> None:
    given = sorted(name for name in settings if name.startswith(prefix))
    if given and not used:
        raise ConfigError(
            f"kafka.{given[0]} has no effect with kafka.security.protocol={protocol}: set the protocol to {needed}"
        )


def _stores(settings: Mapping[str, str]) -> KeyStores:
    trust_kind, trust_file, trust_text = _store(settings, "truststore", "certificates")
    key_kind, key_file, chain_text = _store(settings, "keystore", "certificate.chain")
    key_text = settings.get("ssl.keystore.key")
    if (key_text is None) != (chain_text is None):
        raise ConfigError("kafka.ssl.keystore.key and kafka.ssl.keystore.certificate.chain belong together: give both")
    algorithm = settings.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
    if algorithm not in ("", "https"):
        raise ConfigError(
            f"kafka.ssl.endpoint.identification.algorithm is {algorithm!r}; accepted are https and an empty text"
        )
    _check_protocols(settings)
    return KeyStores(
        trust_file=trust_file if trust_kind == "PEM" else None,
        trust_text=trust_text,
        trust_store=None if trust_kind == "PEM" else trust_file,
        trust_password=settings.get("ssl.truststore.password"),
        key_file=key_file if key_kind == "PEM" else None,
        key_store=None if key_kind == "PEM" else key_file,
        store_password=settings.get("ssl.keystore.password"),
        chain_text=chain_text,
        key_text=key_text,
        key_password=settings.get("ssl.key.password"),
        check_hostname=algorithm == "https",
    )


def _store(settings: Mapping[str, str], store: str, content: str) -> tuple[str, str | None, str | None]:
    """Type, file and text of one store; at most one of the last two. Only PEM can be given as text."""
    file, text = settings.get(f"ssl.{store}.location"), settings.get(f"ssl.{store}.{content}")
    kind = settings.get(f"ssl.{store}.type", "JKS").strip().upper()
    if file is not None and text is not None:
        raise ConfigError(f"kafka.ssl.{store}.location and kafka.ssl.{store}.{content} are mutually exclusive")
    if kind not in ("PEM", *_JAVA_STORES) or (text is not None and kind != "PEM"):
        accepted = "PEM" if text is not None else f"PEM, {' and '.join(_JAVA_STORES)}"
        raise ConfigError(f"kafka.ssl.{store}.type is {kind}; accepted is {accepted}")
    return kind, file, None if text is None else _lines(text)


def _check_protocols(settings: Mapping[str, str]) -> None:
    """Accept what OpenSSL does anyway. Refuse any other choice: it would not be applied."""
    enabled = {version.strip() for version in settings.get("ssl.enabled.protocols", "TLSv1.2,TLSv1.3").split(",")}
    if enabled != _TLS_VERSIONS:
        raise ConfigError(
            f"kafka.ssl.enabled.protocols is {','.join(sorted(enabled))}; accepted is TLSv1.2,TLSv1.3: leave it out"
        )
    protocol = settings.get("ssl.protocol", "TLS").strip()
    if protocol not in {"TLS", *_TLS_VERSIONS}:
        raise ConfigError(f"kafka.ssl.protocol is {protocol}; accepted are TLS, TLSv1.2 and TLSv1.3: leave it out")


def _lines(text: str) -> str:
    """Restore line ends: properties files have PEM with backslash and n, or spaces, in their place."""
    return re.sub(
        r"(-----BEGIN [^-]+-----)\s*(.*?)\s*(-----END [^-]+-----)", _block, text.replace("\\n", "\n"), flags=re.S
    )


def _block(match: re.Match[str]) -> str:
    body = match[2] if ":" in match[2] else "\n".join(match[2].split())  # keep the header lines of an encrypted key
    return f"{match[1]}\n{body}\n{match[3]}\n"


def _sasl(settings: Mapping[str, str]) -> Sasl:
    mechanism = settings.get("sasl.mechanism", "GSSAPI").strip().upper()
    if mechanism not in _MECHANISMS:
        unset = " (Java's default)" if "sasl.mechanism" not in settings else ""
        raise ConfigError(f"kafka.sasl.mechanism is {mechanism}{unset}; accepted are {', '.join(_MECHANISMS)}")
    config = settings.get("sasl.jaas.config")
    if config is None:
        raise ConfigError(f"kafka.sasl.mechanism={mechanism} needs kafka.sasl.jaas.config, for example {_EXAMPLE}")
    handler = settings.get("sasl.login.callback.handler.class", _HANDLERS[0]).strip()
    if handler not in _HANDLERS:
        raise ConfigError(
            f"kafka.sasl.login.callback.handler.class is {handler}, and Java classes cannot run here; accepted are"
            f" {' and '.join(_HANDLERS)}"
        )
    login = _login(config, mechanism)
    if mechanism == _OAUTH:
        return _bearer(settings, login)
    missing = [name for name in ("username", "password") if name not in login]
    if missing:
        raise ConfigError(f"kafka.sasl.jaas.config has no {' and no '.join(missing)}: it should look like {_EXAMPLE}")
    if mechanism == "PLAIN":
        return Plain(login["username"], login["password"])
    return Scram(
        login["username"],
        login["password"],
        "SCRAM-SHA-256" if mechanism == "SCRAM-SHA-256" else "SCRAM-SHA-512",
    )


def _bearer(settings: Mapping[str, str], login: Mapping[str, str]) -> OAuthBearer:
    """The token source, as Java's login handler has it: a token endpoint, a file, or an unsigned token."""
    from ottla.net.tokens import ClientCredentials, TokenFile

    extensions = tuple(
        (name.removeprefix("extension_"), value) for name, value in login.items() if name.startswith("extension_")
    )
    url = settings.get("sasl.oauthbearer.token.endpoint.url", "").strip()
    if url.startswith("file:"):
        return OAuthBearer(TokenFile(unquote(urlsplit(url).path)), extensions)
    if url:
        client = settings.get("sasl.oauthbearer.client.credentials.client.id") or login.get("clientId")
        secret = settings.get("sasl.oauthbearer.client.credentials.client.secret") or login.get("clientSecret")
        if not client or not secret:
            raise ConfigError(
                "kafka.sasl.oauthbearer.token.endpoint.url needs clientId and clientSecret, in kafka.sasl.jaas.config"
                " or as kafka.sasl.oauthbearer.client.credentials.client.id and .secret"
            )
        scope = settings.get("sasl.oauthbearer.scope") or login.get("scope", "")
        return OAuthBearer(ClientCredentials(url, client, secret, scope), extensions)
    subject = login.get("unsecuredLoginStringClaim_sub")
    if subject is None:
        raise ConfigError(
            "kafka.sasl.mechanism=OAUTHBEARER needs kafka.sasl.oauthbearer.token.endpoint.url, an https: or file: URL"
        )
    return OAuthBearer(UnsignedToken(subject), extensions)


def _login(config: str, mechanism: str) -> dict[str, str]:
    """The options of a JAAS entry. Errors do not quote it: it has the password."""
    match = _JAAS.fullmatch(config)
    if match is None:
        raise ConfigError(f"kafka.sasl.jaas.config is not of the form {_EXAMPLE}")
    mechanisms = _MODULES.get(match["module"].removeprefix(_SHADED))
    if mechanisms is None:
        raise ConfigError(f"kafka.sasl.jaas.config names {match['module']}; accepted are {', '.join(_MODULES)}")
    if mechanism not in mechanisms:
        raise ConfigError(
            f"kafka.sasl.jaas.config is for {' and '.join(mechanisms)}, kafka.sasl.mechanism is {mechanism}"
        )
    login: dict[str, str] = {}
    for name, double, single, bare in _PAIR.findall(match["rest"]):
        login[name] = bare or re.sub(r"\\(.)", r"\1", double or single)
    return login
