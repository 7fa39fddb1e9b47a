"""A link refuses what would fail later, far from the call."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.errors import ConfigError
from ottla.jobs import Link


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"source": None}, "source=...) must be Brokers(...) or HOST:PORT,..., got NoneType"),
        ({"target": ["hub:9092"]}, "target=...) must be Brokers(...) or HOST:PORT,..., got list"),
        ({"topics": [3]}, "topics=...) must be a text or several"),
        ({"topics": None}, "topics=...) must be a text or several, got NoneType"),
        ({"groups": 3}, "groups=...) must be a text or several, got int"),
        ({"rules": {"on_lost": "continue"}}, "rules=...) must be Policy(...), got dict"),
        ({"rate": "10MB/s"}, "rate=...) must be bytes per second, got str"),
        ({"replicas": "3"}, "replicas=...) must be a number above 0, or -1, got str"),
        ({"replicas": 0}, "replicas=...) must be a number above 0"),
        ({"name": ""}, "the name of a link is ''"),
    ],
)
def test_a_wrong_argument_is_an_error_of_the_link(setting: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {"source": "edge:9092", "target": "hub:9092", "topics": "clicks", **setting}
    with pytest.raises(ConfigError) as caught:
        Link(**settings)
    assert message in str(caught.value)


def test_a_topic_that_is_named_and_excluded_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"names topic shop\.audit and excludes it"):
        Link(source="edge:9092", target="hub:9092", topics="shop.audit", exclude="shop.*")
    link = Link(source="edge:9092", target="hub:9092", topics="shop.*", exclude="shop.audit")
    assert link.exclude == ("shop.audit",)
