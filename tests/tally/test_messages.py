"""Tallies in the audit topic: what is written is read, and what others wrote is not believed."""

from __future__ import annotations

import json

import pytest

from ottla.audit.notes import Notes, collect
from ottla.errors import ConfigError, InputError
from ottla.tally.messages import from_message, key_of, to_messages
from ottla.tally.settings import Audit
from ottla.tally.values import RangeTally, SessionPage, Slice, as_hex, check_bucket, check_name

PIECE = Slice(start=1200, count=3, bytes=30, fingerprint=as_hex(7), first=1200.5, last=1300.0, partition=2)
RANGE = RangeTally(
    tier="edge",
    topic="clicks",
    topic_id="id",
    partition=2,
    start=10,
    stop=20,
    bucket_seconds=600,
    records=3,
    written=5.0,
    buckets=(PIECE,),
)
PAGE = SessionPage(
    tier="edge",
    topic="clicks",
    session="s",
    page=0,
    number=1,
    state="open",
    bucket_seconds=600,
    floor=0,
    ceiling=600,
    as_of=1.0,
    lease=60.0,
    buckets=(PIECE,),
)


@pytest.mark.parametrize("tally", [RANGE, PAGE])
def test_what_is_written_is_read(tally: RangeTally | SessionPage) -> None:
    (message,) = to_messages(tally)
    assert from_message(message.value) == tally
    fields = json.loads(message.value)
    assert fields["kind"] in ("range", "session")
    assert fields["buckets"][0]["fingerprint"] == f"{7:032x}"
    assert json.loads(message.key)[0] == fields["kind"]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"null",
        b"[]",
        b"\xff\xfe",
        b'{"kind": "range"}',
        b'{"kind": "other"}',
        b"[" * 5000,
        json.dumps({**json.loads(next(to_messages(RANGE)).value), "stop": 3}).encode(),
        json.dumps({**json.loads(next(to_messages(RANGE)).value), "version": 2}).encode(),
        json.dumps({**json.loads(next(to_messages(RANGE)).value), "partition": -1}).encode(),
        json.dumps({**json.loads(next(to_messages(RANGE)).value), "bucket_seconds": 7}).encode(),
        json.dumps({**json.loads(next(to_messages(PAGE)).value), "bucket_seconds": 0}).encode(),
    ],
)
def test_what_is_no_tally_is_counted_and_left_out(value: bytes) -> None:
    with pytest.raises(InputError, match="not a tally"):
        from_message(value)
    notes = collect([value, None, next(to_messages(RANGE)).value])
    assert notes.unreadable == 1
    assert len(notes.tallies) == 1


def test_the_newer_of_two_versions_counts_in_whatever_order_they_come() -> None:
    import msgspec

    newer = msgspec.structs.replace(PAGE, number=2, buckets=())
    for pages in ([PAGE, newer], [newer, PAGE]):
        notes = Notes()
        for page in pages:
            notes.add(page)
        assert list(notes.tallies.values()) == [newer]
    assert key_of(PAGE) == key_of(newer)


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * 101, "a/b", None, 7, "a\n"])
def test_names_with_odd_characters_are_refused(name: object) -> None:
    with pytest.raises(ConfigError, match="letters, digits"):
        check_name("tier", name)
    with pytest.raises(ConfigError, match="tier"):
        Audit(tier=name)  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [0, -600, 0.5, 8 * 86_400, True, "600", float("nan"), None])
def test_a_bucket_has_whole_seconds_up_to_a_week(seconds: object) -> None:
    with pytest.raises(ConfigError, match="bucket"):
        check_bucket(seconds)


@pytest.mark.parametrize(
    "settings", [{"publish_every": 0}, {"publish_every": True}, {"wait_seconds": -1}, {"topic": "a b"}, {"service": ""}]
)
def test_wrong_settings_of_an_audit_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Audit(tier="edge", **settings)  # type: ignore[arg-type]
