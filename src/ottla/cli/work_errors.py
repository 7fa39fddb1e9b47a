"""`ottla work errors`: units that were given up after too many attempts: look at them, try them again, drop them.

The commands parse, ask the store and print; how failures look is in `views.work`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ottla.cli import Misuse
from ottla.cli.options.fleet import look, with_store
from ottla.cli.options.general import json_option
from ottla.cli.options.reading import parsed
from ottla.cli.values.unit_ids import parse_unit_id, unit_id
from ottla.cli.views.tables import terminal_width
from ottla.cli.views.work import failure_dict, failure_text, failures_text
from ottla.errors import InputError

if TYPE_CHECKING:
    from ottla.engines.fleet.store import Store
    from ottla.engines.fleet.units import Failure
    from ottla.model import OffsetRange

_Command = TypeVar("_Command", bound=Callable[..., Any])
_unit = click.argument("unit", metavar="UNIT", callback=parsed(parse_unit_id))


def _chosen(command: _Command) -> _Command:
    """Units by name, or all."""
    for option in (
        click.option("--all", "is_all", is_flag=True, help="All that are on the list."),
        click.argument("chosen", nargs=-1, metavar="[UNIT]...", callback=parsed(parse_unit_id)),
    ):
        command = option(command)
    return command


@click.group()
def errors() -> None:
    """Units that were given up after too many attempts.

    A unit is known as TOPIC/PARTITION/START-STOP. In an ordered group it holds up its partition until it is tried again
    or dropped.

    \b
    Examples:
      ottla work errors list --store redis://localhost
      ottla work errors show clicks/0/1000-2000 --store redis://localhost
      ottla work errors retry --all --store redis://localhost
      ottla work errors drop clicks/0/1000-2000 --yes --store redis://localhost
    """


@errors.command("list")
@click.option("--topic", metavar="TOPIC", help="Only of this one.")
@json_option
@with_store
def list_errors(*, store: Store, group: str, topic: str | None, as_json: bool) -> None:
    """List the units that were given up, with the reason of the last attempt.

    \b
    Examples:
      ottla work errors list --store redis://localhost
      ottla work errors list --topic clicks --json
    """
    look(store, group)
    found = [one for one in store.failures() if topic in (None, one.range.topic)]
    if as_json:
        click.echo(json.dumps([failure_dict(one) for one in found]))
    elif found:
        click.echo(failures_text(found, width=terminal_width()))
    else:
        click.echo("the error list is empty", err=True)


@errors.command()
@_unit
@json_option
@with_store
def show(*, store: Store, group: str, unit: OffsetRange, as_json: bool) -> None:
    """Show why a unit was given up, with the traceback of its last attempt.

    \b
    Example:
      ottla work errors show clicks/0/1000-2000 --store redis://localhost
    """
    look(store, group)
    [found] = _found(store.failures(), [unit])
    click.echo(json.dumps(failure_dict(found)) if as_json else failure_text(found))


@errors.command()
@_chosen
@json_option
@with_store
def retry(*, store: Store, group: str, chosen: tuple[OffsetRange, ...], is_all: bool, as_json: bool) -> None:
    """Let units be tried again; their attempts begin at 1.

    \b
    Examples:
      ottla work errors retry clicks/0/1000-2000 --store redis://localhost
      ottla work errors retry --all --store redis://localhost
    """
    _each(store, group, chosen, store.retry, "waiting again", is_all=is_all, as_json=as_json)


@errors.command()
@_chosen
@click.option("--yes", is_flag=True, help="They are not worked on any more: needed, since nothing brings them back.")
@json_option
@with_store
def drop(*, store: Store, group: str, chosen: tuple[OffsetRange, ...], is_all: bool, yes: bool, as_json: bool) -> None:
    """Take units off the list for good: they count as done, and nobody works on them.

    \b
    Examples:
      ottla work errors drop clicks/0/1000-2000 --yes --store redis://localhost
      ottla work errors drop --all --yes --store redis://localhost
    """
    if not yes:
        raise Misuse("units that are dropped are never worked on: say --yes if that is meant")
    _each(store, group, chosen, store.drop, "dropped", is_all=is_all, as_json=as_json)


def _each(
    store: Store,
    group: str,
    chosen: Sequence[OffsetRange],
    step: Callable[[OffsetRange], bool],
    became: str,
    *,
    is_all: bool,
    as_json: bool,
) -> None:
    if is_all == bool(chosen):
        raise Misuse("name units, as in clicks/0/1000-2000, or give --all")
    look(store, group)
    failures = store.failures()
    found = failures if is_all else _found(failures, chosen)
    changed = [one.range for one in found if step(one.range)]
    if as_json:
        click.echo(json.dumps({"group": group, "units": [unit_id(unit) for unit in changed], "state": became}))
        return
    for unit in changed:
        click.echo(f"{unit_id(unit)} {became}")
    if not changed:
        click.echo("the error list is empty", err=True)


def _found(failures: Sequence[Failure], wanted: Sequence[OffsetRange]) -> list[Failure]:
    """All of them, or an error before anything is changed."""
    there = {one.range: one for one in failures}
    missing = [unit for unit in wanted if unit not in there]
    if missing:
        raise InputError(f"{unit_id(missing[0])} is not on the error list, which has {len(there):,} units")
    return [there[unit] for unit in dict.fromkeys(wanted)]
