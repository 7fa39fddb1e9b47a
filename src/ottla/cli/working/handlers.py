"""Handlers of `ottla work run`: found by `module:function`, checked, and called with what they take.

A text comes in, a function that is called with a `Unit` goes out. What is wrong with a handler is said before anything
is begun. What the handler does is not known here.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

from ottla.cli import Misuse
from ottla.config import why_not_called
from ottla.engines.fleet.handlers import call

if TYPE_CHECKING:
    from ottla.engines.fleet.unit import Unit

Handler: TypeAlias = "Callable[[Unit], object]"


class Takes(Enum):
    """What a handler is called with."""

    UNIT = "unit"
    BATCHES = "batches"
    """Each Arrow batch of the unit."""
    RECORDS = "records"
    """Each record."""
    RANGE = "range"
    """The offsets alone: nothing is read."""


def load(text: str, takes: Takes) -> Handler:
    """The handler that `module:function` names; the module may lie in the current folder."""
    name, colon, path = text.partition(":")
    if not (colon and name and path):
        raise Misuse(f"--handler {text!r} is not MODULE:FUNCTION, for example shop.clicks:handle")
    found: Any = _module(name)
    for part in path.split("."):
        found = _part(found, part, name)
    _check(found, text)
    return _calling(found, takes)


def _module(name: str) -> Any:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise Misuse(
                f"--handler: there is no module {error.name}, neither in {here} nor where Python looks"
            ) from error
        raise Misuse(f"--handler: module {name} cannot be imported: {_reason(error)}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module may do anything, sys.exit() too
        raise Misuse(f"--handler: module {name} cannot be imported: {_reason(error)}") from error


def _part(owner: Any, name: str, module: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        pass
    close = difflib.get_close_matches(name, [one for one in dir(owner) if not one.startswith("_")], n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise Misuse(f"--handler: module {module} has no {name}{hint}")


def _check(found: Any, text: str) -> None:
    if (why := why_not_called(found, 1)) is not None:
        raise Misuse(f"--handler: {text} {why}")


def _calling(handler: Callable[[Any], object], takes: Takes) -> Handler:
    def each_batch(unit: Unit) -> None:
        for batch in unit.read():
            call(handler, batch)

    def each_record(unit: Unit) -> None:
        for record in unit.records():
            call(handler, record)

    def range_alone(unit: Unit) -> None:
        call(handler, unit.range)

    ways: dict[Takes, Handler] = {
        Takes.UNIT: handler,
        Takes.BATCHES: each_batch,
        Takes.RECORDS: each_record,
        Takes.RANGE: range_alone,
    }
    return ways[takes]


def _reason(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text.splitlines()[0]
