"""For users' own tests: a fake Kafka cluster that real clients can talk to, and pytest fixtures.

`FakeKafka` is the cluster with its faults on demand; `plugin` has the fixtures and is loaded by every pytest
run, so that this module imports nothing before a name is asked for. Nothing else in Ottla may import this
room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla._lazy import lazy

if TYPE_CHECKING:
    from ottla.testing.fake.faults import Fault, RequestSeen, When
    from ottla.testing.fake.kafka import FakeKafka
    from ottla.testing.fake.records import StoredRecord
    from ottla.testing.fake.state import AutoCreate

__all__ = ["AutoCreate", "FakeKafka", "Fault", "RequestSeen", "StoredRecord", "When"]

_HOMES = {
    "AutoCreate": "ottla.testing.fake.state",
    "FakeKafka": "ottla.testing.fake.kafka",
    "Fault": "ottla.testing.fake.faults",
    "RequestSeen": "ottla.testing.fake.faults",
    "StoredRecord": "ottla.testing.fake.records",
    "When": "ottla.testing.fake.faults",
}

if not TYPE_CHECKING:  # or every misspelt name would pass a type checker
    __getattr__, __dir__ = lazy(__name__, _HOMES)
