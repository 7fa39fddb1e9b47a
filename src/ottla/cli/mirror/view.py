"""What the commands of a mirror show: progress, reports, states, plans and translated offsets, as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ottla.cli.advice import reword
from ottla.cli.output.pace import Pace, progress_line
from ottla.cli.output.styles import Style, Styled, faint, paint
from ottla.cli.output.tables import table
from ottla.cli.values.quantities import show_duration, show_size
from ottla.text import printable

if TYPE_CHECKING:
    from ottla.jobs.mirror_check import LinkCheck
    from ottla.jobs.mirror_groups import Move
    from ottla.jobs.mirror_report import MirrorReport
    from ottla.jobs.mirror_runner import LinkProgress
    from ottla.jobs.mirror_status import LinkStatus, PartitionStatus

_SETTING = re.compile(r"\bon_(foreign|lost|target_lost)='(stop|continue)'")
_RATE_SECONDS = 2.0
_OLD_SECONDS = 60.0
"""What was published longer ago says nothing about now."""
_LINE_END = "\n"


def reworded(text: str) -> str:
    """Return an error of the library with its advice in terms of options."""
    text = text.replace("or take over from it", "or take over from it with --take-over")
    return _SETTING.sub(lambda match: f"--on-{match[1].replace('_', '-')} {match[2]}", reword(text, command="mirror"))


class Speed:
    """How fast links go together: bytes, and the records that they have mirrored."""

    def __init__(self) -> None:
        self.size_bytes = Pace(window=_RATE_SECONDS)
        self.records = Pace()

    def observe(self, links: Sequence[LinkProgress], now: float) -> None:
        """Note how far the links are."""
        self.size_bytes.observe(now, sum(link.size_bytes for link in links))
        self.records.observe(now, sum(link.records for link in links))


def progress_text(links: Sequence[LinkProgress], speed: Speed, *, follow: bool) -> str:
    """Return the line that is shown while links run: with the time left to the present end, unless they follow."""
    known = [link.lag_records for link in links if link.lag_records is not None]
    batches = sum(link.batches for link in links)
    parts = [
        f"{sum(link.records for link in links):,} records mirrored",
        f"{speed.size_bytes.rate / 1e6:,.1f} MB/s",
        f"lag {sum(known):,}" if known else "lag unknown",
    ]
    if batches:
        parts.append(f"{_percent(sum(link.passed_on for link in links) / batches)} passed on")
    failed = sum(link.failed for link in links)
    if failed:
        parts.append(f"{failed} partition{'s' if failed != 1 else ''} failed")
    away = [link.link for link in links if link.state in ("opening", "waiting")]
    if away:
        parts.append(f"{'connecting' if len(links) == 1 else ', '.join(away) + ' connecting'}")
    done = speed.records.amount
    total = None if follow or not links or len(known) < len(links) else done + sum(known)
    return progress_line(*parts, pace=speed.records, total=total)


def report_text(report: MirrorReport) -> str:
    """Return what a run of a link did."""
    batches = sum(partition.batches for partition in report.partitions)
    recoded: dict[str, int] = {}
    for partition in report.partitions:
        for reason, count in partition.recoded.items():
            recoded[reason] = recoded.get(reason, 0) + count
    if not report.records:
        done = f"link {report.link}: nothing new in {_count(len(report.partitions), 'partition')}"
    else:
        done = (
            f"link {report.link}: {report.records:,} records ({show_size(report.size_bytes)}) of"
            f" {_count(len(report.partitions), 'partition')} mirrored in {report.seconds:.1f} s"
        )
    if batches and not recoded:
        done += "; all batches passed on as they were"
    elif recoded:
        reasons = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in sorted(recoded.items()))
        passed = batches - sum(recoded.values())
        done += f"; {passed:,} of {batches:,} batches passed on as they were, the others encoded again: {reasons}"
    if report.failed:
        done += f"; {_count(len(report.failed), 'partition')} failed"
    if report.refused:
        done += f"; {_count(len(report.refused), 'topic')} refused by the target"
    return done


def check_text(check: LinkCheck, *, width: int | None) -> str:
    """Return what a link would do."""
    link = check.link
    lines = [printable(f"link {link.name}: {link.source_brokers.bootstrap} -> {link.target_brokers.bootstrap}")]
    if check.topics:
        rows = []
        for plan in check.topics:
            changes = ", ".join(f"{name}={value}" for name, value in sorted(plan.settings.items()))
            there = "-" if plan.target_partitions is None else str(plan.target_partitions)
            rows.append([plan.source, plan.target, str(plan.partitions), there, plan.action or "-", changes or "-"])
        headings = ("topic", "target", "partitions", "there", "action", "settings")
        lines.append(table(headings, rows, width=width, indent=2))
    is_styled = width is not None
    lines += [printable(f"  note: {note}", keep=_LINE_END) for note in check.notes]
    for problem in check.problems:
        refused = paint("refused:", Style.BAD, on=is_styled)
        lines.append(f"  {refused} {printable(reworded(problem), keep=_LINE_END)}")
    return "\n".join(lines)


def status_text(status: LinkStatus, *, now: float, width: int | None) -> str:
    """Return the state of a link as a table, with errors in full below it: a column would cut them."""
    is_styled = width is not None
    headline = _headline(status, now)
    name, _, rest = printable(headline).partition(": ")
    style = _STATES.get(status.state) if status.process is not None else Style.WARNING
    remarks = [
        paint(printable(remark, keep="\n"), Style.BAD if "error: " in remark else Style.WARNING, on=is_styled)
        for remark in _remarks(status, now)
    ]
    return "\n".join([f"{name}: {paint(rest, style, on=is_styled)}", *_rows(status, width), *remarks])


_STATES = {"running": Style.GOOD, "stale": Style.BAD}


def _headline(status: LinkStatus, now: float) -> str:
    process = status.process
    if process is None:
        return f"link {status.link}: no process has published its state"
    age = show_duration(round(max(0.0, now - process.at)))
    where = f"process {process.pid} on {process.host}"
    match status.state:
        case "running":
            text = f"running for {show_duration(round(max(0.0, now - process.since)))}, {where}"
        case "stale":
            text = f"silent for {age}: {where} was probably killed"
        case _:
            text = f"ended {age} ago, {where}"
    return f"link {status.link}: {text}; from {process.source}"


def _rows(status: LinkStatus, width: int | None) -> list[str]:
    if not status.partitions:
        return ["  nothing is mirrored yet"]
    headings = ("source", "target", "position", "end", "lag", "bytes", "seconds", "rate", "passed")
    rows = [_row(each) for each in status.partitions]
    return [table(headings, rows, width=width, indent=2)]


def _row(status: PartitionStatus) -> list[str]:
    lag = status.lag
    cells = [
        str(status.source),
        str(status.target),
        f"{status.position:,}",
        _number(status.source_end),
        _number(lag.records),
        "-" if lag.size_bytes is None else show_size(lag.size_bytes),
        "-" if lag.seconds is None else f"{lag.seconds:,.1f}",
        "-" if status.bytes_per_second is None else f"{show_size(round(status.bytes_per_second))}/s",
        "-" if status.share is None else _percent(status.share),
    ]
    if status.error is not None:
        return [Styled(cells[0], Style.BAD), *cells[1:]]
    return faint(cells) if lag.records == 0 else cells


def _remarks(status: LinkStatus, now: float) -> list[str]:
    remarks = []
    if status.lag_at is not None and now - status.lag_at > _OLD_SECONDS and status.partitions:
        age = show_duration(round(now - status.lag_at))
        remarks.append(f"END and lag are those of {age} ago; with --from they are those of now")
    for each in status.partitions:
        if each.error is not None:
            place = "" if each.error.startswith(str(each.source)) else f"{each.source}: "
            remarks.append(f"error: {place}{reworded(each.error)}")
    refused = () if status.process is None else status.process.refused
    remarks += [f"error: {reworded(text)}" for text in refused]
    return ["  " + "\n  ".join(remark.splitlines()) for remark in remarks]


_OUTCOMES = {
    "BEFORE_MIRROR": "the offset lies before the first mirrored record",
    "AHEAD": "the group has committed a higher offset there, which stays",
    "IN_USE": "the group has members there; it waits until they have gone",
    "NO_TOPIC": "the topic is missing there",
}
"""What the short words for outcomes leave out."""


def moves_text(moves: Sequence[Move], *, width: int | None, reverse: bool) -> str:
    """Return translated offsets of groups as a table, with the outcomes that need it explained below."""
    rows = [
        [
            move.group,
            str(move.source),
            _number(move.source_offset),
            str(move.target),
            _number(move.target_offset),
            _number(move.before),
            move.outcome.value,
        ]
        for move in moves
    ]
    before = "source had" if reverse else "target had"
    headings = ("group", "source", "offset", "target", "offset", before, "outcome")
    outcomes = dict.fromkeys(move.outcome for move in moves if move.outcome.name in _OUTCOMES)
    notes = [f"{outcome.value}: {_OUTCOMES[outcome.name]}" for outcome in outcomes]
    return "\n".join([table(headings, rows, width=width, whole={"outcome"}), *notes])


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share in (0.0, 1.0) else f"{100 * share:.1f} %"


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' if count != 1 else ''}"
