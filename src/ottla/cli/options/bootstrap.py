"""`--bootstrap`: where a command connects; else OTTLA_BOOTSTRAP, else the local cluster that is running.

`bootstrap_option` is a decorator for click commands; the command gets `bootstrap`, a checked `HOST:PORT,...`. An
address that does not come from the command line is announced on stderr.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from ottla.cli.errors import UsageError
from ottla.cli.lazy import CLUSTER_PACKAGES, is_installed
from ottla.default_address import DIR_VARIABLE, VARIABLE

if TYPE_CHECKING:
    from ottla.cluster import ClusterStatus


_Command = TypeVar("_Command", bound=Callable[..., Any])


def bootstrap_option(command: _Command) -> _Command:
    """Give a command the option `--bootstrap` and the argument `bootstrap: str`."""
    option = click.option(
        "--bootstrap",
        metavar="HOST:PORT,...",
        envvar=VARIABLE,
        show_envvar=True,
        callback=_resolved,
        help="Brokers to connect to first.  [default: the running local cluster]",
    )
    return option(command)


def _resolved(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    from ottla.cli.advice import reword
    from ottla.config import parse_bootstrap
    from ottla.errors import ConfigError

    if context.resilient_parsing:
        return value
    if value:
        try:
            parse_bootstrap(value)
        except ConfigError as exc:
            raise click.BadParameter(reword(str(exc)), context, parameter) from exc
        if context.get_parameter_source("bootstrap") is ParameterSource.ENVIRONMENT:
            click.echo(f"using {VARIABLE}={value}", err=True)
        return value
    return _running_cluster()


def find_bootstrap() -> str:
    """Return the brokers of the environment or the local cluster, and announce them. Raises `UsageError` without any.

    For a command whose file may name the brokers.
    """
    if named := os.environ.get(VARIABLE):
        click.echo(f"using {VARIABLE}={named}", err=True)
        return named
    return _running_cluster()


def _running_cluster() -> str:
    clusters = _local_clusters(os.environ.get(DIR_VARIABLE))
    running = {cluster.name: cluster.bootstrap for cluster in clusters if cluster.bootstrap is not None}
    chosen = running.get("default") or (next(iter(running.values())) if len(running) == 1 else None)
    if chosen is None and running:
        raise UsageError(
            f"several local clusters are running ({', '.join(running)}), none of them named 'default':"
            f" choose one with --bootstrap or {VARIABLE}"
        )
    if chosen is None and clusters:
        cluster = clusters[0]
        raise UsageError(
            f"the local cluster '{cluster.name}' requires credentials ('ottla cluster status' shows them): set"
            f" OTTLA_PASSWORD and pass --bootstrap {cluster.secure_bootstrap} --ca-file {cluster.ca_file}"
            f" --username {next(iter(cluster.users), '')}"
        )
    if chosen is None:
        raise UsageError(
            f"no brokers: pass --bootstrap HOST:PORT, set {VARIABLE}, or start local ones with 'ottla cluster up'"
        )
    name = next(name for name, address in running.items() if address == chosen)
    click.echo(f"using local cluster '{name}' at {chosen}", err=True)
    return chosen


def _local_clusters(directory: str | None) -> list[ClusterStatus]:
    """Return every local cluster that is running."""
    if not is_installed(CLUSTER_PACKAGES):
        return []
    from ottla.cluster import LocalCluster

    return [cluster for cluster in LocalCluster.all(directory) if cluster.up]
