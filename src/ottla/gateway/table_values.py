"""Values that tables of a settings file have for listeners: addresses, rights of files, names of choices.

A `Table` comes in, values of checked types go out. Whatever is wrong is one `ConfigError` with its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

from ottla.settings_table import Table, shown

_E = TypeVar("_E", bound=Enum)


def whole(table: Table, key: str) -> int | None:
    """Return a whole number."""
    return table.get(key, int, "a whole number")


def flag(table: Table, key: str) -> bool | None:
    """Return true or false."""
    return table.get(key, bool, "true or false")


def linger(table: Table) -> float | None:
    """Return the seconds that a message waits for others; 0 is possible."""
    found = table.values.get("linger")
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float) or not found >= 0:
        table.fail(f"linger must be seconds from 0, got {shown(found)}")
    return float(found)


def mode(table: Table) -> int | None:
    """Return the rights of a socket file, written as text such as "0222"."""
    found = table.text("mode")
    if found is None:
        return None
    if not found or any(digit not in "01234567" for digit in found):
        table.fail(f'mode must be octal digits such as "0222", got {found!r}')
    return int(found, 8)


def addresses(table: Table, key: str) -> tuple[tuple[str, int], ...]:
    """Return a list of HOST:PORT, or one as a list."""
    return tuple(_address(table, key, text) for text in table.texts(key))


def choice(table: Table, key: str, names: Mapping[str, _E]) -> _E | None:
    """Return one of the values of an enum, by the name that people write."""
    found = table.text(key)
    if found is not None and found not in names:
        table.fail(f"{key} is {found!r}; accepted are {', '.join(names)}")
    return None if found is None else names[found]


def tables(table: Table, key: str) -> tuple[Mapping[str, Any], ...]:
    """Return a list of tables."""
    found = table.values.get(key, [])
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        table.fail(f"{key} must be a list of tables, got {shown(found)}")
    return tuple(found)


def without_missing(**values: object) -> dict[str, Any]:
    """Return what is not None, for a constructor with defaults of its own."""
    return {name: value for name, value in values.items() if value is not None}


def _address(table: Table, key: str, text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    if not separator or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        table.fail(f"{key} must be HOST:PORT, got {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)
