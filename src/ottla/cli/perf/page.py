"""The report of a performance test as one self-contained page: figures, plots, settings and machine.

A report comes in, HTML goes out. Text from outside is escaped, and the page loads nothing from anywhere. Pure but for
`write_page`.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ottla.cli.output.plots import STYLE, Axis, Bar, Curve, bar_plot, line_plot
from ottla.cli.perf.view import figures, headline, show_seconds
from ottla.cli.values.rates import show_byte_rate, show_number
from ottla.files import replace_whole
from ottla.operations.perf.meter import SHARES, Measured, Second
from ottla.operations.perf.report import Report
from ottla.text import printable

_PAGE_STYLE = """
:root{color-scheme:light dark;--ink:#1d2530;--soft:#5b6675;--line:#d8dde4;--paper:#fff}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ee;--soft:#9aa5b4;--line:#323a45;--paper:#161b22}}
body{font:14px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:2em auto;max-width:920px;
padding:0 1em}
h1{font-size:1.5em;margin:0 0 .2em}h2{font-size:1.1em;margin:1.6em 0 .4em}p{color:var(--soft);margin:.2em 0 1em}
table{border-collapse:collapse;width:100%}
td,th{padding:.25em .8em .25em 0;text-align:left;border-bottom:1px solid var(--line);vertical-align:top}
.n{text-align:right;font-variant-numeric:tabular-nums}th.n{white-space:nowrap}
"""
_SECONDS = Axis(label="seconds", show=lambda value: f"{value:g}")


def write_page(path: Path, report: Report) -> None:
    """Write the page, whole or not at all. Raises OSError if that fails."""
    replace_whole(path, page(report).encode())


def page(report: Report) -> str:
    """Return the page."""
    columns, rows = figures(report)
    notes = "".join(f"<p>{_text(note)}</p>" for note in (*report.notes, *_notes(report)))
    title = _text(f"ottla perf {report.kind}")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{_PAGE_STYLE}{STYLE}</style></head><body>\n<h1>{_text(headline(report))}</h1>\n"
        f"<p>{_text(report.date)}. Latency: {_text(report.latency)}.</p>\n{notes}"
        f"{_table(columns, rows)}\n{_plots(report)}\n"
        f"<h2>Settings</h2>{_pairs(report.settings)}\n<h2>Machine</h2>{_pairs(report.machine)}\n"
        f"<h2>Versions</h2>{_pairs(report.versions)}</body></html>\n"
    )


def _notes(report: Report) -> list[str]:
    return [f"{run.client}: {note}" for run in report.runs for note in run.notes]


def _plots(report: Report) -> str:
    runs = report.runs
    bytes_axis = Axis(label="per second", show=show_byte_rate)
    latency_axis = Axis(label="latency", show=show_seconds, is_logarithmic=True)
    plots = [
        line_plot("Throughput", [_over_time(run, _rate) for run in runs], x=_SECONDS, y=bytes_axis),
        line_plot(
            f"Latency of {runs[0].client} over time",
            [
                Curve("p50", _points(runs[0], lambda second: second.p50)),
                Curve("p99", _points(runs[0], lambda second: second.p99)),
                Curve("max", _points(runs[0], lambda second: second.maximum)),
            ],
            x=_SECONDS,
            y=latency_axis,
        ),
        _percentile_plot(report, latency_axis),
    ]
    if len(runs) > 1:
        rates = [Bar(run.client, run.records_per_second) for run in runs]
        costs = [Bar(run.client, cost) for run in runs if (cost := run.cpu_per_record) is not None]
        plots.append(bar_plot("Records per second", rates, show=show_number))
        plots.append(bar_plot("Processor time for a record", costs, show=show_seconds))
    return "\n".join(plot for plot in plots if plot)


def _rate(second: Second) -> float:
    return second.size_bytes / second.seconds


def _over_time(run: Measured, value: Callable[[Second], float | None]) -> Curve:
    return Curve(run.client, _points(run, value))


def _points(run: Measured, value: Callable[[Second], float | None]) -> list[tuple[float, float | None]]:
    """Return a point for each second. The last one is left out if it is too short for a rate."""
    whole = [second for second in run.series if second.seconds >= 0.2 or len(run.series) == 1]
    return [(second.at + second.seconds, value(second)) for second in whole]


def _percentile_plot(report: Report, y: Axis) -> str:
    """Latency by percentile; the axis is stretched towards 100 %, where it matters."""
    named = {"p0": 0.0, **SHARES}
    ticks = [(_stretched(share), f"{share * 100:g} %") for share in named.values() if share]
    curves = []
    for run in report.runs:
        points = [(_stretched(share), run.latencies[name]) for name, share in SHARES.items() if name in run.latencies]
        curves.append(Curve(run.client, points))
        acks = {name: run.latencies.get(f"acknowledged {name}") for name in SHARES}
        if any(acks.values()):
            curves.append(Curve("acknowledged", [(_stretched(SHARES[name]), value) for name, value in acks.items()]))
    return line_plot("Latency by percentile", curves, x=Axis(label="", show=str, ticks=ticks), y=y)


def _stretched(share: float) -> float:
    return -math.log10(1 - share)


def _text(text: str) -> str:
    return html.escape(printable(text))


def _table(columns: list[str], rows: list[list[str]]) -> str:
    lines = [_cells("th", columns), *(_cells("td", row) for row in rows)]
    return f"<table>{''.join(lines)}</table>"


def _cells(kind: str, texts: list[str]) -> str:
    first, *others = texts
    cells = f"<{kind}>{_text(first)}</{kind}>" + "".join(f'<{kind} class="n">{_text(text)}</{kind}>' for text in others)
    return f"<tr>{cells}</tr>"


def _pairs(values: Mapping[str, Any]) -> str:
    rows = []
    for name, value in values.items():
        if value is not None:
            shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            rows.append(f"<tr><td>{_text(name.replace('_', ' '))}</td><td>{_text(shown)}</td></tr>")
    return f"<table>{''.join(rows)}</table>"
