"""The comparison as one self-contained page: a heat map of topics and time, and what is not complete as a table.

Rows come in, HTML goes out. Text from outside is escaped, and the page loads nothing from anywhere. Pure but for
`write_page`.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.audit.compare import Row, Verdict
from ottla.cli.audit.report import counted, gaps
from ottla.cli.errors import CommandFailed
from ottla.cli.values.times import show_timestamp
from ottla.files import replace_whole
from ottla.text import printable

if TYPE_CHECKING:
    from ottla.jobs.comparisons import Comparison

_MOST_COLUMNS = 1_500
_MOST_ROWS = 5_000
"""Of the table below the map."""
_SIGNS = {
    Verdict.COMPLETE: "",
    Verdict.LATE: "…",
    Verdict.UNKNOWN: "?",
    Verdict.ALTERED: "≠",
    Verdict.DUPLICATED: "+",
    Verdict.MISSING: "\u2212",
}
_STYLE = """
:root{color-scheme:light dark;--ink:#1d2530;--soft:#5b6675;--line:#d8dde4;--paper:#fff;--none:#eef0f3;
--complete:#7fb98a;--late:#f0d584;--unknown:#aab2bd;--altered:#c58ad6;--duplicated:#f0a35e;--missing:#d9564f}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ee;--soft:#9aa5b4;--line:#323a45;--paper:#161b22;--none:#20262f;
--complete:#3f7a4d;--late:#8f7a2c;--unknown:#5b6472;--altered:#8b4fa0;--duplicated:#b06a22;--missing:#c23b34}}
body{font:14px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:2em auto;max-width:1200px;
padding:0 1em}
h1{font-size:1.5em;margin:0 0 .2em}p{color:var(--soft);margin:.2em 0 1em}
.map{overflow-x:auto;padding-bottom:.5em}table{border-collapse:separate;border-spacing:1px}
.map th{font-weight:400;text-align:right;padding-right:.8em;white-space:nowrap;position:sticky;left:0;
background:var(--paper)}
.map td{width:13px;min-width:13px;height:20px;border-radius:2px;text-align:center;font-size:11px;line-height:20px;
color:#000a;background:var(--none)}
.map tr.axis td{background:none;color:var(--soft);font-size:11px;white-space:nowrap;overflow:visible;max-width:0;
text-align:left;height:16px}
.complete{background:var(--complete)!important}.late{background:var(--late)!important}
.unknown{background:var(--unknown)!important}.altered{background:var(--altered)!important}
.duplicated{background:var(--duplicated)!important}.missing{background:var(--missing)!important}
.key{display:inline-block;margin:0 1.2em .4em 0}
.key i{display:inline-block;width:14px;height:14px;border-radius:2px;vertical-align:-2px;margin-right:.4em}
.list{border-collapse:collapse;margin-top:.5em;width:100%}
.list td,.list th{padding:.25em .8em .25em 0;text-align:left;border-bottom:1px solid var(--line);vertical-align:top}
.list .n{text-align:right;font-variant-numeric:tabular-nums}h2{font-size:1.1em;margin:1.6em 0 .2em}
"""


def write_page(path: Path, comparison: Comparison) -> None:
    """Write the page, whole or not at all. Raises `CommandFailed` if that fails."""
    try:
        replace_whole(path, page(comparison).encode())
    except OSError as error:
        raise CommandFailed(f"--html {path} cannot be written: {error.strerror}") from error


def page(comparison: Comparison) -> str:
    """Return the page."""
    rows = comparison.rows
    counts = comparison.verdicts
    compared = datetime.fromtimestamp(comparison.compared_at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    keys = "".join(
        f'<span class="key"><i class="{verdict}"></i>{verdict} {counts[verdict]:,}</span>' for verdict in Verdict
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Audit</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{_STYLE}</style></head><body>\n<h1>{_headline(comparison)}</h1>\n"
        f"<p>{counted(len(rows), 'bucket')} of {counted(len({row.topic for row in rows}), 'topic')}, tiers"
        f" {_text(' → '.join(comparison.tiers))}, compared {compared}</p>\n{_remarks(comparison)}<div>{keys}</div>\n"
        f"{_heat_map(rows)}\n{_table(comparison)}</body></html>\n"
    )


def _headline(comparison: Comparison) -> str:
    """Say no more than the exit code does: 0 is for what is complete or late, or was not counted at all."""
    if comparison.has_faults:
        return "Not all of it arrived"
    if gaps(comparison):
        return "Not everything is known"
    if not comparison.rows:
        return "Nothing was counted"
    late = comparison.verdicts[Verdict.LATE]
    return "Some of it is late" if late else "All of it arrived"


def _remarks(comparison: Comparison) -> str:
    """Return what the verdicts of the buckets do not say."""
    texts = [*gaps(comparison), *comparison.problems, *comparison.silent]
    if not comparison.rows:
        texts.append("no tier has counted a record in that time")
    if comparison.unreadable:
        texts.append(f"{comparison.unreadable:,} records of the audit topic are no tallies")
    items = "".join(f"<li>{_text(text)}</li>" for text in texts)
    return f'<ul class="remarks">{items}</ul>\n' if items else ""


def _text(text: str) -> str:
    return html.escape(printable(text))


def _when(seconds: int) -> str:
    return (show_timestamp(seconds * 1000) or "").replace(".000Z", "Z")


def _heat_map(rows: Iterable[Row]) -> str:
    """A line for each topic, a cell for each bucket."""
    by_topic: dict[str, dict[int, Row]] = {}
    for row in rows:
        by_topic.setdefault(row.topic, {})[row.start] = row
    starts = sorted({start for found in by_topic.values() for start in found})
    left_out = max(0, len(starts) - _MOST_COLUMNS)
    starts = starts[left_out:]
    lines = ['<div class="map"><table>', _axis(starts)]
    for topic, found in sorted(by_topic.items()):
        cells = "".join(_cell(found.get(start)) for start in starts)
        lines.append(f"<tr><th>{_text(topic)}</th>{cells}</tr>")
    lines.append("</table></div>")
    if left_out:
        lines.append(f"<p>The oldest {left_out:,} buckets are not shown.</p>")
    return "\n".join(lines)


def _axis(starts: list[int]) -> str:
    """The date, and the time of some buckets."""
    cells = []
    day = ""
    for number, start in enumerate(starts):
        when = _when(start)
        text = ""
        if when[:10] != day:
            day = text = when[:10]
        elif number % 12 == 0:
            text = when[11:16]
        cells.append(f"<td>{html.escape(text)}</td>")
    return f'<tr class="axis"><th></th>{"".join(cells)}</tr>'


def _cell(row: Row | None) -> str:
    if row is None:
        return "<td></td>"
    counts = ", ".join(
        f"{judged.tier} {'?' if judged.records is None else format(judged.records, ',')}" for judged in row.tiers
    )
    title = f"{_when(row.start)}: {row.worst}; {counts}"
    return f'<td class="{row.verdict}" title="{_text(title)}">{_SIGNS[row.verdict]}</td>'


def _table(comparison: Comparison) -> str:
    rows = [row for row in comparison.rows if row.verdict is not Verdict.COMPLETE]
    if not rows:
        return ""
    head = "".join(f'<th class="n">{_text(tier)}</th>' for tier in comparison.tiers)
    lines = [
        "<h2>What is not complete</h2>",
        f'<table class="list"><tr><th>topic</th><th>bucket</th>{head}<th>verdict</th><th></th></tr>',
    ]
    for row in rows[:_MOST_ROWS]:
        counts = "".join(
            f'<td class="n">{"?" if judged.records is None else format(judged.records, ",")}</td>'
            for judged in row.tiers
        )
        worst = row.worst
        detail = worst.detail if worst.against == "" else f"{worst.against} → {worst.tier}: {worst.detail or worst}"
        lines.append(
            f"<tr><td>{_text(row.topic)}</td><td>{_when(row.start)}</td>{counts}<td>{worst}</td>"
            f"<td>{_text(detail)}</td></tr>"
        )
    lines.append("</table>")
    if len(rows) > _MOST_ROWS:
        lines.append(f"<p>{len(rows) - _MOST_ROWS:,} more are not shown.</p>")
    return "\n".join(lines)
