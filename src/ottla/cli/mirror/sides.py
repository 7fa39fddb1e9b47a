"""`--from` and `--to` of the commands of a mirror: how to reach the two clusters, each with security of its own.

`side_option` is a decorator for click commands; the command gets `source` or `target`, a `Brokers` value or None.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ottla.cli.completion.values import complete_profile_places, complete_topics
from ottla.cli.errors import UsageError
from ottla.cli.options.common import timeout_option
from ottla.cli.options.profile import access_at, is_profile

if TYPE_CHECKING:
    from ottla.jobs.brokers import Brokers

_Command = TypeVar("_Command", bound=Callable[..., Any])
FILE = click.Path(exists=True, dir_okay=False, readable=True, path_type=Path)
_ARGUMENTS = {"from": "source", "to": "target"}

link_name_option = click.option(
    "--name", "link", default="mirror", show_default=True, metavar="LINK", help="The name of the link."
)
journal_option = click.option(
    "--journal",
    shell_complete=complete_topics,
    default="ottla-mirror",
    show_default=True,
    metavar="TOPIC",
    help="Topic at the target that keeps the positions of links.",
)


def side_option(name: str, *, required: bool = True, note: str = "") -> Callable[[_Command], _Command]:
    """Give a command `--from` or `--to` with its `--...-config`, and the argument `source` or `target`."""
    argument = _ARGUMENTS[name]

    def decorate(command: _Command) -> _Command:
        @functools.wraps(command)
        def sided(*args: Any, **given: Any) -> Any:
            bootstrap, file = given.pop(f"{argument}_bootstrap"), given.pop(f"{argument}_config")
            if required and bootstrap is None and file is None:
                raise UsageError(f"--{name} HOST:PORT,... is missing: the {argument} cluster")
            brokers = None if bootstrap is None and file is None else brokers_of(name, bootstrap, file)
            return command(*args, **{argument: brokers}, **given)

        wrapped: Any = click.option(
            f"--{name}-config",
            f"{argument}_config",
            type=FILE,
            help=f"TOML file with bootstrap, TLS and SASL of the {argument}.",
        )(sided)
        wrapped = click.option(
            f"--{name}",
            f"{argument}_bootstrap",
            metavar="HOST:PORT,...",
            shell_complete=complete_profile_places,
            help=f"Brokers of the {argument} to connect to first, or profile:NAME.{note and ' ' + note}",
        )(wrapped)
        decorated: _Command = wrapped
        return decorated

    return decorate


def brokers_of(name: str, bootstrap: str | None, file: Path | None) -> Brokers:
    """Return how to reach a cluster from its options.

    Raises `UsageError` for an invalid address, and `ConfigError` for what is wrong with a profile or a file.
    """
    from ottla.config import parse_bootstrap
    from ottla.errors import ConfigError
    from ottla.jobs.brokers import Brokers
    from ottla.jobs.mirror_file import CLIENT, read_side

    if bootstrap is not None and is_profile(bootstrap):
        if file is not None:
            raise UsageError(f"--{name} {bootstrap} and --{name}-config are mutually exclusive: both have the security")
        addresses, security = access_at(bootstrap)
        return Brokers(bootstrap=addresses, security=security, client_id=CLIENT)
    if bootstrap is not None:
        try:
            parse_bootstrap(bootstrap)
        except ConfigError as error:
            raise UsageError(f"--{name}: {error}") from error
    if file is not None:
        return read_side(file, bootstrap=bootstrap, environment=os.environ)
    assert bootstrap is not None
    return Brokers(bootstrap=bootstrap, client_id=CLIENT)


def within(brokers: Brokers, timeout: float) -> Brokers:
    """Return the same brokers with a limit for each call."""
    from dataclasses import replace

    from ottla.config import Timeouts

    limits = Timeouts(total=timeout, connect=min(10.0, timeout), request=min(30.0, timeout))
    return replace(brokers, timeouts=limits)


brief_timeout_option = timeout_option("20s")
