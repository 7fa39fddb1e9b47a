"""`ottla lake`: show, verify and repair archives. Only `repair --set-aside` changes status."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.completion.values import complete_profile_places
from ottla.cli.errors import CommandFailed
from ottla.cli.options.common import isolation_option, json_option, max_batch_size_option, timeout_option
from ottla.cli.options.confirmation import confirm, dry_run_option, yes_option
from ottla.cli.options.connection import require_brokers
from ottla.cli.options.profile import access_at
from ottla.cli.options.security import security_options
from ottla.cli.output.styles import Style, Styled
from ottla.cli.output.tables import table, terminal_width
from ottla.cli.terminal.progress import LiveLine
from ottla.cli.values.quantities import show_size
from ottla.cli.values.times import show_timestamp

if TYPE_CHECKING:
    from ottla.config import Security
    from ottla.lake import repair as lake_repair
    from ottla.lake.lake import Lake
    from ottla.lake.status import PartitionStatus
    from ottla.lake.verifying import Checked, Finding


@click.group()
def lake() -> None:
    """Show, verify and repair archives of 'ottla archive'.

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
    """Show what an archive has of each partition, with gaps and overlaps.

    \b
    Examples:
      ottla lake status /data/clicks
      ottla lake status /data/clicks --json | jq '.partitions[].gaps'
    """
    from ottla.lake.lake import Lake
    from ottla.lake.status import summarize

    archive = Lake.open(path)
    entries = list(archive.ledger.entries())
    partitions = summarize(entries)
    untimed = sum(entry.untimed for entry in entries)
    settings = archive.settings
    if as_json:
        head = {"path": str(archive.path), **settings.to_json(), "entries": len(entries), "without_time": untimed}
        click.echo(json.dumps({**head, "partitions": [_row(partition) for partition in partitions]}))
        return
    click.echo(
        f"{archive.path}: {settings.format.value}, partitioned by {', '.join(settings.partition_by) or 'nothing'}"
        f" (time: {settings.event_time}), {_counted(len(entries), 'entry', 'entries')}"
    )
    click.echo(table(_HEADINGS, [_cells(partition) for partition in partitions], width=terminal_width(), least=_LEAST))
    for partition in partitions:
        for gap in partition.gaps:
            click.echo(f"gap: {gap.range}: {gap.reason}")
        for overlap in partition.overlaps:
            click.echo(f"overlap: {overlap} is archived twice")
    if untimed:
        click.echo(f"{untimed:,} records have no readable event time")


@lake.command()
@click.argument("path")
@click.option(
    "--against",
    "bootstrap",
    metavar="HOST:PORT,...",
    shell_complete=complete_profile_places,
    help="Read every range from these brokers, or those of profile:NAME, and compare.",
)
@click.option("--deep", is_flag=True, help="Read all records of the files, not only footers.")
@isolation_option
@max_batch_size_option
@security_options
@timeout_option("60s")
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
    max_batch_size: int,
    security: Security,
    timeout: float,
    as_json: bool,
) -> None:
    """Compare the ledger of an archive with its files and the brokers.

    Compares sizes and footers of the files; --deep reads all records, and compares hashes and fingerprints. Exits with
    0 if everything matches, else with 1 and a line for each difference.

    \b
    Examples:
      ottla lake verify /data/clicks
      ottla lake verify /data/clicks --deep
      ottla lake verify /data/clicks --against localhost:9092
    """
    from ottla.config import Timeouts
    from ottla.fetch.options import Fetching
    from ottla.lake.lake import Lake
    from ottla.lake.verifying import Checked

    if bootstrap is not None:
        bootstrap, security = access_at(bootstrap, security)
    archive = Lake.open(path)
    files, logs = Checked(), Checked()
    findings: list[Finding] = []
    reading = {
        "security": security,
        "timeouts": Timeouts(total=timeout),
        "isolation": isolation,
        "fetching": Fetching(max_batch_bytes=max_batch_size),
    }
    if bootstrap is not None:
        require_brokers(bootstrap, security, timeout=timeout)
    with LiveLine(lambda: f"{files.files:,} files, {files.records + logs.records:,} records compared") as live:
        for finding in _findings(archive, files, logs, bootstrap=bootstrap, deep=deep, **reading):
            findings.append(finding)
            if not as_json:
                live.say(("" if finding.is_wrong else "not compared: ") + str(finding))
    wrong = sum(finding.is_wrong for finding in findings)
    if as_json:
        click.echo(json.dumps(_verified(archive, files, logs, findings)))
    elif not wrong:
        click.echo(_summary(files, logs, deep=deep, bootstrap=bootstrap))
    if wrong:
        raise CommandFailed(f"{wrong:,} difference{'s' if wrong != 1 else ''} from the ledger of {archive.path}")


