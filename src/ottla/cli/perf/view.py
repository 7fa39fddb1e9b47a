"""How the figures of a performance test look: a table, a headline, and the live line. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cli.output.bars import bar
from ottla.cli.output.tables import table
from ottla.cli.output.wrapping import wrapped
from ottla.cli.values.quantities import show_size
from ottla.cli.values.rates import show_byte_rate, show_number

if TYPE_CHECKING:
    from ottla.operations.perf.meter import Measured
    from ottla.operations.perf.report import Report
    from ottla.operations.perf.running import Progress

_LATENCIES = ("p50", "p90", "p99", "p99.9", "max")
_RATIOS = {"rate": "the rate", "cpu_per_record": "the processor time", "p50": "the p50", "p99": "the p99"}


def show_seconds(seconds: float) -> str:
    """Return `12.3ms`, `850us` or `1.5s`: rounded to three digits."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= factor:
            return f"{seconds / factor:.3g}{unit}" if abs(seconds) < 1000 else f"{seconds:.0f}s"
    return f"{seconds * 1e9:.3g}ns"


def headline(report: Report) -> str:
    """Return the result in a sentence."""
    run = report.ours
    work = f"{run.records:,} records of {show_size(int(report.settings['record_bytes']))}"
    if report.kind == "mirror":
        work = f"{run.records:,} records"
    rate = f"{show_number(run.records_per_second)}/s, {show_byte_rate(run.bytes_per_second)}"
    return f"{report.kind}: {work} in {show_seconds(run.seconds)}, {rate}"


def figures(report: Report) -> tuple[list[str], list[list[str]]]:
    """Return headings and a row for each client."""
    shown = [name for name in _LATENCIES if any(name in run.latencies for run in report.runs)]
    columns = ["client", "records/s", "bytes/s", "CPU/record", *shown, "failed"]
    rows = [_row(run, run.client, shown) for run in report.runs]
    for run in report.runs:
        acks = {name: run.latencies.get(f"acknowledged {name}") for name in shown}
        if any(acks.values()):
            cells = ["-" if value is None else show_seconds(value) for value in acks.values()]
            rows.append([f"{run.client}, acknowledged", "-", "-", "-", *cells, "-"])
    return columns, rows


def _row(run: Measured, name: str, latencies: list[str]) -> list[str]:
    cpu = run.cpu_per_record
    return [
        name,
        f"{run.records_per_second:,.0f}",
        show_byte_rate(run.bytes_per_second),
        "-" if cpu is None else show_seconds(cpu),
        *(show_seconds(run.latencies[name]) if name in run.latencies else "-" for name in latencies),
        f"{run.failed:,}",
    ]


def report_text(report: Report, *, width: int | None) -> str:
    """Return the report for people."""
    columns, rows = figures(report)
    lines = [headline(report), table(columns, rows, width=width)]
    for client, ratios in report.ratios().items():
        compared = ", ".join(f"{value:.2f} times {_RATIOS[name]}" for name, value in ratios.items())
        lines.append(wrapped(f"ottla has {compared} of {client}", width, indent=2))
    if any(run.latencies for run in report.runs):
        lines.append(f"latency: {report.latency}")
    lines += [f"{run.client}: {note}" for run in report.runs for note in run.notes]
    if any(run.is_interrupted for run in report.runs):
        lines.append("interrupted: this is what was measured until then")
    return "\n".join([*lines, *report.notes])


def progress_text(client: str, progress: Progress, now: float) -> str:
    """Return the live line."""
    meter = progress.meter
    if meter is None:
        return f"{client}: {progress.phase}"
    seconds = max(now - meter.began, 1e-9)
    rate = f"{show_number(meter.records / seconds)}/s, {show_byte_rate(meter.size_bytes / seconds)}"
    return f"{client}: {progress.phase} {bar(progress.share(now))} {meter.records:,} records, {rate}"
