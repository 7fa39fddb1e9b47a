"""How a report of a fleet's work is shown: as tables, an SVG chart, and a self-contained HTML page. Pure."""

from __future__ import annotations

import html
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ottla.cli.output.tables import table
from ottla.cli.values.quantities import show_size

if TYPE_CHECKING:
    from ottla.spark.work_report import WorkReport

_COLORS = (
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
    """Return the report for people."""
    parts = [_summary(report)]
    for title, headings, rows in _tables(report):
        if rows:
            parts.append(f"{title}\n{table(headings, rows, width=width, indent=2)}")
    return "\n\n".join(parts)


def report_html(report: WorkReport) -> str:
    """Return a page with the chart and the tables."""
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
    """Return a bar chart of records by hour, with hosts stacked."""
    hosts = sorted({row.host for row in report.hours})
    hours = sorted({row.hour for row in report.hours})
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
    heights = {hour: sum(row.records for row in report.hours if row.hour == hour) for hour in hours}
    highest = _round_up(max(*heights.values(), 1))
    first, slots = hours[0], (hours[-1] - hours[0]) // _HOUR + 1
    step = (_WIDTH - _LEFT - _RIGHT) / slots
    floor, scale = _HEIGHT - _BOTTOM, (_HEIGHT - _BOTTOM - _TOP) / highest
    lines = [_grid(highest * part // 4, floor - highest * part / 4 * scale) for part in range(5)]
    tops = dict.fromkeys(hours, float(floor))
    for row in sorted(report.hours, key=lambda row: (row.hour, row.host)):
        size = row.records * scale
        tops[row.hour] -= size
        x = _LEFT + (row.hour - first) // _HOUR * step
        title = html.escape(f"{row.host}, {_hour(row.hour)}: {row.records:,} records in {row.units:,} units")
        lines.append(
            f'<rect x="{x + step * 0.1:.2f}" y="{tops[row.hour]:.2f}" width="{step * 0.8:.2f}" height="{size:.2f}"'
            f' fill="{_color(hosts, row.host)}"><title>{title}</title></rect>'
        )
    every = -(-slots // _MOST_LABELS)
    for slot in range(0, slots, every):
        x = _LEFT + (slot + 0.5) * step
        label = _hour(first + slot * _HOUR)
        lines.append(f'<text x="{x:.2f}" y="{floor + 18}" text-anchor="middle" font-size="10">{label}</text>')
    for number, host in enumerate(hosts):
        y = _HEIGHT + number * _LINE
        lines.append(f'<rect x="{_LEFT}" y="{y - 10}" width="12" height="12" fill="{_color(hosts, host)}"/>')
        lines.append(f'<text x="{_LEFT + 18}" y="{y}">{html.escape(host or "(unknown)")}</text>')
    return lines


def _grid(value: int, y: float) -> str:
    return (
        f'<line x1="{_LEFT}" y1="{y:.2f}" x2="{_WIDTH - _RIGHT}" y2="{y:.2f}" stroke="#ddd"/>'
        f'<text x="{_LEFT - 6}" y="{y + 4:.2f}" text-anchor="end">{value:,}</text>'
    )


def _round_up(number: int) -> int:
    """Round up to two digits, divisible by four."""
    unit = 4 * int("1".ljust(len(str(number)) - 1, "0"))
    return -(-number // unit) * unit


def _color(hosts: Sequence[str], host: str) -> str:
    return _COLORS[hosts.index(host) % len(_COLORS)]


def _hour(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%m-%d %H:00")


def _summary(report: WorkReport) -> str:
    text = (
        f"{report.units:,} unit{'s' if report.units != 1 else ''} done: {report.records:,} records"
        f" ({show_size(report.size_bytes)});"
        f" {report.retries:,} attempts after the first, {report.repeated_records:,} records read by attempts that"
        f" did not succeed, {report.waste:.1%} of all reads wasted;"
        f" {report.lines:,} lines in {report.files:,} files"
    )
    return f"{text}, {report.damaged:,} of them damaged and left out" if report.damaged else text


def _tables(report: WorkReport) -> list[tuple[str, Sequence[str], Rows]]:
    hours = [
        (
            datetime.fromtimestamp(row.hour, UTC).strftime("%Y-%m-%dT%H:00Z"),
            row.host or "(unknown)",
            f"{row.units:,}",
            f"{row.records:,}",
            show_size(row.size_bytes),
            f"{row.seconds:,.1f}",
            f"{row.wasted_records:,}",
            f"{row.not_done:,}",
        )
        for row in report.hours
    ]
    slowest = [
        (
            f"{unit.topic}/{unit.partition}/{unit.start}-{unit.stop}",
            f"{unit.seconds or 0:,.2f}",
            f"{unit.records or 0:,}",
            str(unit.attempt),
            unit.status or "-",
            unit.host or "-",
        )
        for unit in report.slowest
    ]
    failures = [(f"{row.units:,}", row.status or "-", row.reason or "-") for row in report.troubles]
    return [
        (
            "by hour and host",
            ("hour", "host", "units", "records", "bytes", "busy seconds", "wasted records", "not done"),
            hours,
        ),
        ("slowest units", ("unit", "seconds", "records", "attempt", "result", "host"), slowest),
        ("units that needed more than one attempt", ("units", "result", "reason"), failures),
    ]


def _html_table(headings: Sequence[str], rows: Rows) -> str:
    head = "".join(f"<th>{html.escape(heading)}</th>" for heading in headings)
    body = "\n".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>\n{body}</table>"
