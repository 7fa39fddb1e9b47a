"""The settings file of a user: profiles, each with the addresses, TLS and SASL of a cluster, and which is the default.

A file comes in, `Profiles` go out; whatever is wrong is one `ConfigError` with its place. Secrets are named as files or
variables and read only for the profile that is used. Nothing but commands reads this file.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.errors import ConfigError
from ottla.net import access_table
from ottla.settings_table import Table, load

if TYPE_CHECKING:
    from ottla.config import Security

FILE_VARIABLE = "OTTLA_CONFIG"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")
_KEYS = ("bootstrap", *access_table.SECURITY_KEYS)


@dataclass(frozen=True, slots=True)
class Profile:
    """How to reach one cluster, as the file has it."""

    name: str
    table: Table

    @property
    def bootstrap(self) -> str:
        """The addresses. Raises `ConfigError` if there are none, or one is no address."""
        return access_table.bootstrap_of(self.table)

    def security(self, environment: Mapping[str, str]) -> Security:
        """Read the secrets and return how connections are protected. Raises `ConfigError`."""
        return access_table.security_of(self.table, environment)


@dataclass(frozen=True, slots=True)
class Profiles:
    """What a file has; empty if there is none."""

    file: Path
    by_name: Mapping[str, Profile] = field(default_factory=dict)
    default: Profile | None = None

    def find(self, name: str) -> Profile:
        """Return a profile. Raises `ConfigError`, which names the known ones, if there is none of this name."""
        if name in self.by_name:
            return self.by_name[name]
        if not self.file.exists():
            raise ConfigError(f"no profile {name!r}: there is no file {self.file}")
        known = ", ".join(self.by_name)
        raise ConfigError(f"no profile {name!r} in {self.file}: it has {known or 'none'}")


def config_file(environment: Mapping[str, str]) -> Path:
    """Return where the file is, or would be."""
    if named := environment.get(FILE_VARIABLE):
        return Path(named).absolute()
    import platformdirs

    return Path(platformdirs.user_config_dir("ottla")) / "config.toml"


def read_profiles(environment: Mapping[str, str]) -> Profiles:
    """Return the profiles of the file. Raises `ConfigError` for one that is invalid, or that others can write.

    A file at the usual place may be missing, one that OTTLA_CONFIG names may not.
    """
    file = config_file(environment)
    if not environment.get(FILE_VARIABLE) and not file.exists():
        return Profiles(file)
    _refuse_foreign(file)
    root = load(file)
    root.refuse_unknown(("default", "profiles"))
    tables = root.table("profiles")
    by_name = {name: _profile(name, tables) for name in tables.values}
    default = root.text("default")
    if default is not None and default not in by_name:
        root.fail(f"has the default {default!r}, which is none of its profiles: {', '.join(by_name) or 'it has none'}")
    return Profiles(file, by_name, None if default is None else by_name[default])


def _profile(name: str, tables: Table) -> Profile:
    if not _NAME.fullmatch(name):
        tables.fail(f"has a profile {name!r}: a name begins with a letter and has letters, digits, '.', '_' and '-'")
    table = tables.table(name)
    access_table.refuse_secrets(table)
    table.refuse_unknown(_KEYS)
    access_table.bootstrap_of(table)
    return Profile(name, table)


def _refuse_foreign(file: Path) -> None:
    """Raise `ConfigError` for a file that another user can have written: it decides where passwords are sent."""
    try:
        status = file.stat()
    except OSError as error:
        raise ConfigError(f"the file {file} cannot be read: {error.strerror}") from error
    if status.st_uid not in (os.geteuid(), 0):
        raise ConfigError(f"the file {file} belongs to another user, who could send your passwords elsewhere")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            f"other users can write the file {file}, and so send your passwords elsewhere: chmod go-w {file}"
        )
