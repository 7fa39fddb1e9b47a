"""Settings of other clients: what they are called here."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from ottla import Consumer, Producer, Reader
from ottla.errors import ConfigError
from ottla.produce.options import Settings

NOWHERE = "127.0.0.1:9"


@pytest.mark.parametrize(
    ("make", "name", "hint"),
    [
        (Producer, "linger_ms", "it is batching=Batching(linger=...), in seconds"),
        (Producer, "batch_size", "it is batching=Batching(bytes=...)"),
        (Producer, "max_in_flight", "there is none: up to 5 batches"),
        (Producer, "buffer_memory", "it is buffering=Buffering("),
        (Producer, "message_max_bytes", "it is max_record_bytes=..."),
        (Producer, "value_serializer", "there are no serializers"),
        (Producer, "on_delivery", "it is on_failed=..."),
        (Producer, "sasl_mechanism", "it is security=Security("),
        (Producer, "compresion", "did you mean compression?"),
        (Producer, "bufering", "did you mean buffering?"),
        (Consumer, "group_id", "it is group=..."),
        (Consumer, "group.id", "it is group=..."),
        (Consumer, "auto_offset_reset", "it is start=..."),
        (Consumer, "enable_auto_commit", "it is commit_every=..."),
        (Consumer, "isolation_level", "it is isolation=..."),
        (Consumer, "max_poll_records", "there is none: poll() returns one batch"),
        (Consumer, "session_timeout_ms", "it is options=GroupOptions(session_timeout=...), in seconds"),
        (Consumer, "timeout", "it is timeouts=Timeouts("),
        (Consumer, "ssl_cafile", "it is security=Security("),
        (Consumer, "gruop", "did you mean group?"),
        (Reader, "group_id", "a Reader has no group"),
        (Reader, "isolation_level", "it is isolation=..."),
        (Reader, "timeout", "it is timeouts=Timeouts("),
        (Reader, "quux", "Reader has no option 'quux'; the options are "),
    ],
)
def test_a_setting_of_another_client_is_refused_with_its_name_here(
    make: Callable[..., Any], name: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        make(NOWHERE, **{name: 5})
    assert hint in str(refused.value)
    assert name in str(refused.value)


@pytest.mark.parametrize("make", [Producer, Consumer, Reader])
@pytest.mark.parametrize("name", ["bootstrap_servers", "bootstrap.servers"])
def test_the_addresses_are_the_first_argument(make: Callable[..., Any], name: str) -> None:
    with pytest.raises(ConfigError, match="the addresses of brokers are the first argument"):
        make(**{name: NOWHERE})


@pytest.mark.parametrize("make", [Producer, Consumer, Reader])
def test_tools_see_the_signature_of_the_constructor(make: Callable[..., Any]) -> None:
    assert {"security", "client_id", "timeouts"} <= inspect.signature(make).parameters.keys()


def test_minus_one_acknowledgement_means_all() -> None:
    assert Settings(acks=-1) == Settings(acks="all")


def test_no_automatic_commits_are_none_and_not_false() -> None:
    with pytest.raises(ConfigError, match="None leaves commits to the program"):
        Consumer(NOWHERE, group="app", commit_every=False)
