"""Events as values: complete, immutable, and readable as one line."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from ottla.events import EVENTS, ConnectionUp, Event, FlushAcknowledged, Flushed, FlushFailed, values
from ottla.events.values import fields_of

from .samples import ERROR, Bare, CacheMissed, Silent, sample, samples

DOCS = Path(__file__).parents[2] / "docs" / "events.md"


def test_every_event_class_is_listed_and_exported() -> None:
    defined = {cls for cls in vars(values).values() if isinstance(cls, type) and issubclass(cls, Event)} - {Event}
    assert defined == set(EVENTS)
    assert {cls.__name__ for cls in EVENTS} <= set(__import__("ottla.events").events.__all__)


def test_kinds_are_distinct_snake_case_names() -> None:
    assert len({cls.kind for cls in EVENTS}) == len(EVENTS)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", cls.kind) for cls in EVENTS)
    assert FlushAcknowledged.kind == "flush_acknowledged"
    assert Silent.kind == "my odd.name!"


@pytest.mark.parametrize("event", samples(), ids=lambda event: event.kind)
def test_an_event_is_frozen_slotted_and_crosses_processes(event: Event) -> None:
    first = next(iter(fields_of(event)))
    with pytest.raises(FrozenInstanceError):
        setattr(event, first, None)
    assert not hasattr(event, "__dict__")
    assert str(pickle.loads(pickle.dumps(event))) == str(event)


def test_an_event_reads_as_one_line() -> None:
    event = FlushAcknowledged("clicks", 3, 100, 4096, base_offset=12_345_678, seconds=0.0123456789, attempts=1)
    assert str(event) == (
        "flush_acknowledged topic=clicks partition=3 records=100 size_bytes=4096"
        " base_offset=12345678 seconds=0.0123457 attempts=1"
    )


def test_text_with_line_ends_cannot_forge_a_line() -> None:
    text = str(FlushFailed("clicks", 3, 100, 4096, error=ERROR))
    assert "\n" not in text
    assert 'error="BrokerError: ' in text


def test_fields_of_events_that_are_no_dataclass_are_found() -> None:
    assert fields_of(Bare(5, 1)) == {"records": 5, "time": 1}
    assert list(fields_of(CacheMissed("a", 1, 2.0, 3.0, Path("x")))) == [field.name for field in fields(CacheMissed)]
    assert fields_of(Silent()) == {}


def test_the_core_of_the_room_imports_no_sink() -> None:
    code = "import sys, ottla.events; ottla.events.Events(); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "ottla.events.hub" in modules
    assert not [name for name in modules if name.startswith(("ottla.events.sinks", "prometheus_client"))]


def test_a_name_that_does_not_exist_is_refused_as_usual() -> None:
    import ottla.events

    with pytest.raises(AttributeError, match="NoSuchSink"):
        _ = ottla.events.NoSuchSink  # type: ignore[attr-defined]
    assert {"StatsdSink", "Events"} <= set(dir(ottla.events))


def test_the_documentation_lists_every_event_with_its_fields() -> None:
    rows = {line.split("`")[1].split("(")[0]: line for line in DOCS.read_text().splitlines() if line.startswith("| `")}
    for kind in EVENTS:
        call = f"{kind.__name__}({', '.join(fields_of(sample(kind)))})"
        assert call in rows.get(kind.__name__, ""), f"docs/events.md lacks {call}"


def test_a_bootstrap_connection_has_no_id() -> None:
    assert str(ConnectionUp(None, "a:1", 0.5)) == "connection_up broker_id=None address=a:1 seconds=0.5"
    assert Flushed("a", 0, 1, 2, 3) == Flushed("a", 0, 1, 2, 3)
