"""`--bootstrap` and `--profile`: where a command connects.

`bootstrap_option` is a decorator for click commands; the command gets `bootstrap`, a checked `HOST:PORT,...`. The first
of these decides: the command line, a profile, OTTLA_BOOTSTRAP, the default profile, the local cluster that is running.
An address that does not come from the command line is announced on stderr.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from ottla.cli.errors import UsageError
from ottla.cli.lazy import CLUSTER_PACKAGES, is_installed
from ottla.cli.options.profile import announce, chosen_profile, note_cluster, profile_option, tell_cluster
from ottla.default_address import DIR_VARIABLE, VARIABLE

if TYPE_CHECKING:
    from ottla.cluster import ClusterStatus


_Command = TypeVar("_Command", bound=Callable[..., Any])


def bootstrap_option(command: _Command) -> _Command:
    """Give a command the options `--bootstrap` and `--profile`, and the argument `bootstrap: str`."""
    option = click.option(
        "--bootstrap",
        metavar="HOST:PORT,...",
        envvar=VARIABLE,
        show_envvar=True,
        callback=_resolved,
        help="Brokers to connect to first.  [default: the default profile, the running local cluster]",
    )

    @functools.wraps(command)
    def told(*args: Any, **given: Any) -> Any:
        tell_cluster(click.get_current_context())
        return command(*args, **given)

    wrapped: Any = option(profile_option(told))
    decorated: _Command = wrapped
    return decorated


def _resolved(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if context.resilient_parsing:
        return value
    is_given = context.get_parameter_source("bootstrap") is ParameterSource.COMMANDLINE
    return _decided(context, value if is_given else None)


def find_bootstrap(context: click.Context, given: str | None = None) -> str:
    """Return the brokers of a command that does not always connect, and announce them. `given` is its `--bootstrap`.

    Raises `UsageError` if there are none.
    """
    bootstrap = _decided(context, given)
    tell_cluster(context)
    return bootstrap


def _decided(context: click.Context, given: str | None) -> str:
    profile = chosen_profile(context)
    named = os.environ.get(VARIABLE)
    if given is not None:
        check_bootstrap(given, context)
    if profile is not None:
        bootstrap = profile.bootstrap if given is None else given
        announce(context, profile, bootstrap)
        return bootstrap
    if given is not None:
        return given
    if named:
        check_bootstrap(named, context)
        note_cluster(context, f"using {VARIABLE}={named}")
        return named
    return _running_cluster(context)


def check_bootstrap(value: str, context: click.Context) -> None:
    """Raise click's error, which names `--bootstrap`, for a text that is no address."""
    from ottla.cli.advice import reword
    from ottla.config import parse_bootstrap
    from ottla.errors import ConfigError

    parameter = next((known for known in context.command.params if known.name == "bootstrap"), None)
    try:
        parse_bootstrap(value)
    except ConfigError as exc:
        text = reword(str(exc)).removeprefix("bootstrap address ")
        raise click.BadParameter(text, context, parameter) from exc


def _running_cluster(context: click.Context) -> str:
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
            f"no brokers: pass --bootstrap HOST:PORT or --profile NAME, set {VARIABLE}, or start local ones with"
            " 'ottla cluster up'"
        )
    name = next(name for name, address in running.items() if address == chosen)
    note_cluster(context, f"using local cluster '{name}' at {chosen}")
    return chosen


def _local_clusters(directory: str | None) -> list[ClusterStatus]:
    """Return every local cluster that is running."""
    if not is_installed(CLUSTER_PACKAGES):
        return []
    from ottla.cluster import LocalCluster

    return [cluster for cluster in LocalCluster.all(directory) if cluster.up]
