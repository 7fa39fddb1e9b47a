"""`--profile`: a cluster by its name in the settings file; and `profile:NAME` in place of an address.

`profile_option` is a decorator for click commands. It gives no argument: `--bootstrap` and the TLS and SASL options ask
`chosen_profile` which profile the command uses.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from ottla.cli.completion.values import PROFILE_PREFIX, complete_profiles
from ottla.default_address import VARIABLE

if TYPE_CHECKING:
    from ottla.cli.profiles.file import Profile
    from ottla.config import Security

PROFILE_VARIABLE = "OTTLA_PROFILE"
_KEY = "ottla.profile"
_SAID = "ottla.cluster"

_Command = TypeVar("_Command", bound=Callable[..., Any])
_IsUsed = Callable[[Mapping[str, Any]], bool]


class _ProfileOption(click.Option):
    """The option; `is_used` says from the other arguments whether the command connects by a profile at all."""

    def __init__(self, *args: Any, is_used: _IsUsed, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.is_used = is_used


def profile_option(command: _Command) -> _Command:
    """Give a command the option `--profile`."""
    return profile_option_if(lambda arguments: True)(command)


def profile_option_if(is_used: _IsUsed) -> Callable[[_Command], _Command]:
    """Give a command the option `--profile`, which has a meaning only with some of its arguments."""

    def decorate(command: _Command) -> _Command:
        option = click.option(
            "--profile",
            cls=_ProfileOption,
            is_used=is_used,
            metavar="NAME",
            envvar=PROFILE_VARIABLE,
            show_envvar=True,
            is_eager=True,  # other options ask what was chosen
            expose_value=False,
            callback=_noted,
            shell_complete=complete_profiles,
            help="Cluster, TLS and SASL by their name in the settings file: see 'ottla profiles'.",
        )
        return option(command)

    return decorate


def _noted(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value == "":
        raise click.BadParameter("the name is empty", context, parameter)
    context.meta[_KEY] = value


def profile_name(context: click.Context) -> str | None:
    """Return what the command line or the variable names."""
    name: str | None = context.meta.get(_KEY)
    return name


def chosen_profile(context: click.Context) -> Profile | None:
    """Return the profile that the command uses: the one that is named, else the default of the file.

    Where the command line has an address, only a profile that it names as well is used: the login of another one must
    not be sent there. The default gives way to OTTLA_BOOTSTRAP, too. Raises `ConfigError` for an
    unknown profile and an invalid file.
    """
    option = next((known for known in context.command.params if isinstance(known, _ProfileOption)), None)
    if option is None or not option.is_used(context.params):
        return None
    name = profile_name(context)
    if not is_profile_given(context) and (_is_address_given(context) or (name is None and os.environ.get(VARIABLE))):
        return None
    from ottla.cli.profiles.file import read_profiles

    profiles = read_profiles(os.environ)
    return profiles.default if name is None else profiles.find(name)


def is_profile_given(context: click.Context) -> bool:
    """Return whether `--profile` is on the command line."""
    return context.get_parameter_source("profile") is ParameterSource.COMMANDLINE


def _is_address_given(context: click.Context) -> bool:
    return context.get_parameter_source("bootstrap") is ParameterSource.COMMANDLINE


def announce(context: click.Context, profile: Profile, bootstrap: str) -> None:
    """Have it said on stderr which profile is used, and why if the command line does not name it."""
    source = context.get_parameter_source("profile")
    named = {
        ParameterSource.COMMANDLINE: f"profile {profile.name!r}",
        ParameterSource.ENVIRONMENT: f"profile {profile.name!r} of {PROFILE_VARIABLE}",
    }.get(source or ParameterSource.DEFAULT, f"the default profile {profile.name!r}")
    note_cluster(context, f"using {named} at {bootstrap}")


def note_cluster(context: click.Context, text: str) -> None:
    """Keep a text that says which cluster is used, until the command runs: usage errors come without it."""
    context.meta[_SAID] = text


def tell_cluster(context: click.Context) -> None:
    """Print that text on stderr, once."""
    if text := context.meta.pop(_SAID, None):
        click.echo(text, err=True)


def is_profile(text: str) -> bool:
    """Return whether a text in place of an address names a profile. `profile:9092` is an address."""
    return text.startswith(PROFILE_PREFIX) and not text.removeprefix(PROFILE_PREFIX).partition(",")[0].isdigit()


def access_at(address: str, security: Security | None = None) -> tuple[str, Security]:
    """Return addresses and security of `HOST:PORT,...` or `profile:NAME`; `security` is that of addresses.

    Raises `ConfigError`.
    """
    from ottla.config import PLAINTEXT, parse_bootstrap

    if not is_profile(address):
        parse_bootstrap(address)
        return address, PLAINTEXT if security is None else security
    from ottla.cli.profiles.file import read_profiles

    profile = read_profiles(os.environ).find(address.removeprefix(PROFILE_PREFIX))
    return profile.bootstrap, profile.security(os.environ)
