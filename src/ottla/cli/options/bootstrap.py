"""Where a command connects: `--bootstrap`, else OTTLA_BOOTSTRAP, else the local cluster that is running.

`bootstrap_option` is a decorator for click commands; the command gets `bootstrap`, a checked `HOST:PORT,...`.
What was not given on the command line is announced on stderr.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from ottla.cli import CLUSTER_PACKAGES, Misuse

if TYPE_CHECKING:
    from ottla.cluster import ClusterStatus

VARIABLE = "OTTLA_BOOTSTRAP"
DIR_VARIABLE = "OTTLA_DIR"

_Command = TypeVar("_Command", bound=Callable[..., Any])


def bootstrap_option(command: _Command) -> _Command:
    """Give a command the option `--bootstrap` and the argument `bootstrap: str`."""
    option = click.option(
        "--bootstrap",
        metavar="HOST:PORT,...",
        envvar=VARIABLE,
        show_envvar=True,
        callback=_resolved,
        help="Brokers to ask first. Without it: the environment variable, else the running local cluster.",
    )
    return option(command)


def _resolved(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    from ottla.cli.wording import worded
    from ottla.config import parse_bootstrap
    from ottla.errors import ConfigError

    if context.resilient_parsing:
        return value
    if value:
        try:
            parse_bootstrap(value)
        except ConfigError as exc:
            raise click.BadParameter(worded(str(exc)), context, parameter) from exc
        if context.get_parameter_source("bootstrap") is ParameterSource.ENVIRONMENT:
            click.echo(f"using {VARIABLE}={value}", err=True)
        return value
    return _running_cluster()


def _running_cluster() -> str:
    clusters = _local_clusters(os.environ.get(DIR_VARIABLE))
    running = {one.name: one.bootstrap for one in clusters if one.bootstrap is not None}
    chosen = running.get("default") or (next(iter(running.values())) if len(running) == 1 else None)
    if chosen is None and running:
        raise Misuse(
            f"several local clusters run ({', '.join(running)}), none of them named 'default':"
            f" choose with --bootstrap or {VARIABLE}"
        )
    if chosen is None and clusters:
        one = clusters[0]
        raise Misuse(
            f"the local cluster '{one.name}' lets nobody in without credentials ('ottla cluster status' shows them):"
            f" set OTTLA_PASSWORD and give --bootstrap {one.secure_bootstrap} --ca-file {one.ca_file}"
            f" --username {next(iter(one.users), '')}"
        )
    if chosen is None:
        raise Misuse(
            f"no brokers given: pass --bootstrap HOST:PORT, set {VARIABLE}, or start local ones with 'ottla cluster up'"
        )
    name = next(name for name, address in running.items() if address == chosen)
    click.echo(f"using local cluster '{name}' at {chosen}", err=True)
    return chosen


def _local_clusters(directory: str | None) -> list[ClusterStatus]:
    """Every local cluster that runs."""
    if any(importlib.util.find_spec(package) is None for package in CLUSTER_PACKAGES):
        return []
    from ottla.cluster import LocalCluster

    return [one for one in LocalCluster.all(directory) if one.up]
