"""Kafka's Java settings for TLS and SASL, as Spark jobs have them, into the values of `ottla.config`.

Options come in (`kafka.ssl.*`, `kafka.sasl.*`, with PEM in files or in the option itself); a picklable value goes out
that makes a `Security` on whatever machine it lands. Nothing is opened here but memory for PEM that was given as text.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ottla.config import Plain, Sasl, Scram, Security, Tls
from ottla.errors import ConfigError

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_MECHANISMS = ("PLAIN", *_SCRAM)
_MODULES = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": ("PLAIN",),
    "org.apache.kafka.common.security.scram.ScramLoginModule": _SCRAM,
}
_JAAS = re.compile(
    r"\s*(?P<module>[\w.$]+)\s+(?:required|requisite|sufficient|optional)\s+(?P<rest>.*?);?\s*", re.S | re.I
)
_PAIR = re.compile(r"""\s*([\w.-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"';]+))""")
_EXAMPLE = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="..." password="...";'


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """Where certificates and keys are: a file on every machine, or PEM text."""

    trust_file: str | None = None
    trust_text: str | None = None
    key_file: str | None = None
    """A certificate chain and its key in one file."""
    chain_text: str | None = field(default=None, repr=False)
    key_text: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True

    def tls(self) -> Tls:
        """For a client in this process."""
        chain = None if self.chain_text is None else in_memory(f"{self.key_text}\n{self.chain_text}\n")
        return Tls(
            ca_file=self.trust_file if self.trust_text is None else in_memory(self.trust_text),
            cert_file=chain or self.key_file,
            key_password=self.key_password,
            check_hostname=self.check_hostname,
        )


@dataclass(frozen=True, slots=True)
class Protection:
    """What `Security` is made of; unlike it, this may travel to another machine."""

    stores: Stores | None = None
    sasl: Sasl | None = None

    def security(self) -> Security:
        """For a client in this process."""
        return Security(tls=None if self.stores is None else self.stores.tls(), sasl=self.sasl)


@functools.cache
def in_memory(text: str) -> str:
    """The path of a file that holds `text` and is on no disk; there for as long as this process or a fork of it."""
    number = os.memfd_create("ottla-pem")
    with open(number, "w", encoding="utf-8", closefd=False) as file:
        file.write(text)
    return f"/proc/self/fd/{number}"


def protection(settings: Mapping[str, str]) -> Protection:
    """From `kafka.` settings without that prefix, in lower case."""
    protocol = settings.get("security.protocol", "PLAINTEXT").strip().upper()
    if protocol not in _PROTOCOLS:
        raise ConfigError(f"kafka.security.protocol is {protocol!r}; accepted are {', '.join(_PROTOCOLS)}")
    encrypted, authenticated = protocol.endswith("SSL"), protocol.startswith("SASL")
    _refuse_unused(settings, "ssl.", encrypted, protocol, "SSL or SASL_SSL")
    _refuse_unused(settings, "sasl.", authenticated, protocol, "SASL_SSL or SASL_PLAINTEXT")
    return Protection(_stores(settings) if encrypted else None, _sasl(settings) if authenticated else None)


def _refuse_unused(settings: Mapping[str, str], prefix: str, used: bool, protocol: str, right: str) -> None:
    given = sorted(name for name in settings if name.startswith(prefix))
    if given and not used:
        raise ConfigError(f"kafka.{given[0]} has no effect with kafka.security.protocol={protocol}: set it to {right}")


def _stores(settings: Mapping[str, str]) -> Stores:
    trust_file, trust_text = _pem(settings, "truststore", "certificates")
    key_file, chain_text = _pem(settings, "keystore", "certificate.chain")
    key_text = settings.get("ssl.keystore.key")
    if (key_text is None) != (chain_text is None):
        raise ConfigError("kafka.ssl.keystore.key and kafka.ssl.keystore.certificate.chain belong together: give both")
    algorithm = settings.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
    if algorithm not in ("", "https"):
        raise ConfigError(
            f"kafka.ssl.endpoint.identification.algorithm is {algorithm!r}; accepted are https, and nothing at all"
        )
    return Stores(
        trust_file=trust_file,
        trust_text=trust_text,
        key_file=key_file,
        chain_text=chain_text,
        key_text=key_text,
        key_password=settings.get("ssl.key.password"),
        check_hostname=algorithm == "https",
    )


def _pem(settings: Mapping[str, str], store: str, content: str) -> tuple[str | None, str | None]:
    """The file and the text of one store, at most one of them."""
    file, text = settings.get(f"ssl.{store}.location"), settings.get(f"ssl.{store}.{content}")
    if file is None and text is None:
        return None, None
    if file is not None and text is not None:
        raise ConfigError(f"kafka.ssl.{store}.location and kafka.ssl.{store}.{content} exclude each other: give one")
    kind = settings.get(f"ssl.{store}.type", "JKS").strip().upper()
    if kind != "PEM":
        raise ConfigError(
            f"kafka.ssl.{store}.type is {kind}, which only Java reads: export the certificates as PEM and set"
            f" kafka.ssl.{store}.type=PEM"
        )
    return file, None if text is None else _lines(text)


def _lines(text: str) -> str:
    """Properties files have PEM with line ends written as backslash and n, or spaces instead of them."""
    return re.sub(
        r"(-----BEGIN [^-]+-----)\s*(.*?)\s*(-----END [^-]+-----)", _block, text.replace("\\n", "\n"), flags=re.S
    )


def _block(match: re.Match[str]) -> str:
    body = match[2] if ":" in match[2] else "\n".join(match[2].split())  # headers of an encrypted key stay as they are
    return f"{match[1]}\n{body}\n{match[3]}\n"


def _sasl(settings: Mapping[str, str]) -> Sasl:
    mechanism = settings.get("sasl.mechanism", "GSSAPI").strip().upper()
    if mechanism not in _MECHANISMS:
        unset = " (Java's default)" if "sasl.mechanism" not in settings else ""
        raise ConfigError(f"kafka.sasl.mechanism is {mechanism}{unset}; accepted are {', '.join(_MECHANISMS)}")
    config = settings.get("sasl.jaas.config")
    if config is None:
        raise ConfigError(f"kafka.sasl.mechanism={mechanism} needs kafka.sasl.jaas.config, for example {_EXAMPLE}")
    user, password = _login(config, mechanism)
    if mechanism == "PLAIN":
        return Plain(user, password)
    return Scram(user, password, "SCRAM-SHA-256" if mechanism == "SCRAM-SHA-256" else "SCRAM-SHA-512")


def _login(config: str, mechanism: str) -> tuple[str, str]:
    """User and password of a JAAS entry. Errors do not repeat it: it has the password."""
    match = _JAAS.fullmatch(config)
    if match is None:
        raise ConfigError(f"kafka.sasl.jaas.config is not of the form {_EXAMPLE}")
    fitting = _MODULES.get(match["module"])
    if fitting is None:
        raise ConfigError(f"kafka.sasl.jaas.config names {match['module']}; accepted are {', '.join(_MODULES)}")
    if mechanism not in fitting:
        raise ConfigError(f"kafka.sasl.jaas.config is for {' and '.join(fitting)}, kafka.sasl.mechanism is {mechanism}")
    found: dict[str, str] = {}
    for name, double, single, bare in _PAIR.findall(match["rest"]):
        found[name] = bare or re.sub(r"\\(.)", r"\1", double or single)
    missing = [name for name in ("username", "password") if name not in found]
    if missing:
        raise ConfigError(f"kafka.sasl.jaas.config has no {' and no '.join(missing)}: it should look like {_EXAMPLE}")
    return found["username"], found["password"]
