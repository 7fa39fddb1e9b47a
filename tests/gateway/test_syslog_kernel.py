"""The syslog kernel finds what the RFCs and the regular expressions find, in sound and in hostile messages."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.gateway.receiving.arrivals import of_messages, readonly
from ottla.gateway.syslog.clock import clock_at, zone_named
from ottla.gateway.syslog.parsing import APP, DATA, HOST, MESSAGE, MSGID, PROCID, Parsed
from ottla.wire.kernels import framing
from ottla.wire.kernels import syslog as k

from . import syslog_oracle
from .syslog_lines import SOUND, line
from .syslog_oracle import Clock, Found

NOW = 1_795_000_000_000
CLOCK = Clock(NOW, 2026, 3_600_000, 7_200_000, NOW - 50_000_000)
_TEXTS = {"host": HOST, "app": APP, "procid": PROCID, "msgid": MSGID, "data": DATA}


def found_in(messages: list[bytes], clock: Clock = CLOCK) -> list[Found]:
    """What the kernel finds, as the oracle says it."""
    arrivals = of_messages(messages, received_ms=clock.now)
    table = np.empty((len(messages), k.ROW_FIELDS), np.int64)
    fields = readonly(np.array(clock, np.int64))
    assert k.parse_syslog(arrivals.data, arrivals.spans, fields, table) == len(messages)
    parsed = Parsed(arrivals, table, arrivals.source_of)
    return [
        Found(
            kind=row[k.KIND],
            error=row[k.ERROR],
            priority=row[k.PRI],
            time=None if row[k.TIME] == k.NO_TIME else row[k.TIME],
            fields={name: parsed.text(text, number) for name, text in _TEXTS.items()},
            message=parsed.text(MESSAGE, number),
        )
        for number, row in enumerate(table.tolist())
    ]


def _one(message: bytes, clock: Clock = CLOCK) -> Found:
    return found_in([message], clock)[0]


@pytest.mark.parametrize("message", SOUND)
def test_the_kernel_and_the_regular_expressions_agree_on_what_is_sent(message: bytes) -> None:
    assert _one(message) == syslog_oracle.parse(message, CLOCK)


def test_they_agree_on_twenty_thousand_changed_messages() -> None:
    chance = random.Random(7)
    messages = [line(chance) for _ in range(20_000)]
    kinds = set()
    for message, found in zip(messages, found_in(messages), strict=True):
        assert found == syslog_oracle.parse(message, CLOCK), message
        kinds.add((found.kind, found.error))
    every_error = {(k.UNPARSED, error) for error in range(k.NO_PRIORITY, k.ERRORS)}
    assert kinds == every_error | {(k.BSD, 0), (k.IETF, 0)}, "all outcomes must be among them"


@settings(max_examples=300)
@given(st.lists(st.binary(max_size=60) | st.sampled_from(SOUND), max_size=5))
def test_they_agree_on_any_bytes(messages: list[bytes]) -> None:
    assert found_in(messages) == [syslog_oracle.parse(message, CLOCK) for message in messages]


def test_a_message_of_rfc_5424_has_all_its_fields() -> None:
    found = _one(SOUND[2])
    assert (found.kind, found.priority, found.message) == (k.IETF, 165, b"BOM")
    assert found.fields == {
        "host": b"host",
        "app": b"evntslog",
        "procid": b"",
        "msgid": b"ID47",
        "data": b'[exampleSDID@32473 iut="3" eventSource="App\\]\\"x"]',
    }
    assert found.time == round(datetime(2003, 10, 11, 22, 14, 15, 3000, UTC).timestamp() * 1000)


def test_a_message_without_a_host_is_not_given_its_tag_as_one() -> None:
    found = _one(b"<13>Oct 11 22:14:15 su[12]: text")
    assert (found.fields["host"], found.fields["app"], found.fields["procid"]) == (b"", b"su", b"12")


def test_the_year_of_a_date_without_one_is_the_nearest() -> None:
    new_year = round(datetime(2027, 1, 1, 0, 0, 5, tzinfo=UTC).timestamp() * 1000)
    clock = Clock(new_year, 2027)
    assert _one(b"<13>Dec 31 23:59:59 h a: x", clock).time == new_year - 6000
    assert _one(b"<13>Jan  1 00:00:06 h a: x", clock).time == new_year + 1000
    eve = Clock(new_year - 10_000, 2026)
    assert _one(b"<13>Jan  1 00:00:06 h a: x", eve).time == new_year + 1000


@pytest.mark.parametrize(
    ("zone", "now", "local", "utc"),
    [
        # The clocks go forward at 01:00 UTC, and back in October.
        ("Europe/Prague", "2026-03-29T02:00:00+00:00", "Mar 29 01:59:59", "2026-03-29T00:59:59+00:00"),
        ("Europe/Prague", "2026-03-29T02:00:00+00:00", "Mar 29 03:00:01", "2026-03-29T01:00:01+00:00"),
        ("Europe/Prague", "2026-10-25T03:00:00+00:00", "Oct 25 01:30:00", "2026-10-24T23:30:00+00:00"),
        ("Europe/Prague", "2026-10-25T03:00:00+00:00", "Oct 25 03:30:00", "2026-10-25T02:30:00+00:00"),
        ("Asia/Kolkata", "2026-10-25T03:00:00+00:00", "Oct 25 03:30:00", "2026-10-24T22:00:00+00:00"),
        ("UTC", "2026-10-25T03:00:00+00:00", "Oct 25 03:30:00", "2026-10-25T03:30:00+00:00"),
    ],
)
def test_times_without_a_zone_are_local_also_around_a_change_of_the_clocks(
    zone: str, now: str, local: str, utc: str
) -> None:
    now_ms = round(datetime.fromisoformat(now).timestamp() * 1000)
    clock = Clock(*clock_at(now_ms, zone_named(zone)).tolist())
    assert _one(f"<13>{local} h a: x".encode(), clock).time == round(datetime.fromisoformat(utc).timestamp() * 1000)


@settings(max_examples=50)
@given(st.integers(0, 4_000_000_000), st.sampled_from(["Europe/Prague", "America/St_Johns", "Asia/Kolkata", "UTC"]))
def test_the_clock_knows_the_offset_of_every_moment(now: int, name: str) -> None:
    clock = Clock(*clock_at(now * 1000, zone_named(name)).tolist())
    zone = ZoneInfo(name)
    for hours in range(-35, 36, 5):
        moment = datetime.fromtimestamp(now + hours * 3600, zone)
        wall = round(moment.replace(tzinfo=UTC).timestamp())
        if not moment.fold and moment.replace(fold=1).utcoffset() == moment.utcoffset():
            assert clock.utc(wall * 1000) == (now + hours * 3600) * 1000


def test_what_is_wrong_with_a_frame_is_kept_beside_what_was_parsed() -> None:
    arrivals = of_messages([SOUND[0]], received_ms=NOW, mark=framing.TRUNCATED)
    table = np.empty((1, k.ROW_FIELDS), np.int64)
    k.parse_syslog(arrivals.data, arrivals.spans, readonly(np.array(CLOCK, np.int64)), table)
    assert (table[0, k.KIND], table[0, k.ERROR]) == (k.IETF, framing.TRUNCATED)


@pytest.mark.parametrize("span", [(-1, 2), (0, 5), (3, 2)])
def test_spans_outside_the_data_are_refused(span: tuple[int, int]) -> None:
    spans = readonly(np.array([(*span, 0)], np.int64))
    table = np.empty((1, k.ROW_FIELDS), np.int64)
    data = readonly(np.zeros(4, np.uint8))
    assert k.parse_syslog(data, spans, readonly(np.array(CLOCK, np.int64)), table) == k.UNFIT
