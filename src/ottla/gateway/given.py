"""Reads the values of one table of a settings file, each with its kind, and names what is wrong with its place.

A mapping as `tomllib` makes it comes in, checked values go out. Whatever is wrong is one `ConfigError`. It reads no
file.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from ottla.errors import ConfigError

_T = TypeVar("_T")
_E = TypeVar("_E", bound=Enum)


class Given:
    """A table, with its place for error messages. Relative paths are relative to `folder`."""

    def __init__(self, values: Mapping[str, Any], place: str, *, folder: Path) -> None:
        self._values = values
        self._place = place
        self._folder = folder
        self._asked: set[str] = set()

    def fail(self, text: str) -> NoReturn:
        """Raise the error for this place."""
        raise ConfigError(f"{self._place} {text}")

    def refuse_others(self) -> None:
        """Raise `ConfigError` for the first key that was never asked for."""
        for key in self._values:
            if key not in self._asked:
                close = difflib.get_close_matches(key, self._asked, 1)
                hint = f"did you mean {close[0]!r}?" if close else f"accepted are {', '.join(sorted(self._asked))}"
                self.fail(f"has an unknown key {key!r}: {hint}")

    def value(self, key: str, kind: type[_T], what: str) -> _T | None:
        """Return a value of this type, None if it is missing."""
        self._asked.add(key)
        found = self._values.get(key)
        if found is None:
            return None
        if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
            self.fail(f"{key} must be {what}, got {found!r}")
        return found

    def text(self, key: str) -> str | None:
        """Return a text."""
        return self.value(key, str, "a text")

    def whole(self, key: str) -> int | None:
        """Return a whole number."""
        return self.value(key, int, "a whole number")

    def seconds(self, key: str) -> float | None:
        """Return a number of seconds."""
        found = self.value(key, int | float, "a number of seconds")  # type: ignore[arg-type]
        return None if found is None else float(found)

    def flag(self, key: str) -> bool | None:
        """Return true or false."""
        return self.value(key, bool, "true or false")

    def path(self, key: str) -> Path | None:
        """Return a path."""
        found = self.text(key)
        return None if found is None else self._folder / found

    def mode(self, key: str) -> int | None:
        """Return the rights of a file, written as text such as "0222"."""
        found = self.text(key)
        if found is None:
            return None
        try:
            return int(found, 8)
        except ValueError:
            self.fail(f'{key} must be octal digits such as "0222", got {found!r}')

    def texts(self, key: str) -> tuple[str, ...] | None:
        """Return a list of texts, or one text as a list."""
        self._asked.add(key)
        found = self._values.get(key)
        items = [found] if isinstance(found, str) else found
        if items is None:
            return None
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            self.fail(f"{key} must be a list of texts, got {found!r}")
        return tuple(items)

    def addresses(self, key: str) -> tuple[tuple[str, int], ...] | None:
        """Return a list of HOST:PORT."""
        found = self.texts(key)
        return None if found is None else tuple(self._address(key, text) for text in found)

    def choice(self, key: str, kind: type[_E], names: Mapping[str, _E]) -> _E | None:
        """Return one of the values of an enum, by the name that people write."""
        found = self.text(key)
        if found is not None and found not in names:
            self.fail(f"{key} is {found!r}; accepted are {', '.join(names)}")
        return None if found is None else names[found]

    def tables(self, key: str) -> tuple[Mapping[str, Any], ...]:
        """Return a list of tables."""
        self._asked.add(key)
        found = self._values.get(key, [])
        if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
            self.fail(f"{key} must be a list of tables, got {found!r}")
        return tuple(found)

    def _address(self, key: str, text: str) -> tuple[str, int]:
        host, separator, port = text.rpartition(":")
        if not separator or not (port.isascii() and port.isdigit()) or int(port) > 65535:
            self.fail(f"{key} must be HOST:PORT, got {text!r}")
        return host.removeprefix("[").removesuffix("]"), int(port)


def without_missing(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is not None, for a constructor with defaults of its own."""
    return {name: value for name, value in values.items() if value is not None}
