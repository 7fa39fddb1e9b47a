"""dory's status pages, as pure functions of a snapshot: `/discards/json` and the others, with dory's paths and names.

A request's method and path and a `Snapshot` come in, a `Page` goes out. Nothing here listens; what serves HTTP mounts
`respond`.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ottla.gateway.counts import Count
from ottla.gateway.datagram.discards import Interval, Report

_PLAIN, _JSON, _HTML = "text/plain; charset=utf-8", "application/json", "text/html; charset=utf-8"
UPDATE_PATH = "/metadata_update"


class Queue(NamedTuple):
    """Messages of a topic on their way: in batches that are being filled, waiting to be sent, waiting for an answer."""

    topic: str
    batch: int
    send_wait: int
    ack_wait: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What the pages show. Times are in seconds since 1970."""

    pid: int
    version: str
    since: float
    now: float
    counters: tuple[Count, ...] = ()
    interval: int
    unfinished: Report
    finished: Report | None
    earlier: tuple[Report, ...] = ()
    """All finished reports that are kept: ours, beside dory's."""
    queues: tuple[Queue, ...] = ()
    new: int = 0
    metadata_updated: float = 0.0
    metadata_modified: float = 0.0


class Page(NamedTuple):
    """An answer. `updates_metadata` says that the request asks for the metadata to be fetched now."""

    status: int
    content_type: str
    body: bytes
    updates_metadata: bool = False


def respond(method: str, path: str, snapshot: Snapshot) -> Page:
    """Answer a request as dory does."""
    path = path.partition("?")[0]
    if method == "POST":
        if path != UPDATE_PATH:
            return _text(404, "not found\n")
        return _text(200, f"Metadata update initiated at {_seconds(snapshot.now)}\n")._replace(updates_metadata=True)
    if method not in ("GET", "HEAD"):
        return _text(501, "not implemented\n")
    if path in ("", "/"):
        return Page(200, _HTML, _home().encode())
    name, _, form = path.strip("/").partition("/")
    if name in _PAGES and form in ("plain", "json"):
        plain, as_json = _PAGES[name]
        if form == "plain":
            return _text(200, "\n".join(plain(snapshot)) + "\n")
        return Page(200, _JSON, (json.dumps(_head(snapshot) | as_json(snapshot), indent=4) + "\n").encode())
    return _text(404, "not found\n")


def _text(status: int, text: str) -> Page:
    return Page(status, _PLAIN, text.encode(errors="backslashreplace"))


def _home() -> str:
    rows = "".join(f'<li>{name}: <a href="/{name}/plain">plain</a> <a href="/{name}/json">json</a>' for name in _PAGES)
    update = f'<form action="{UPDATE_PATH}" method="post"><input type="submit" value="update metadata"></form>'
    return f"<!DOCTYPE html><title>Ottla gateway</title><h1>Status</h1><ul>{rows}</ul>{update}\n"


def _head(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "pid": snapshot.pid,
        "version": snapshot.version,
        "since": int(snapshot.since),
        "now": int(snapshot.now),
    }


def _plain_head(snapshot: Snapshot) -> list[str]:
    return [
        f"pid: {snapshot.pid}",
        f"version: {snapshot.version}",
        f"since: {_seconds(snapshot.since)}",
        f"now: {_seconds(snapshot.now)}",
    ]


def _seconds(when: float) -> str:
    return f"{int(when)} {_shown(when)}"


def _milliseconds(when: float) -> str:
    return f"{round(when * 1000)} {_shown(when)}"


def _shown(when: float) -> str:
    return time.strftime("%a %b %e %H:%M:%S %Y", time.gmtime(when))


def _plain_info(snapshot: Snapshot) -> list[str]:
    return _plain_head(snapshot)


def _info(snapshot: Snapshot) -> dict[str, Any]:
    return {}


def _named(count: Count) -> str:
    """The name of a counter with its labels, in the one name that dory has."""
    labels = ",".join(f"{key}={value}" for key, value in count.labels)
    return f"{count.name}{{{labels}}}" if labels else count.name


def _plain_counters(snapshot: Snapshot) -> list[str]:
    return [*_plain_head(snapshot), "", *(f"gateway.{_named(count)}={count.value}" for count in snapshot.counters)]


def _counters(snapshot: Snapshot) -> dict[str, Any]:
    rows = [{"location": "gateway", "name": _named(count), "value": count.value} for count in snapshot.counters]
    return {"counters": rows}


def _plain_discards(snapshot: Snapshot) -> Iterator[str]:
    yield from _plain_head(snapshot)
    yield from (f"report interval in seconds: {snapshot.interval}", "", "current (unfinished) reporting period:")
    yield from _plain_report(snapshot.unfinished)
    if snapshot.finished is not None:
        yield from ("", "latest finished reporting period:")
        yield from _plain_report(snapshot.finished)


def _discards(snapshot: Snapshot) -> dict[str, Any]:
    page = {"interval": snapshot.interval, "unfinished_report": _report(snapshot.unfinished)}
    if snapshot.finished is not None:
        page["finished_report"] = _report(snapshot.finished)
    page["finished_reports"] = [_report(report) for report in snapshot.earlier]
    return page


