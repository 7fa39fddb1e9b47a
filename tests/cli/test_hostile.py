"""Commands against a broker whose every text is hostile: nothing of it steers a terminal or forges a line."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from tests.cli.commands import run
from tests.cli.hostile_broker import FORGED, HOSTILE, METADATA, Change, hostile_broker, refusing

from ottla.errors import ErrorCode
from ottla.text import CONTROL

REFUSALS = {17: ErrorCode.unsupported_sasl_mechanism, 36: ErrorCode.sasl_authentication_failed}
"""By API: SaslHandshake and SaslAuthenticate."""


def _check(text: str) -> None:
    found = [character for character in CONTROL.findall(text) if character != "\n"]
    assert not found, f"{sorted(set(found))!r} in {text!r}"
    assert not [line for line in text.splitlines() if line.lstrip().startswith(FORGED)], text


def _texts(value: Any) -> set[str]:
    if isinstance(value, dict):
        return _texts([*value, *value.values()])
    return {text for one in value for text in _texts(one)} if isinstance(value, list) else {str(value)}


def _run(caplog: pytest.LogCaptureFixture, *arguments: str, change: Change | None = None, **env: str) -> str:
    """All that the command says, and all that the library has logged."""
    with caplog.at_level(logging.DEBUG), hostile_broker(change) as bootstrap:
        ended = run(*arguments, "--bootstrap", bootstrap, env=env)
    logged = [record.getMessage() for record in caplog.records if record.name.startswith("ottla")]
    for text in (ended.stdout, ended.stderr, *logged):
        _check(text)
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    return ended.output


@pytest.mark.parametrize(
    "command",
    [
        ("topics", "list"),
        ("topics", "list", "--long"),
        ("topics", "list", "--long", "--json"),
        ("groups", "list"),
        ("groups", "list", "--json"),
        ("groups", "describe", HOSTILE),
        ("groups", "describe", HOSTILE, "--json"),
        ("groups", "reset", HOSTILE, "--to", "earliest", "--dry-run"),
    ],
    ids=lambda command: " ".join(command).replace(HOSTILE, "NAME"),
)
def test_what_is_shown(command: tuple[str, ...], caplog: pytest.LogCaptureFixture) -> None:
    shown = _run(caplog, *command, "--timeout", "5")
    assert "owned" in shown, "the hostile text is not in it: this shows nothing"
    if "--json" in command:
        assert HOSTILE in _texts(json.loads(shown)), "programs get it as it is"


@pytest.mark.parametrize(
    "command",
    [
        ("topics", "list", "--long"),
        ("topics", "describe", "clicks"),
        ("topics", "create", "clicks"),
        ("topics", "alter", "clicks", "--retention", "1h", "--yes"),
        ("topics", "add-partitions", "clicks", "--total", "3"),
        ("topics", "delete", "clicks", "--yes"),
        ("groups", "list"),
        ("groups", "describe", "billing"),
        ("groups", "reset", "billing", "--to", "earliest", "--yes"),
        ("groups", "delete", "billing", "--yes"),
        ("query", "clicks"),
        ("query", "clicks", "--count"),
        ("consume", "clicks", "--until", "latest"),
        ("consume", "clicks", "--group", "billing"),
        ("produce", "clicks", "/etc/hostname", "--delivery-timeout", "2"),
    ],
    ids=" ".join,
)
def test_what_is_refused(command: tuple[str, ...], caplog: pytest.LogCaptureFixture) -> None:
    _run(caplog, *command, "--timeout", "3", change=refusing(ErrorCode.policy_violation))


@pytest.mark.parametrize("key", REFUSALS)
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_login_that_is_refused(key: int, mechanism: str, caplog: pytest.LogCaptureFixture) -> None:
    def change(asked: int, request: Any, tree: dict[str, Any]) -> None:
        if asked == key:
            tree["error_code"] = REFUSALS[key]

    login = ("--username", "me", "--sasl-mechanism", mechanism)
    said = _run(caplog, "topics", "list", *login, change=change, OTTLA_PASSWORD="secret")
    assert "owned" in said


def test_brokers_at_hostile_addresses(caplog: pytest.LogCaptureFixture) -> None:
    def change(asked: int, request: Any, tree: dict[str, Any]) -> None:
        if asked == METADATA:
            tree["brokers"][0]["host"] = HOSTILE

    said = _run(caplog, "groups", "list", "--timeout", "2", change=change)
    assert "owned" in said
