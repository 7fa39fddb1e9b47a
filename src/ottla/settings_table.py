"""Reads settings from TOML files: tables that know their place, so that whatever is wrong is one error that names it.

A file comes in, values of checked types go out. Secrets come from files, or from variables that the caller passes in;
their values never show. It knows no setting by name.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from ottla.errors import ConfigError, OttlaError
from ottla.small_files import read_line

_T = TypeVar("_T")


class Table:
    """A table of the file, with its place for error messages."""

    def __init__(self, values: Mapping[str, Any], place: str, folder: Path) -> None:
        self.values = values
        self.place = place
        """The file, then the keys that lead here."""
        self.folder = folder

    def fail(self, text: str) -> NoReturn:
        """Raise the error for this place."""
        raise ConfigError(f"{self.place} {text}")

    def refuse_unknown(self, accepted: Collection[str]) -> None:
        """Raise `ConfigError` for the first key that is not accepted."""
        for key in self.values:
            if key not in accepted:
                close = difflib.get_close_matches(key, accepted, 1)
                hint = f"did you mean {close[0]!r}?" if close else f"accepted are {', '.join(sorted(accepted))}"
                self.fail(f"has an unknown key {key!r}: {hint}")

    def over(self, values: Mapping[str, Any]) -> Table:
        """Return the table with these values instead of its own."""
        return Table({**self.values, **values}, self.place, self.folder)

    def under(self, defaults: Table, *, tables: Collection[str] = ()) -> Table:
        """Return the table with the values of `defaults` where it has none; `tables` in it are merged, too."""
        merged = {**defaults.values, **self.values}
        for key in tables:
            if key in defaults.values and key in self.values:
                merged[key] = {**defaults.table(key).values, **self.table(key).values}
        return Table(merged, self.place, self.folder)

    def table(self, key: str) -> Table:
        """Return a table in this one; an empty one if it is missing."""
        value = self.values.get(key, {})
        place = f"{self.place[:-1]}.{key}]" if self.place.endswith("]") else f"{self.place}: [{key}]"
        if not isinstance(value, dict):
            raise ConfigError(f"{place} must be a table, got {shown(value)}")
        return Table(value, place, self.folder)

    def get(self, key: str, kind: type[_T], what: str) -> _T | None:
        """Return a value of this type, None if it is missing."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.fail(f"{key} must be {what}, got {shown(value)}")
        return value

    def text(self, key: str) -> str | None:
        """Return a text."""
        return self.get(key, str, "a text")

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts, or one text as a list."""
        value = self.values.get(key, [])
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
            self.fail(f"{key} must be a list of texts, got {shown(value)}")
        return tuple(items)

    def seconds(self, key: str) -> float | None:
        """Return seconds above 0."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            self.fail(f"{key} must be seconds above 0, got {shown(value)}")
        return float(value)

    def path(self, key: str) -> Path | None:
        """Return a path; a relative one is relative to the file."""
        text = self.text(key)
        return None if text is None else self.folder / text

    def secret(self, name: str, environment: Mapping[str, str]) -> str | None:
        """Return the first line of the file of `NAME_file`, or the variable that `NAME_env` names."""
        file, variable = self.path(f"{name}_file"), self.text(f"{name}_env")
        if file is not None and variable is not None:
            self.fail(f"has {name}_file and {name}_env: they are mutually exclusive")
        if variable is not None and variable not in environment:
            self.fail(f"{name}_env names the variable {variable}, which is not set")
        if file is None:
            return None if variable is None else environment[variable]
        try:
            return read_line(file)
        except OSError as error:
            self.fail(f"{name}_file: {file} cannot be read: {error.strerror}")

    def checked(self, make: Callable[[], _T]) -> _T:
        """Return what `make` returns. Its errors get the place."""
        try:
            return make()
        except (OttlaError, ValueError) as error:
            self.fail(f"is invalid: {error}")


def load(path: str | os.PathLike[str], *, hint: str = "") -> Table:
    """Return the outermost table of a file. Raises `ConfigError` if it cannot be read or is not TOML.

    `hint` goes behind the error of a Java properties file.
    """
    file = Path(path)
    try:
        with file.open("rb") as opened:
            values = tomllib.load(opened)
    except OSError as error:
        raise ConfigError(f"the file {file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        text = f"the file {file} is not TOML: {error}"
        raise ConfigError(f"{text}; {hint}" if hint and file.suffix == ".properties" else text) from error
    return Table(values, f"the file {file}", file.parent)


def shown(value: object) -> str:
    """Describe a wrong value; texts are not shown, since one may be a secret."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    return {str: "a text", dict: "a table", list: "a list", datetime: "a time"}.get(type(value), type(value).__name__)
