"""How health is shown: a verdict and a line for each cause, a table of a probe. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.cli.output.styles import Style, paint, state
from ottla.cli.output.tables import table
from ottla.cli.output.wrapping import wrapped
from ottla.cli.values.quantities import show_duration
from ottla.operations.health.findings import Finding, Severity, State, Verdict, counted, shown_time
from ottla.operations.health.probe_tally import BrokerReport, LatencyReport
from ottla.text import printable

_WORDS = {Severity.NOTE: "note", Severity.WARNING: "warning", Severity.CRITICAL: "critical"}
_STYLES = {Severity.NOTE: Style.FAINT, Severity.WARNING: Style.WARNING, Severity.CRITICAL: Style.BAD}
_STATES = {State.HEALTHY: Style.GOOD, State.DEGRADED: Style.WARNING, State.UNHEALTHY: Style.BAD}
_LINE_END = "\n"


def verdict_text(verdict: Verdict, *, show_notes: bool = True, width: int | None = None) -> str:
    """Return the verdict, then each finding with its command below. Without a width, it is not for a terminal."""
    is_styled = width is not None
    lines = [paint(printable(headline(verdict)), _STATES.get(verdict.state), on=is_styled)]
    shown = [each for each in verdict.findings if show_notes or each.severity is not Severity.NOTE]
    for finding in shown:
        word = f"{_WORDS[finding.severity]}:"
        reason = printable(f"{finding.reason}{_since(finding, verdict.taken_at)}", keep=_LINE_END)
        reason = wrapped(reason, width, indent=4, before=len(word) + 3)
        lines.append(f"  {paint(word, _STYLES[finding.severity], on=is_styled)} {reason}")
        if finding.command:
            lines.append("    " + paint(printable(finding.command, keep=_LINE_END), Style.STRONG, on=is_styled))
    unseen = [printable(f"not looked at: {reason}", keep=_LINE_END) for reason in verdict.unseen]
    lines += ["  " + wrapped(each, width, indent=4, before=2) for each in unseen]
    return "\n".join(lines)


def headline(verdict: Verdict) -> str:
    """Return the verdict in a line."""
    size = f"{counted(verdict.brokers, 'broker')}, {counted(verdict.partitions, 'partition')}"
    cluster = f"cluster {verdict.cluster_id}" if verdict.cluster_id else "the cluster"
    counts = [(verdict.count(severity), _WORDS[severity]) for severity in reversed(Severity)]
    found = ", ".join(
        f"{number:,} critical" if word == "critical" else counted(number, word) for number, word in counts if number
    )
    partly = "" if verdict.is_complete else ", not everything could be looked at"
    if not verdict.cluster_id and verdict.state is State.UNHEALTHY:
        return f"{cluster} is unhealthy{': ' + found if found else ''}"
    return f"{cluster} is {verdict.state.name.lower()} ({size}){': ' + found if found else ''}{partly}"


def _since(finding: Finding, now: float) -> str:
    if finding.since is None:
        return ""
    ago = round(now - finding.since)
    return f", since {shown_time(finding.since)}" + (f" ({show_duration(ago)})" if ago >= 1 else "")


def probe_text(reports: Sequence[BrokerReport], *, width: int | None) -> str:
    """Return a table with a line for each broker."""
    rows = [
        (
            str(each.broker),
            state("ok" if each.is_up else "fails", bad=("fails",)),
            "-" if each.availability is None else f"{each.availability:.2%}",
            f"{each.sent:,}",
            f"{each.lost:,}",
            f"{each.duplicates:,}",
            *_milliseconds(each.produce),
            *_milliseconds(each.round_trip),
            each.error or "",
        )
        for each in reports
    ]
    headings = (
        *("broker", "state", "available", "sent", "lost", "twice"),
        *("ack p50 ms", "p99", "max", "read p50 ms", "p99", "max", "error"),
    )
    return table(headings, rows, width=width)


def _milliseconds(latencies: LatencyReport | None) -> tuple[str, str, str]:
    if latencies is None:
        return "-", "-", "-"
    p50, p99, most = (f"{1000 * seconds:.1f}" for seconds in (latencies.p50, latencies.p99, latencies.most))
    return p50, p99, most


def probe_line(reports: Sequence[BrokerReport]) -> str:
    """Return the present state of a probe in a line."""
    down = [str(each.broker) for each in reports if not each.is_up]
    sent, lost = sum(each.sent for each in reports), sum(each.lost for each in reports)
    state = (
        f"broker{'s' if len(down) > 1 else ''} {', '.join(down)} fail{'' if len(down) > 1 else 's'}" if down else "ok"
    )
    return f"{counted(len(reports), 'broker')}: {state}; {sent:,} sent, {lost:,} lost"
