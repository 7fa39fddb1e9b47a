"""For users' own tests: a fake Kafka cluster that real clients can talk to, and pytest fixtures.

`FakeKafka` is the cluster with its faults on demand; `plugin` has the fixtures and is loaded by every pytest
run, so that this module imports nothing before a name is asked for. Nothing else in Ottla may import this
room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.testing.fake.faults import Fault, RequestSeen, When
    from ottla.testing.fake.kafka import FakeKafka
    from ottla.testing.fake.records import StoredRecord
    from ottla.testing.fake.state import AutoCreate

__all__ = ["AutoCreate", "FakeKafka", "Fault", "RequestSeen", "StoredRecord", "When"]

_HOMES = {
    "AutoCreate": "state",
    "FakeKafka": "kafka",
    "Fault": "faults",
    "RequestSeen": "faults",
    "StoredRecord": "records",
    "When": "faults",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"ottla.testing.fake.{_HOMES[name]}"), name)
