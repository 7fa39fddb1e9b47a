"""For users' own tests: a fake Kafka cluster that real clients can talk to, and pytest fixtures.

`FakeKafka` is the cluster, with faults on demand; `plugin` has the fixtures. Every pytest run loads the plugin, so this
module imports nothing before a name is used. No other room of Ottla may import this one.
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

if not TYPE_CHECKING:  # Otherwise a type checker would accept every misspelled name.
    __getattr__, __dir__ = lazy(__name__, _HOMES)
