"""Secrets on the network: a warning if they are readable on the way, and never one in a message."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from ottla import (
    Admin,
    Cluster,
    Consumer,
    OAuthBearer,
    PartitionProducer,
    Plain,
    Producer,
    Reader,
    Scram,
    Security,
    Tls,
)
from ottla.errors import ConfigError

SECRET = "s3cret"
CLIENTS: dict[str, Callable[..., Any]] = {
    "Admin": Admin,
    "Cluster": Cluster,
    "Consumer": lambda where, **more: Consumer(where, group="g", topics="t", **more),
    "PartitionProducer": lambda where, **more: PartitionProducer(where, ("t", 0), **more),
    "Producer": Producer,
    "Reader": Reader,
}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("security", "what"),
    [
        (Security(sasl=Plain("me", SECRET)), "password"),
        (Security(sasl=OAuthBearer(lambda: SECRET)), "token"),
        (Security(sasl=Scram("me", SECRET)), None),
        (Security(sasl=Plain("me", SECRET), tls=Tls()), None),
        (Security(), None),
    ],
)
def test_a_client_warns_once(
    client: str, security: Security, what: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        made = CLIENTS[client]("127.0.0.1:1", security=security)
        made.close()
    warned = [record.getMessage() for record in caplog.records if "without TLS" in record.getMessage()]
    assert [text.split()[1] for text in warned] == ([] if what is None else [what])


@pytest.mark.parametrize("client", CLIENTS)
def test_a_dict_for_security_is_refused_without_its_values(client: str) -> None:
    with pytest.raises(ConfigError, match="security must be a Security, got a dict") as caught:
        CLIENTS[client]("127.0.0.1:1", security={"sasl.password": SECRET})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("address", [f"me:{SECRET}@kafka:9092", f"SASL_SSL://me:{SECRET}@kafka:9092", f"me:{SECRET}@"])
def test_an_address_with_a_password_is_refused_without_it(client: str, address: str) -> None:
    with pytest.raises(ConfigError, match=r"\*\*\*@") as caught:
        CLIENTS[client](address)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Scram("SCRAM-SHA-512", "me", SECRET),  # type: ignore[arg-type]
        lambda: Scram("me", "SCRAM-SHA-512", SECRET),  # type: ignore[arg-type]
        lambda: Scram(SECRET.encode(), "me"),  # type: ignore[arg-type]
        lambda: Plain("me", SECRET.encode()),  # type: ignore[arg-type]
        lambda: Plain("me", f"{SECRET}\0"),
        lambda: Plain("", SECRET),
        lambda: OAuthBearer(SECRET),  # type: ignore[arg-type]
        lambda: OAuthBearer(lambda: "t", extensions=(("auth", SECRET),)),
        lambda: OAuthBearer(lambda: "t", extensions=(("a", f"{SECRET}\x01"),)),
        lambda: Security(sasl={"password": SECRET}),  # type: ignore[arg-type]
        lambda: Security(sasl=Plain("me", SECRET), require_tls=True),
        lambda: Security(tls=True),  # type: ignore[arg-type]
    ],
)
def test_settings_that_are_wrong_are_refused_without_a_secret(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert SECRET not in str(caught.value)


def test_tls_can_be_required() -> None:
    assert Security(sasl=Plain("me", SECRET), tls=Tls(), require_tls=True).protocol == "SASL_SSL"
    with pytest.raises(ConfigError, match="require_tls=True"):
        Security(require_tls=True)