@lake.command()
@click.argument("path")
@click.option("--set-aside", is_flag=True, help="Move these files into _ottla/set-aside. Deletes nothing.")
@yes_option
@dry_run_option
@json_option
def repair(path: str, *, set_aside: bool, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Show what blocks writes to an archive, and set it aside. Asks for confirmation.

    For an archive whose ledger has lost its newest entries, for example because an older copy was restored: it has
    files whose offsets are in no entry. If you have the entries, put them back instead. The next 'ottla archive' reads
    what was set aside from the brokers again; offsets that they no longer have become a gap. Stop all archivers first.
    Exits with 0 if nothing blocks writes any more, else with 1.

    \b
    Examples:
      ottla lake repair /data/clicks
      ottla lake repair /data/clicks --set-aside --dry-run
      ottla lake repair /data/clicks --set-aside --yes
    """
    from ottla.lake import repair as lake_repair
    from ottla.lake.lake import Lake

    archive = Lake.open(path)
    damage = lake_repair.look(archive)
    folder = None
    if set_aside and not damage.is_none and not dry_run:
        if not yes:
            click.echo("\n".join(_damages(damage)), err=True)
        confirm(f"this takes {_counted(len(damage.files), 'file', 'files')} out of {archive.path}", yes=yes)
        folder = lake_repair.set_aside(archive, damage)
    if as_json:
        row = {
            "path": str(archive.path),
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
            click.echo(f"set aside in {folder}: the archive continues after entry {damage.last}")
        elif damage.is_none:
            click.echo("nothing blocks writes")
    if folder is None and not damage.is_none and not (dry_run and set_aside):
        raise CommandFailed(f"{archive.path} cannot be written to: put the missing entries back, or use --set-aside")


def _damages(damage: lake_repair.Damage) -> Iterator[str]:
    if damage.lost:
        yield f"the ledger ends with entry {damage.last}, and entry {damage.lost} was published"
    if damage.withdrawn is not None:
        yield f"entry {damage.withdrawn} was recorded and never published, and files of it are gone"
    for name in damage.files:
        yield f"{name}: its offsets are in no entry"


def _findings(
    archive: Lake,
    files: Checked,
    logs: Checked,
    *,
    bootstrap: str | None,
    deep: bool,
    **reading: Any,
) -> Iterator[Finding]:
    from ottla.fetch.reader import Reader
    from ottla.lake.verifying import verify_brokers, verify_files

    yield from verify_files(archive, files, deep=deep)
    if bootstrap is not None:
        with Reader(bootstrap, client_id="ottla-lake", **reading) as reader:
            yield from verify_brokers(archive, reader, logs)


def _summary(files: Checked, logs: Checked, *, deep: bool, bootstrap: str | None) -> str:
    read = f", {files.records:,} records read" if deep else ""
    ranges = _counted(logs.ranges, "range", "ranges")
    compared = f"; {ranges}, {logs.records:,} records match the log" if bootstrap else ""
    held = (
        _counted(files.entries, "entry", "entries"),
        _counted(files.ranges, "range", "ranges"),
        _counted(files.files, "file", "files"),
    )
    return f"complete: {', '.join(held)}{read}{compared}"


def _counted(number: int, singular: str, plural: str) -> str:
    return f"{number:,} {singular if number == 1 else plural}"


def _verified(archive: Lake, files: Checked, logs: Checked, findings: list[Finding]) -> dict[str, Any]:
    return {
        "path": str(archive.path),
        "entries": files.entries,
        "ranges": files.ranges,
        "files": files.files,
        "records_read": files.records,
        "ranges_against_brokers": logs.ranges,
        "records_against_brokers": logs.records,
        "wrong": [_finding_dict(finding) for finding in findings if finding.is_wrong],
        "not_compared": [_finding_dict(finding) for finding in findings if not finding.is_wrong],
    }


def _finding_dict(finding: Finding) -> dict[str, str]:
    return {"where": finding.where, "what": finding.what}


_HEADINGS = ("partition", "offsets", "records", "bytes", "files", "on disk", "from", "to", "gaps", "overlaps")
_LEAST = ("files", "bytes", "on disk")


def _cells(status: PartitionStatus) -> tuple[str, ...]:
    spans = [f"{span.start:,}..{span.stop:,}" for span in status.ranges]
    return (
        str(status.topic_partition),
        ", ".join(spans[:2]) + (f", and {len(spans) - 2} more" if len(spans) > 2 else "")
        or f"from {status.next_offset:,}",
        f"{status.records:,}",
        show_size(status.size_bytes),
        f"{status.files:,}",
        show_size(status.file_bytes),
        _time(status.first_time),
        _time(status.last_time),
        _faults(len(status.gaps)),
        _faults(len(status.overlaps)),
    )


def _faults(count: int) -> str:
    return Styled(f"{count:,}", Style.BAD) if count else "0"


def _row(status: PartitionStatus) -> dict[str, Any]:
    return {
        "topic": status.topic_partition.topic,
        "partition": status.topic_partition.partition,
        "ranges": [[span.start, span.stop] for span in status.ranges],
        "next_offset": status.next_offset,
        "records": status.records,
        "fingerprint": str(status.fingerprint),
        "bytes": status.size_bytes,
        "files": status.files,
        "file_bytes": status.file_bytes,
        "first_time": status.first_time,
        "last_time": status.last_time,
        "archived": status.archived,
        "gaps": [gap.to_json() for gap in status.gaps],
        "overlaps": [[span.start, span.stop] for span in status.overlaps],
    }


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else show_timestamp(round(seconds * 1000)) or "-"
