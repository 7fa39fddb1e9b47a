"""`--group` and `--store` of the commands of a fleet: which group, and the store that keeps it.

`with_store` is a decorator for click commands; the command gets `group: str` and an open `store: Store`. A store that
does not come from the command line is announced on stderr, without its password.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from ottla.cli.errors import UsageError
from ottla.cli.lazy import CLUSTER_PACKAGES, is_installed
from ottla.default_address import DIR_VARIABLE

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
    help="The group that this command joins or works on.",
)


def store_option(command: _Command) -> _Command:
    """Give a command the option `--store` and the argument `store: str`."""
    option = click.option(
        "--store",
        metavar="URL",
        envvar=STORE_VARIABLE,
        show_envvar=True,
        callback=_resolved,
        help=f"Where the group is kept: {_ACCEPTED}.  [default: the Redis of the running local cluster]",
    )
    return option(command)


def named_store_option(command: _Command) -> _Command:
    """Give a command a mandatory `--store` and the argument `store: str`."""
    option = click.option(
        "--store",
        metavar="URL",
        envvar=STORE_VARIABLE,
        show_envvar=True,
        required=True,
        help=f"Whose jobs to do: {_ACCEPTED}. Writers to it decide what this node works on.",
    )
    return option(command)


def with_store(command: _Command) -> _Command:
    """Give a command `--group` and `--store`, and the arguments `group: str` and `store: Store`, open while it runs."""

    @functools.wraps(command)
    def opened(*args: Any, group: str, store: str, **given: Any) -> Any:
        from ottla.engines.fleet.store import open_store

        _require_file(store)
        with closing(open_store(store, group)) as opened_store:
            return command(*args, group=group, store=opened_store, **given)

    wrapped: Any = group_option(store_option(opened))
    decorated: _Command = wrapped
    return decorated


def look(store: Store, group: str) -> Snapshot:
    """Return the state of the group. Raises InputError if the store does not have the group."""
    if not store.exists():
        from ottla.errors import InputError

        raise InputError(f"no group {group!r} in the store {store.address}: 'ottla work run' creates one")
    return store.look()


def _require_file(url: str) -> None:
    """Raise `UsageError` for an SQLite file that does not exist: looking at it would create it."""
    path = Path(url.removeprefix(_SQLITE))
    if url.startswith(_SQLITE) and not path.exists():
        raise UsageError(
            f"no store at {url}: no file {path.absolute()} (three slashes: relative to the current folder; four:"
            " an absolute path)"
        )


def _resolved(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if context.resilient_parsing or context.get_parameter_source("store") is ParameterSource.COMMANDLINE:
        return value
    return find_store()


def find_store() -> str:
    """Return the store from the environment or the local cluster, and announce it. Raises `UsageError` without one."""
    if named := os.environ.get(STORE_VARIABLE):
        click.echo(f"using the store of {STORE_VARIABLE}", err=True)
        return named
    stores = _local_stores(os.environ.get(DIR_VARIABLE))
    chosen = stores.get("default") or (next(iter(stores.values())) if len(stores) == 1 else None)
    if chosen is None:
        raise UsageError(
            f"no store: pass --store URL ({_ACCEPTED}), set {STORE_VARIABLE},"
            " or start a local one with 'ottla cluster up --redis'"
        )
    click.echo(f"using the store of the local cluster, {chosen}", err=True)
    return chosen


def _local_stores(directory: str | None) -> dict[str, str]:
    """Return the Redis of every local cluster that runs one, by name."""
    if not is_installed(CLUSTER_PACKAGES):
        return {}
    from ottla.cluster import LocalCluster

    return {
        cluster.name: cluster.redis.url
        for cluster in LocalCluster.all(directory)
        if cluster.up and cluster.redis is not None
    }
