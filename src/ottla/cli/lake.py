"""`ottla lake`: what an archive has, and whether it is all there.

It asks `ottla.lake` and prints; nothing of an archive is changed, but by `repair --set-aside`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ottla.cli import Failure
from ottla.cli.options.connecting import meet
from ottla.cli.options.general import json_option
from ottla.cli.options.reading import isolation_option, max_batch_bytes_option
from ottla.cli.options.security import security_options
from ottla.cli.terminal.progress import LiveLine
from ottla.cli.values.units import show_size
from ottla.cli.views.tables import table, terminal_width

if TYPE_CHECKING:
    from ottla.config import Security
    from ottla.lake import repair as lake_repair
    from ottla.lake.lake import Lake
    from ottla.lake.status import PartitionStatus
    from ottla.lake.verifying import Checked, Finding


@click.group()
def lake() -> None:
    """Archives that 'ottla archive' has made: what they have, and whether it is all there.

    \b
    Examples:
      ottla lake status /data/clicks
      ottla lake verify /data/clicks --deep
      ottla lake verify /data/clicks --against localhost:9092
      ottla lake repair /data/clicks
    """


@lake.command()
@click.argument("path")
@json_option
def status(path: str, *, as_json: bool) -> None:
    """Per topic and partition: ranges, records, bytes, files, times, gaps and overlaps."""
    from ottla.lake.lake import Lake
    from ottla.lake.status import summarize

    found = Lake.open(path)
    entries = list(found.ledger.entries())
    partitions = summarize(entries)
    untimed = sum(entry.untimed for entry in entries)
    if as_json:
        head = {"path": str(found.path), **found.settings.to_json(), "entries": len(entries), "without_time": untimed}
        click.echo(json.dumps({**head, "partitions": [_row(one) for one in partitions]}))
        return
    settings = found.settings
    click.echo(
        f"{found.path}: {settings.format.value}, divided by {', '.join(settings.partition_by) or 'nothing'}"
        f" (time: {settings.event_time}), {_counted(len(entries), 'entry', 'entries')}"
    )
    click.echo(table(_HEADINGS, [_cells(one) for one in partitions], width=terminal_width()))
    for one in partitions:
        for gap in one.gaps:
            click.echo(f"gap: {gap.range}: {gap.reason}")
        for overlap in one.overlaps:
            click.echo(f"overlap: {overlap} is there twice")
    if untimed:
        click.echo(f"{untimed:,} records have no readable event time")


@lake.command()
@click.argument("path")
@click.option("--against", "bootstrap", metavar="HOST:PORT,...", help="Brokers: read every range again and compare.")
@click.option("--deep", is_flag=True, help="Read every record of the files, not only their footers.")
@isolation_option
@max_batch_bytes_option
@security_options
@click.option("--timeout", type=click.FloatRange(min=0.1), default=60.0, help="Seconds that brokers may be away.")
@json_option
@click.pass_context
def verify(
    context: click.Context,
    /,
    path: str,
    *,
    bootstrap: str | None,
    deep: bool,
    isolation: str,
    max_batch_bytes: int,
    security: Security,
    timeout: float,
    as_json: bool,
) -> None:
    """Hold the ledger's receipts against the files, and against the brokers if asked.

    Sizes and footers of the files are compared; --deep reads all bytes and all records, and compares hashes and
    fingerprints. Ends with 0 if everything is as the ledger says, 1 and a line for each thing that is not.
    """
    from ottla.config import Timeouts
    from ottla.fetch.options import Fetching
    from ottla.lake.lake import Lake
    from ottla.lake.verifying import Checked

    found = Lake.open(path)
    files, logs = Checked(), Checked()
    findings: list[Finding] = []
    reading = {
        "security": security,
        "timeouts": Timeouts(total=timeout),
        "isolation": isolation,
        "fetching": Fetching(max_batch_bytes=max_batch_bytes),
    }
    if bootstrap is not None:
        meet(bootstrap, security, timeout=timeout)
    with LiveLine(lambda: f"{files.files:,} files, {files.records + logs.records:,} records compared") as live:
        for finding in _findings(found, files, logs, bootstrap=bootstrap, deep=deep, **reading):
            findings.append(finding)
            if not as_json:
                live.say(("" if finding.is_wrong else "not compared: ") + str(finding))
    wrong = sum(finding.is_wrong for finding in findings)
    if as_json:
        click.echo(json.dumps(_verified(found, files, logs, findings)))
    elif not wrong:
        click.echo(_summary(files, logs, deep=deep, bootstrap=bootstrap))
    if wrong:
        raise Failure(f"{wrong:,} thing{'s are' if wrong != 1 else ' is'} not as the ledger of {found.path} says")


@lake.command()
@click.argument("path")
@click.option("--set-aside", is_flag=True, help="Take it out of the archive, into _ottla/set-aside. Deletes nothing.")
@json_option
def repair(path: str, *, set_aside: bool, as_json: bool) -> None:
    """Say what keeps an archive from being written to, and set it aside if asked.

    For an archive whose ledger has lost its newest entries, as after an older copy of it was restored: there are files
    with offsets that no entry has then. If you have the entries, put them back instead. What is set aside is read from
    the brokers again by the next 'ottla archive'; what they do not have any more is a gap then, and in the files that
    were set aside. End all archivers first. Ends with 0 if nothing is in the way, or not any more, else with 1.
    """
    from ottla.lake import repair as lake_repair
    from ottla.lake.lake import Lake

    found = Lake.open(path)
    damage = lake_repair.look(found)
    folder = lake_repair.set_aside(found, damage) if set_aside and not damage.is_none else None
    if as_json:
        row = {
            "path": str(found.path),
            "last_entry": damage.last,
            "lost_entry": damage.lost or None,
            "withdrawn_entry": damage.withdrawn,
            "files": list(damage.files),
            "set_aside": None if folder is None else str(folder),
        }
        click.echo(json.dumps(row))
    else:
        for line in _damages(damage):
            click.echo(line)
        if folder is not None:
            click.echo(f"set aside in {folder}: the archive goes on after entry {damage.last}")
        elif damage.is_none:
            click.echo("nothing is in the way")
    if folder is None and not damage.is_none:
        raise Failure(f"{found.path} cannot be written to: put the missing entries back, or use --set-aside")


def _damages(damage: lake_repair.Damage) -> Iterator[str]:
    if damage.lost:
        yield f"the ledger ends with entry {damage.last}, and entry {damage.lost} was published"
    if damage.withdrawn is not None:
        yield f"entry {damage.withdrawn} was recorded and never published, and files of it are gone"
    for name in damage.files:
        yield f"{name}: no entry has its offsets"


def _findings(
    found: Lake,
    files: Checked,
    logs: Checked,
    *,
    bootstrap: str | None,
    deep: bool,
    **reading: Any,
) -> Iterator[Finding]:
    from ottla.fetch.reader import Reader
    from ottla.lake.verifying import verify_brokers, verify_files

    yield from verify_files(found, files, deep=deep)
    if bootstrap is not None:
        with Reader(bootstrap, client_id="ottla-lake", **reading) as reader:
            yield from verify_brokers(found, reader, logs)


def _summary(files: Checked, logs: Checked, *, deep: bool, bootstrap: str | None) -> str:
    read = f", {files.records:,} records read" if deep else ""
    ranges = _counted(logs.ranges, "range", "ranges")
    compared = f"; {ranges}, {logs.records:,} records equal to the log" if bootstrap else ""
    held = (
        _counted(files.entries, "entry", "entries"),
        _counted(files.ranges, "range", "ranges"),
        _counted(files.files, "file", "files"),
    )
    return f"all is there: {', '.join(held)}{read}{compared}"


def _counted(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _verified(found: Lake, files: Checked, logs: Checked, findings: list[Finding]) -> dict[str, Any]:
    return {
        "path": str(found.path),
        "entries": files.entries,
        "ranges": files.ranges,
        "files": files.files,
        "records_read": files.records,
        "ranges_against_brokers": logs.ranges,
        "records_against_brokers": logs.records,
        "wrong": [{"where": one.where, "what": one.what} for one in findings if one.is_wrong],
        "not_compared": [{"where": one.where, "what": one.what} for one in findings if not one.is_wrong],
    }


_HEADINGS = ("PARTITION", "OFFSETS", "RECORDS", "BYTES", "FILES", "ON DISK", "FROM", "TO", "GAPS", "OVERLAPS")


def _cells(one: PartitionStatus) -> tuple[str, ...]:
    spans = [f"{span.start}..{span.stop}" for span in one.ranges]
    return (
        str(one.at),
        ", ".join(spans[:2]) + (f", and {len(spans) - 2} more" if len(spans) > 2 else "") or f"from {one.next_offset}",
        f"{one.records:,}",
        show_size(one.size_bytes),
        f"{one.files:,}",
        show_size(one.file_bytes),
        _time(one.first_time),
        _time(one.last_time),
        str(len(one.gaps)),
        str(len(one.overlaps)),
    )


def _row(one: PartitionStatus) -> dict[str, Any]:
    return {
        "topic": one.at.topic,
        "partition": one.at.partition,
        "ranges": [[span.start, span.stop] for span in one.ranges],
        "next_offset": one.next_offset,
        "records": one.records,
        "fingerprint": str(one.fingerprint),
        "bytes": one.size_bytes,
        "files": one.files,
        "file_bytes": one.file_bytes,
        "first_time": one.first_time,
        "last_time": one.last_time,
        "archived": one.archived,
        "gaps": [gap.to_json() for gap in one.gaps],
        "overlaps": [[span.start, span.stop] for span in one.overlaps],
    }


def _time(seconds: float | None) -> str:
    from ottla.cli.reading.texts import show_time

    return "-" if seconds is None else show_time(round(seconds * 1000)) or "-"