def _plain_report(report: Report) -> Iterator[str]:
    yield f"    report ID: {report.id}"
    yield f"    start time: {_seconds(report.start_time)}"
    yield f"    malformed msg count: {report.malformed}"
    yield f"    UNIX stream unclean disconnect count: {report.unix_unclean}"
    yield f"    TCP unclean disconnect count: {report.tcp_unclean}"
    yield f"    unsupported API key msg count: {report.unsupported_key}"
    yield f"    unsupported version msg count: {report.unsupported_version}"
    yield f"    bad topic msg count: {report.bad_topic}"
    for what, samples in (
        ("malformed msg", report.malformed_samples),
        ("UNIX stream unclean disconnect msg", report.unix_unclean_samples),
        ("TCP unclean disconnect msg", report.tcp_unclean_samples),
    ):
        yield from _block(f"    recent {what}: {_bracketed(text)}" for text in _base64(samples))
    yield from _block(
        f"    unsupported msg version: {version} count: {count}" for version, count in sorted(report.versions.items())
    )
    yield from _block(f"    recent bad topic: {_bracketed(_text_of(topic))}" for topic in report.bad_topic_samples)
    yield from _block(f"    recent too long msg: {_bracketed(text)}" for text in _base64(report.too_long_samples))
    yield from _block(
        f"    rate limit discard topic: {_bracketed(topic)} count {count}"
        for topic, count in sorted(report.rate_limited.items())
    )
    for what, topics in (("discard", report.discarded), ("possible duplicate", report.possible_duplicates)):
        yield from _block(
            f"    {what} topic: {_bracketed(topic)} begin [{found.first_ms}] end [{found.last_ms}] count {found.count}"
            for topic, found in sorted(topics.items())
        )


def _report(report: Report) -> dict[str, Any]:
    return {
        "id": report.id,
        "start_time": report.start_time,
        "malformed_msg_count": report.malformed,
        "unix_stream_unclean_disconnect_count": report.unix_unclean,
        "tcp_unclean_disconnect_count": report.tcp_unclean,
        "unsupported_api_key_msg_count": report.unsupported_key,
        "unsupported_version_msg_count": report.unsupported_version,
        "bad_topic_msg_count": report.bad_topic,
        "recent_malformed": _base64(report.malformed_samples),
        "unix_stream_unclean_disconnect": _base64(report.unix_unclean_samples),
        "tcp_unclean_disconnect": _base64(report.tcp_unclean_samples),
        "unsupported_msg_version": [
            {"version": version, "count": count} for version, count in sorted(report.versions.items())
        ],
        "recent_bad_topic": [_text_of(topic) for topic in report.bad_topic_samples],
        "recent_too_long_msg": _base64(report.too_long_samples),
        "rate_limit_discard": [
            {"topic": topic, "count": count} for topic, count in sorted(report.rate_limited.items())
        ],
        "discard_topic": list(_intervals(report.discarded)),
        "possible_duplicate_topic": list(_intervals(report.possible_duplicates)),
    }


def _intervals(topics: dict[str, Interval]) -> Iterator[dict[str, Any]]:
    for topic, found in sorted(topics.items()):
        times = {"min_timestamp": found.first_ms, "max_timestamp": found.last_ms}
        yield {"topic": topic, **times, "count": found.count}


def _block(lines: Iterable[str]) -> Iterator[str]:
    """The lines, and an empty one before them if there are any."""
    for number, line in enumerate(lines):
        if number == 0:
            yield ""
        yield line


def _bracketed(text: str) -> str:
    return f"{len(text)}[{text}]"


def _base64(samples: list[bytes]) -> list[str]:
    return [base64.b64encode(sample).decode() for sample in samples]


def _text_of(topic: bytes) -> str:
    return topic.decode(errors="backslashreplace")


def _plain_queues(snapshot: Snapshot) -> Iterator[str]:
    yield from (*_plain_head(snapshot), "")
    for queue in snapshot.queues:
        counts = f"batch: {queue.batch:10}  send_wait: {queue.send_wait:10}  ack_wait: {queue.ack_wait:10}"
        yield f"{counts}  topic: [{queue.topic}]"
    if snapshot.queues:
        yield ""
    sums = [snapshot.new, *map(sum, zip(*(queue[1:] for queue in snapshot.queues), strict=True))]
    sums += [0] * (4 - len(sums))
    for total, name in zip(sums, ("new", "batch", "send_wait", "ack_wait"), strict=True):
        yield f"{total:10} total {name}"
    yield f"{sum(sums):10} total (all states: new + batch + send_wait + ack_wait)"


def _queues(snapshot: Snapshot) -> dict[str, Any]:
    return {"sending": [queue._asdict() for queue in snapshot.queues], "new": snapshot.new}


def _plain_metadata(snapshot: Snapshot) -> list[str]:
    return [
        *_plain_head(snapshot)[:3],
        f"now (milliseconds since epoch): {_milliseconds(snapshot.now)}",
        f"metadata last updated at (milliseconds since epoch): {_milliseconds(snapshot.metadata_updated)}",
        f"metadata last modified at (milliseconds since epoch): {_milliseconds(snapshot.metadata_modified)}",
    ]


def _metadata(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "now": round(snapshot.now * 1000),
        "last_updated": round(snapshot.metadata_updated * 1000),
        "last_modified": round(snapshot.metadata_modified * 1000),
    }


_Plain = Callable[[Snapshot], Iterable[str]]
_AsJson = Callable[[Snapshot], dict[str, Any]]
_PAGES: dict[str, tuple[_Plain, _AsJson]] = {
    "server_info": (_plain_info, _info),
    "counters": (_plain_counters, _counters),
    "discards": (_plain_discards, _discards),
    "queues": (_plain_queues, _queues),
    "metadata_fetch_time": (_plain_metadata, _metadata),
}
PAGE_NAMES = tuple(_PAGES)
