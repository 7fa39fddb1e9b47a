"""`ottla work errors`: list, show, retry and drop units that failed too often."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ottla.cli.completion.values import complete_topics
from ottla.cli.errors import UsageError
from ottla.cli.options.common import json_option
from ottla.cli.options.confirmation import confirm, dry_run_option, yes_option
from ottla.cli.options.store import look, with_store
from ottla.cli.options.types import parsed
from ottla.cli.output.tables import table, terminal_width
from ottla.cli.values.unit_ids import parse_unit_id, unit_id
from ottla.cli.work.view import range_dict
from ottla.errors import InputError
from ottla.text import printable

if TYPE_CHECKING:
    from ottla.engines.fleet.store import Store
    from ottla.engines.fleet.units import Failure
    from ottla.model import OffsetRange

_Command = TypeVar("_Command", bound=Callable[..., Any])
_unit = click.argument("unit", metavar="UNIT", callback=parsed(parse_unit_id))


def _units_argument(command: _Command) -> _Command:
    """Give a command units by name, or `--all`."""
    for option in (
        click.option("--all", "is_all", is_flag=True, help="All units on the list."),
        click.argument("units", nargs=-1, metavar="[UNIT]...", callback=parsed(parse_unit_id)),
    ):
        command = option(command)
    return command


@click.group()
def errors() -> None:
    """List, show, retry and drop units that failed too often.

    A unit is named TOPIC/PARTITION/START-STOP. In an ordered group it blocks its partition until it is retried or
    dropped.

    \b
    Examples:
      ottla work errors list --store redis://localhost
      ottla work errors show clicks/0/1000-2000 --store redis://localhost
      ottla work errors retry --all --store redis://localhost
      ottla work errors drop clicks/0/1000-2000 --yes --store redis://localhost
    """


@errors.command("list")
@click.option("--topic", metavar="TOPIC", shell_complete=complete_topics, help="Only units of this topic.")
@json_option
@with_store
def list_errors(*, store: Store, group: str, topic: str | None, as_json: bool) -> None:
    """List failed units, with the reason of the last attempt.

    \b
    Examples:
      ottla work errors list --store redis://localhost
      ottla work errors list --topic clicks --json
    """
    look(store, group)
    failures = [failure for failure in store.failures() if topic in (None, failure.range.topic)]
    if as_json:
        click.echo(json.dumps([_failure_dict(failure) for failure in failures]))
    elif failures:
        click.echo(_failures_text(failures, width=terminal_width()))
    else:
        click.echo("the error list is empty", err=True)


@errors.command()
@_unit
@json_option
@with_store
def show(*, store: Store, group: str, unit: OffsetRange, as_json: bool) -> None:
    """Show why a unit failed, with the traceback of its last attempt.

    \b
    Example:
      ottla work errors show clicks/0/1000-2000 --store redis://localhost
    """
    look(store, group)
    [failure] = _select(store.failures(), [unit])
    click.echo(json.dumps(_failure_dict(failure)) if as_json else _failure_text(failure))


@errors.command()
@_units_argument
@json_option
@with_store
def retry(*, store: Store, group: str, units: tuple[OffsetRange, ...], is_all: bool, as_json: bool) -> None:
    """Retry units; their attempts start at 1 again.

    \b
    Examples:
      ottla work errors retry clicks/0/1000-2000 --store redis://localhost
      ottla work errors retry --all --store redis://localhost
    """
    failures = _chosen_failures(store, group, units, is_all=is_all)
    retried = [failure.range for failure in failures if store.retry(failure.range)]
    _report(group, retried, "waiting again", as_json=as_json)


@errors.command()
@_units_argument
@yes_option
@dry_run_option
@json_option
@with_store
def drop(
    *,
    store: Store,
    group: str,
    units: tuple[OffsetRange, ...],
    is_all: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Drop units for good: they count as done and are never retried. Asks for confirmation.

    \b
    Examples:
      ottla work errors drop clicks/0/1000-2000 --store redis://localhost
      ottla work errors drop --all --dry-run --store redis://localhost
      ottla work errors drop --all --yes --store redis://localhost
    """
    failures = _chosen_failures(store, group, units, is_all=is_all)
    ranges = [failure.range for failure in failures]
    if dry_run:
        _report(group, ranges, "would be dropped", as_json=as_json)
        return
    if ranges:
        if not yes:
            click.echo(_failures_text(failures, width=terminal_width()), err=True)
        count = f"{len(ranges):,} unit{'s' if len(ranges) != 1 else ''}"
        confirm(f"this drops {count} of group {printable(group)}: they are never retried", yes=yes)
    _report(group, [unit for unit in ranges if store.drop(unit)], "dropped", as_json=as_json)


def _chosen_failures(store: Store, group: str, units: Sequence[OffsetRange], *, is_all: bool) -> Sequence[Failure]:
    if is_all == bool(units):
        raise UsageError("name units, such as clicks/0/1000-2000, or pass --all")
    look(store, group)
    failures = store.failures()
    return failures if is_all else _select(failures, units)


def _select(failures: Sequence[Failure], units: Sequence[OffsetRange]) -> list[Failure]:
    """Return the failures of these units. Raises InputError if one is not on the list."""
    by_range = {failure.range: failure for failure in failures}
    missing = [unit for unit in units if unit not in by_range]
    if missing:
        raise InputError(f"{unit_id(missing[0])} is not on the error list, which has {len(by_range):,} units")
    return [by_range[unit] for unit in dict.fromkeys(units)]


def _report(group: str, units: Sequence[OffsetRange], state: str, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"group": group, "units": [unit_id(unit) for unit in units], "state": state}))
        return
    for unit in units:
        click.echo(f"{unit_id(unit)} {state}")
    if not units:
        click.echo("the error list is empty", err=True)


def _failures_text(failures: Sequence[Failure], *, width: int | None) -> str:
    """Return the error list as a table."""
    rows = [
        (unit_id(failure.range), str(failure.attempts), _show_time(failure.at), failure.host or "-", failure.reason)
        for failure in failures
    ]
    return table(("unit", "attempts", "last", "host", "reason"), rows, width=width)


def _failure_text(failure: Failure) -> str:
    """Return a failed unit with everything that is known."""
    lines = [
        f"unit      {unit_id(failure.range)}",
        f"offsets   {len(failure.range):,}",
        f"attempts  {failure.attempts}",
        f"last      {_show_time(failure.at)}",
        f"host      {failure.host or '-'}",
        f"reason    {failure.reason}",
    ]
    return "\n".join([*lines, "", failure.traceback.rstrip()] if failure.traceback else lines)


def _failure_dict(failure: Failure) -> dict[str, Any]:
    """Return a failed unit for JSON."""
    return {
        **range_dict(failure.range),
        "attempts": failure.attempts,
        "reason": failure.reason,
        "traceback": failure.traceback,
        "host": failure.host,
        "at": failure.at,
    }


def _show_time(seconds: float) -> str:
    """Return a moment in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if seconds > 0 else "-"
