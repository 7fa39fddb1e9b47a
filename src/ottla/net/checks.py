"""The options that every client of a cluster has, checked in one place."""

from __future__ import annotations

from collections.abc import Iterable

from ottla.config import Retry, Security, Timeouts, check_kind
from ottla.errors import ConfigError
from ottla.events import Events


def check_client(*, security: object, timeouts: object, retry: object, client_id: object, events: object) -> None:
    """Each is of the kind that it must be."""
    check_kind("security", security, Security)
    check_kind("client_id", client_id, str)
    for name, value, kind in (("timeouts", timeouts, Timeouts), ("retry", retry, Retry)):
        if value is not None:
            check_kind(name, value, kind)
    if not isinstance(events, Events) and not (isinstance(events, Iterable) and all(map(callable, events))):
        raise ConfigError(f"events must be Events or a list of callables, for example [print], got {events!r}")
