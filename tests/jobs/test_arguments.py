"""Wrong arguments of the calls for programs are errors of the call, before anything is connected."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from ottla.errors import ConfigError
from ottla.jobs import compare, find_differences, mirror, tally

_AWAY = "127.0.0.1:1"
_TALLY = {"brokers": _AWAY, "tier": "t"}
_SIDES = {"left": _AWAY, "right": _AWAY}


@pytest.mark.parametrize(
    ("call", "first", "named", "message"),
    [
        (tally, "clicks", {**_TALLY, "start": "2026-01-01"}, "start must be a datetime with a time zone, got '2026-01"),
        (tally, "clicks", {**_TALLY, "start": datetime(2026, 1, 1)}, "has no time zone"),
        (tally, b"x", _TALLY, "topics must be the name of a topic, or several, got b'x'"),
        (tally, [], _TALLY, "topics is empty: name a topic"),
        (tally, [""], _TALLY, "topics must be the name of a topic, got ''"),
        (tally, None, _TALLY, "topics must be the name of a topic, or several, got None"),
        (find_differences, None, _SIDES, "topic must be the name of a topic, got None"),
        (find_differences, "a", {**_SIDES, "stop": "now"}, "stop must be a datetime"),
        (mirror, "clicks", {}, "mirror() takes a Link(source=..., target=..., topics=...), got str"),
    ],
)
def test_a_wrong_argument_is_an_error_of_the_call(
    call: Callable[..., Any], first: object, named: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        call(first, **named)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"start": "yesterday"}, "start must be a datetime"),
        ({"stop": 7}, "stop must be a datetime"),
        ({"delay": "5m"}, "delay must be seconds from 0 to 2,592,000, got '5m'"),
        ({"delay": float("nan")}, "delay must be seconds"),
        ({"topics": 3}, "topics must be the name of a topic, or several, got 3"),
    ],
)
def test_a_wrong_argument_of_a_comparison_is_an_error_of_the_call(named: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compare(audit=_AWAY, **named)
    assert message in str(caught.value)
