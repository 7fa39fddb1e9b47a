"""How a report of a fleet's work looks: tables for people, a chart as SVG, and a page of HTML around both.

A `WorkReport` comes in, text goes out. The chart and the page need nothing from elsewhere. It asks nobody.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ottla.cli.values.units import show_size
from ottla.cli.views.tables import table

if TYPE_CHECKING:
    from ottla.spark.work_report import WorkReport

_COLOURS = (
    "#3b6ea5",
    "#e08a3c",
    "#5a9e6f",
    "#b5495b",
    "#7d6bb0",
    "#8c7355",
    "#c77fa8",
    "#6d7b8a",
    "#a9a43f",
    "#3fa3a9",
)
_WIDTH, _HEIGHT = 960, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 16, 40, 40
_LINE = 18
_MOST_LABELS = 12
_HOUR = 3600

Rows = Sequence[Sequence[str]]


def report_text(report: WorkReport, *, width: int | None) -> str:
    """The report for people."""
    parts = [_summary(report)]
    for title, headings, rows in _tables(report):
        if rows:
            parts.append(f"{title}\n{table(headings, rows, width=width, indent=2)}")
    return "\n\n".join(parts)


def report_html(report: WorkReport) -> str:
    """A page with the chart and the tables."""
    tables = "".join(
        f"<h2>{html.escape(title)}</h2>\n{_html_table(headings, rows)}\n"
        for title, headings, rows in _tables(report)
        if rows
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Work of a fleet</title><style>\n'
        "body{font:14px sans-serif;max-width:1000px;margin:2em auto;color:#222}table{border-collapse:collapse}\n"
        "td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #ddd}\n"
        f"</style></head><body>\n<h1>Work of a fleet</h1>\n<p>{html.escape(_summary(report))}</p>\n"
        f"{report_svg(report)}\n{tables}</body></html>\n"
    )


def report_svg(report: WorkReport) -> str:
    """Bars of records for each hour, of all hosts on top of one another."""
    hosts = sorted({one.host for one in report.hours})
    hours = sorted({one.hour for one in report.hours})
    height = _HEIGHT + _LINE * len(hosts)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="15">Records done, for each hour (UTC) and host</text>',
    ]
    if not hours:
        lines.append(f'<text x="{_LEFT}" y="60">no unit has ended</text>')
    else:
        lines += _chart(report, hosts, hours)
    return "\n".join([*lines, "</svg>"])


def _chart(report: WorkReport, hosts: Sequence[str], hours: Sequence[int]) -> list[str]:
    heights = {hour: sum(one.records for one in report.hours if one.hour == hour) for hour in hours}
    highest = _round_up(max(*heights.values(), 1))
    first, slots = hours[0], (hours[-1] - hours[0]) // _HOUR + 1
    step = (_WIDTH - _LEFT - _RIGHT) / slots
    floor, scale = _HEIGHT - _BOTTOM, (_HEIGHT - _BOTTOM - _TOP) / highest
    lines = [_grid(highest * part // 4, floor - highest * part / 4 * scale) for part in range(5)]
    tops = dict.fromkeys(hours, float(floor))
    for one in sorted(report.hours, key=lambda one: (one.hour, one.host)):
        size = one.records * scale
        tops[one.hour] -= size
        x = _LEFT + (one.hour - first) // _HOUR * step
        told = html.escape(f"{one.host}, {_hour(one.hour)}: {one.records:,} records in {one.units:,} units")
        lines.append(
            f'<rect x="{x + step * 0.1:.2f}" y="{tops[one.hour]:.2f}" width="{step * 0.8:.2f}" height="{size:.2f}"'
            f' fill="{_colour(hosts, one.host)}"><title>{told}</title></rect>'
        )
    every = -(-slots // _MOST_LABELS)
    for slot in range(0, slots, every):
        x = _LEFT + (slot + 0.5) * step
        label = _hour(first + slot * _HOUR)
        lines.append(f'<text x="{x:.2f}" y="{floor + 18}" text-anchor="middle" font-size="10">{label}</text>')
    for number, host in enumerate(hosts):
        y = _HEIGHT + number * _LINE
        lines.append(f'<rect x="{_LEFT}" y="{y - 10}" width="12" height="12" fill="{_colour(hosts, host)}"/>')
        lines.append(f'<text x="{_LEFT + 18}" y="{y}">{html.escape(host or "(unknown)")}</text>')
    return lines


def _grid(value: int, y: float) -> str:
    return (
        f'<line x1="{_LEFT}" y1="{y:.2f}" x2="{_WIDTH - _RIGHT}" y2="{y:.2f}" stroke="#ddd"/>'
        f'<text x="{_LEFT - 6}" y="{y + 4:.2f}" text-anchor="end">{value:,}</text>'
    )


def _round_up(number: int) -> int:
    """To two digits, and by four."""
    unit = 4 * int("1".ljust(len(str(number)) - 1, "0"))
    return -(-number // unit) * unit


def _colour(hosts: Sequence[str], host: str) -> str:
    return _COLOURS[hosts.index(host) % len(_COLOURS)]


def _hour(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%m-%d %H:00")


def _summary(report: WorkReport) -> str:
    text = (
        f"{report.units:,} unit{'s' if report.units != 1 else ''} done: {report.records:,} records"
        f" ({show_size(report.size_bytes)});"
        f" {report.retries:,} attempts after the first, {report.repeated_records:,} records read by attempts that"
        f" did not succeed, {report.waste:.1%} of what was read thrown away;"
        f" {report.lines:,} lines in {report.files:,} files"
    )
    return f"{text}, {report.damaged:,} of them damaged and left out" if report.damaged else text


def _tables(report: WorkReport) -> list[tuple[str, Sequence[str], Rows]]:
    hours = [
        (
            datetime.fromtimestamp(one.hour, UTC).strftime("%Y-%m-%d %H:00Z"),
            one.host or "(unknown)",
            f"{one.units:,}",
            f"{one.records:,}",
            show_size(one.size_bytes),
            f"{one.seconds:,.1f}",
            f"{one.wasted_records:,}",
            f"{one.not_done:,}",
        )
        for one in report.hours
    ]
    slowest = [
        (
            f"{one.topic}/{one.partition}/{one.start}-{one.stop}",
            f"{one.seconds or 0:,.2f}",
            f"{one.records or 0:,}",
            str(one.attempt),
            one.status or "-",
            one.host or "-",
        )
        for one in report.slowest
    ]
    troubles = [(f"{one.units:,}", one.status or "-", one.reason or "-") for one in report.troubles]
    return [
        (
            "by hour and host",
            ("hour", "host", "units", "records", "bytes", "busy seconds", "wasted records", "not done"),
            hours,
        ),
        ("slowest units", ("unit", "seconds", "records", "attempt", "became", "host"), slowest),
        ("units that were not done at once", ("units", "became", "reason"), troubles),
    ]


def _html_table(headings: Sequence[str], rows: Rows) -> str:
    head = "".join(f"<th>{html.escape(one)}</th>" for one in headings)
    body = "\n".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>\n{body}</table>"
