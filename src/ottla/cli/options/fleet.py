"""Options of the commands that work with a fleet: which group, and the store where it is kept.

`with_store` is a decorator for click commands; the command gets `group: str` and an open `store: Store`. A store that
was not given on the command line is announced on stderr, without its password.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from ottla.cli import CLUSTER_PACKAGES, Misuse
from ottla.cli.options.bootstrap import DIR_VARIABLE
from ottla.cli.values.times import ACCEPTED, parse_time

if TYPE_CHECKING:
    from ottla.engines.fleet.store import Store
    from ottla.engines.fleet.units import Snapshot

STORE_VARIABLE = "OTTLA_STORE"
GROUP_VARIABLE = "OTTLA_GROUP"
_ACCEPTED = "redis://HOST:PORT, rediss://, redis+sentinel://, redis+cluster:// or sqlite:///PATH"
_SQLITE = "sqlite:///"

_Command = TypeVar("_Command", bound=Callable[..., Any])

group_option = click.option(
    "--group",
    default="default",
    show_default=True,
    envvar=GROUP_VARIABLE,
    show_envvar=True,
    metavar="NAME",
    help="The nodes of one name share the work.",
)


def store_option(command: _Command) -> _Command:
    """Give a command the option `--store` and the argument `store: str`."""
    option = click.option(
        "--store",
        metavar="URL",
        envvar=STORE_VARIABLE,
        show_envvar=True,
        callback=_resolved,
        help=f"Where the group is kept: {_ACCEPTED}. Without it: the environment variable, else the Redis of the"
        " running local cluster.",
    )
    return option(command)


def named_store_option(command: _Command) -> _Command:
    """Give a command `--store` and the argument `store: str`, where the user must say which."""
    option = click.option(
        "--store",
        metavar="URL",
        envvar=STORE_VARIABLE,
        show_envvar=True,
        required=True,
        help=f"Whose jobs are done: {_ACCEPTED}. Whoever can write to it decides what this node works on.",
    )
    return option(command)


def with_store(command: _Command) -> _Command:
    """Give a command `--group` and `--store`, and the arguments `group: str` and `store: Store`, open while it runs."""

    @functools.wraps(command)
    def opened(*args: Any, group: str, store: str, **given: Any) -> Any:
        from ottla.engines.fleet.store import open_store

        _refuse_missing_file(store)
        with closing(open_store(store, group)) as found:
            return command(*args, group=group, store=found, **given)

    wrapped: Any = group_option(store_option(opened))
    found: _Command = wrapped
    return found


def look(store: Store, group: str) -> Snapshot:
    """How the group stands; a group that nobody has begun is refused."""
    seen = store.look()
    if not (seen.number or seen.topics or seen.lanes or seen.nodes):
        from ottla.errors import InputError

        raise InputError(f"there is no group {group!r} in the store {store.address}: 'ottla work run' begins one")
    return seen


def _refuse_missing_file(url: str) -> None:
    """Looking must not make a file."""
    path = Path(url.removeprefix(_SQLITE))
    if url.startswith(_SQLITE) and not path.exists():
        raise Misuse(
            f"there is no store at {url}: no file {path.absolute()} (three slashes: from the current folder on; four:"
            " an absolute path)"
        )


def _resolved(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if context.resilient_parsing or context.get_parameter_source("store") is ParameterSource.COMMANDLINE:
        return value
    return find_store()


def find_store() -> str:
    """The store for a command to which none was given; it is announced."""
    if named := os.environ.get(STORE_VARIABLE):
        click.echo(f"using the store of {STORE_VARIABLE}", err=True)
        return named
    found = _local_stores(os.environ.get(DIR_VARIABLE))
    chosen = found.get("default") or (next(iter(found.values())) if len(found) == 1 else None)
    if chosen is None:
        raise Misuse(
            f"no store given: pass --store URL ({_ACCEPTED}), set {STORE_VARIABLE},"
            " or start a local one with 'ottla cluster up --redis'"
        )
    click.echo(f"using the store of the local cluster, {chosen}", err=True)
    return chosen


def _local_stores(directory: str | None) -> dict[str, str]:
    """The Redis of every local cluster that runs and has one, by name."""
    if any(importlib.util.find_spec(package) is None for package in CLUSTER_PACKAGES):
        return {}
    from ottla.cluster import LocalCluster

    return {one.name: one.redis.url for one in LocalCluster.all(directory) if one.up and one.redis is not None}


def parse_start(text: str) -> str | datetime:
    """Where a topic begins that is new to a group."""
    if text in ("earliest", "latest"):
        return text
    try:
        return parse_time(text, now=datetime.now(UTC))
    except ValueError as error:
        raise ValueError(f"{text!r} is nowhere to begin: earliest, latest, or a time ({ACCEPTED})") from error
