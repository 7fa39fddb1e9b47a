"""What was not delivered is counted by period, and no period is forgotten before a poller has seen it."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.gateway.counts import Count, Counts
from ottla.gateway.datagram.discards import OTHER_TOPICS, Discards, Report
from ottla.gateway.datagram.pages import Queue, Snapshot, respond

START = 1_000_000.7


def _filled() -> Discards:
    discards = Discards(START, period=600)
    discards.malformed(START + 1, [b"\xff\x00"], count=3)
    discards.unclean(START + 2, b"half", is_tcp=False)
    discards.unclean(START + 2, b"other half", is_tcp=True)
    discards.unsupported_key(START + 3, count=2)
    discards.unsupported_version(START + 3, 5, count=1)
    discards.bad_topic(START + 4, b"no such\xff", count=4)
    discards.too_long(START + 5, "clicks", b"v" * 1000, times_ms=(5, 5))
    discards.discarded(START + 6, "clicks", times_ms=(3, 9), count=10)
    discards.possible_duplicate(START + 6, "clicks", times_ms=(3, 9), count=10)
    return discards


def _snapshot(discards: Discards, now: float) -> Snapshot:
    return Snapshot(
        pid=42,
        version="0.1.0",
        since=START,
        now=now,
        counters=(Count("received", (), 7), Count("messages", (("topic", "clicks"),), 5)),
        interval=600,
        unfinished=discards.running(now),
        finished=discards.last_finished(now),
        earlier=discards.finished(now),
        queues=(Queue("clicks", 1, 2, 3),),
        new=4,
        metadata_updated=START,
        metadata_modified=START,
    )


def _json(path: str, snapshot: Snapshot) -> dict[str, object]:
    page = respond("GET", path, snapshot)
    assert (page.status, page.content_type) == (200, "application/json")
    body: dict[str, object] = json.loads(page.body)
    assert (body["pid"], body["version"], body["since"]) == (42, "0.1.0", int(START))
    return body


def test_a_report_has_the_names_that_scripts_for_dory_read() -> None:
    body = _json("/discards/json", _snapshot(_filled(), START + 10))
    assert "finished_report" not in body, "the first period is not over"
    assert body["interval"] == 600
    assert body["unfinished_report"] == {
        "id": 0,
        "start_time": int(START),
        "malformed_msg_count": 3,
        "unix_stream_unclean_disconnect_count": 1,
        "tcp_unclean_disconnect_count": 1,
        "unsupported_api_key_msg_count": 2,
        "unsupported_version_msg_count": 1,
        "bad_topic_msg_count": 4,
        "recent_malformed": [base64.b64encode(b"\xff\x00").decode()],
        "unix_stream_unclean_disconnect": [base64.b64encode(b"half").decode()],
        "tcp_unclean_disconnect": [base64.b64encode(b"other half").decode()],
        "unsupported_msg_version": [{"version": 5, "count": 1}],
        "recent_bad_topic": ["no such\\xff"],
        "recent_too_long_msg": [base64.b64encode(b"clicks " + b"v" * 249).decode()],
        "rate_limit_discard": [],
        "discard_topic": [{"topic": "clicks", "min_timestamp": 3, "max_timestamp": 9, "count": 11}],
        "possible_duplicate_topic": [{"topic": "clicks", "min_timestamp": 3, "max_timestamp": 9, "count": 10}],
    }


def test_the_period_before_is_the_finished_report_and_older_ones_are_kept() -> None:
    discards = _filled()
    body = _json("/discards/json", _snapshot(discards, START + 650))
    assert body["finished_report"]["malformed_msg_count"] == 3  # type: ignore[index]
    assert body["unfinished_report"]["id"] == 1  # type: ignore[index]
    late = _json("/discards/json", _snapshot(discards, START + 10_000))
    assert late["finished_report"]["malformed_msg_count"] == 0, "dory's field: the period before"  # type: ignore[index]
    assert [report["malformed_msg_count"] for report in late["finished_reports"]] == [3]  # type: ignore[attr-defined]
    assert discards.totals.discarded == 11


@given(st.lists(st.tuples(st.floats(-2000, 2000), st.integers(1, 5)), max_size=60))
def test_nothing_that_was_counted_is_ever_lost(events: list[tuple[float, int]]) -> None:
    discards = Discards(START, period=60, keep=1000)
    now = START
    for step, count in events:
        now += step  # clocks also go back
        discards.malformed(now, [], count=count)
    reports = (*discards.finished(now), discards.running(now))
    assert sum(report.malformed for report in reports) == sum(count for _, count in events) == discards.totals.malformed
    assert [report.id for report in reports] == sorted({report.id for report in reports})


def test_memory_is_bounded_whatever_arrives() -> None:
    discards = Discards(START, period=60, keep=3)
    for number in range(3000):
        discards.discarded(START, f"topic-{number}", times_ms=(number, number), count=1)
        discards.malformed(START, [str(number).encode() * 1000], count=1)
        discards.unsupported_version(START, number, count=1)
        discards.bad_topic(START, b"t" * 1000 + str(number).encode(), count=1)
    report = discards.running(START)
    assert len(report.discarded) == 1001
    assert report.discarded[OTHER_TOPICS].count == 2000
    assert len(report.malformed_samples) == 10
    assert max(map(len, [*report.malformed_samples, *report.bad_topic_samples])) == 256
    for period in range(10):
        discards.malformed(START + 60 * period, [], count=1)
    assert len(discards.finished(START + 600)) == 3


def test_samples_can_be_left_out() -> None:
    discards = Discards(START, samples=False)
    discards.malformed(START, [b"secret"], count=1)
    assert discards.running(START).malformed_samples == []


@pytest.mark.parametrize("name", ["server_info", "counters", "discards", "queues", "metadata_fetch_time"])
def test_every_page_comes_plain_and_as_json(name: str) -> None:
    snapshot = _snapshot(_filled(), START + 650)
    page = respond("GET", f"/{name}/plain", snapshot)
    assert (page.status, page.content_type) == (200, "text/plain; charset=utf-8")
    assert page.body.startswith(b"pid: 42\nversion: 0.1.0\nsince: 1000000 ")
    assert _json(f"/{name}/json", snapshot)


def test_pages_show_counters_queues_and_times() -> None:
    snapshot = _snapshot(_filled(), START + 10)
    assert {"location": "gateway", "name": "messages{topic=clicks}", "value": 5} in _json("/counters/json", snapshot)[
        "counters"
    ]  # type: ignore[operator]
    queues = _json("/queues/json", snapshot)
    assert (queues["sending"], queues["new"]) == (
        [{"topic": "clicks", "batch": 1, "send_wait": 2, "ack_wait": 3}],
        4,
    )
    assert b"        10 total (all states" in respond("GET", "/queues/plain", snapshot).body
    assert _json("/metadata_fetch_time/json", snapshot)["last_updated"] == round(START * 1000)
    assert (
        b"    discard topic: 6[clicks] begin [3] end [9] count 11" in respond("GET", "/discards/plain", snapshot).body
    )


def test_other_requests_get_dorys_status_codes() -> None:
    snapshot = _snapshot(_filled(), START)
    update = respond("POST", "/metadata_update", snapshot)
    assert (update.status, update.updates_metadata) == (200, True)
    assert respond("GET", "/", snapshot).content_type.startswith("text/html")
    for method, path, status in (
        ("GET", "/nothing", 404),
        ("GET", "/discards", 404),
        ("GET", "/discards/xml", 404),
        ("POST", "/discards/json", 404),
        ("PUT", "/", 501),
    ):
        page = respond(method, path, snapshot)
        assert (page.status, page.updates_metadata) == (status, False)


def test_counters_have_a_limited_number_of_topics() -> None:
    counts = Counts("received", most_topics=2)
    for topic in ("a", "b", "c", "d", "a"):
        counts.add("messages", topic=topic)
    assert counts.snapshot() == (
        Count("messages", (("topic", "a"),), 2),
        Count("messages", (("topic", "b"),), 1),
        Count("messages", (("topic", "other"),), 2),
        Count("received", (), 0),
    )
    assert (counts.get("messages"), counts.get("messages", topic="a")) == (5, 2)


def test_an_empty_report_is_known_as_one() -> None:
    assert Report(1, 2).is_empty
    assert not _filled().running(START + 7).is_empty
